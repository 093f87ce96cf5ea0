"""What the host does for one compiled transformer block, forward and backward: plain torch, the least class there is, and Weft.

    python benchmarks/compiled_blocks.py

Blocks so small that the host is all there is, each compiled by itself, as the blocks of `benchmarks/gpu/steps.py`: 17 tensors in, 17
gradients out. The least class holds one plain tensor and knows nothing of it: what any class of tensors costs in compiled code. Weft
is on 8 devices of one process. The ways take turns, and the least processor time of 150 rounds counts. `zero_grad` is what comes after
a step in any case: it drops gradients that nobody has looked at.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.gpu.steps import Size, compiled, plain_model, sharded
from weft.runtime import machine

SIZE = Size(4, 16, 4, 2, 4)
ROUNDS = 150
WAYS = ("plain torch", "least class", "Weft")
PHASES = ("forward", "backward", "zero_grad")
Phases = dict[str, Callable[[], None]]

_make: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
_NAMES = ["held"]
_DETACH = torch.ops.aten.detach.default


class Least(torch.Tensor):
    """A tensor that holds a plain one."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return _NAMES, None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: object) -> Least:
        return least(inner["held"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func is _DETACH:
            return least(args[0].held)
        given = func(*[x.held if type(x) is Least else x for x in args], **(kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, least, given)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"Least({tuple(self.shape)})"  # torch 2.11 prints inputs of compiled code, which must not run ops

    def _stable_hash_for_caching(self) -> str:
        """For torch.compile: what code that is kept from one run to the next depends on."""
        return f"{self.shape} {self.stride()} {self.dtype} {self.requires_grad}"


def least(x: torch.Tensor) -> Least:
    """A tensor in the least class."""
    strides, offset = (None, None) if x.is_contiguous() else (x.stride(), 0)
    made: Least = _make(Least, x.shape, strides, offset, None, x.dtype, torch.strided, x.device)
    made.held = x
    return made


def wrapped(model: nn.Module) -> nn.Module:
    """A model whose parameters are of the least class."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = nn.Parameter(least(value.detach()))
    return model


def phases(way: str) -> Phases:
    """Forward and backward, compiled."""
    model, x = plain_model(SIZE), torch.randn(SIZE.batch, SIZE.length, SIZE.width)
    if way == "Weft":
        model, x = sharded(model, x, SIZE)
    elif way == "least class":
        model, x = wrapped(model), least(x)
    compiled(model)
    losses: list[torch.Tensor] = []

    def forward() -> None:
        losses.append(model(x))

    def backward() -> None:
        losses.pop().backward()

    def between() -> None:
        losses.append(losses.pop().pow(2).mean())

    def end() -> None:
        model.zero_grad(set_to_none=True)

    made = {"forward": forward, "loss": between, "backward": backward, "zero_grad": end}
    for _ in range(4):
        for run in made.values():
            run()
    return made


def taken() -> dict[tuple[str, str], float]:
    """Microseconds for a block, by way and phase."""
    ways = {way: phases(way) for way in WAYS}
    found: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for way, each in ways.items():
            for phase, run in each.items():
                begin = time.process_time()
                run()
                time_of_one = (time.process_time() - begin) * 1e6 / SIZE.blocks
                found[way, phase] = min(found.get((way, phase), time_of_one), time_of_one)
    return found


def main() -> None:
    """Prints microseconds for a block, in each memory."""
    torch.set_num_threads(1)
    sys.stdout.write("| memory | phase | plain torch | least class | Weft |\n|---|---|---|---|---|\n")
    for memory in ("one", "apart"):
        machine.use_separate_memory(memory == "apart")
        found = taken()
        for way in WAYS:
            found[way, "all"] = sum(found[way, phase] for phase in PHASES)
        for phase in (*PHASES, "all"):
            plain = found["plain torch", phase]
            rest = " | ".join(f"{found[way, phase]:.0f} µs, {found[way, phase] / plain:.2f} ×" for way in WAYS[1:])
            sys.stdout.write(f"| {memory} | {phase} | {plain:.0f} µs | {rest} |\n")


if __name__ == "__main__":
    main()
