"""Training steps on 8 CPU devices in one process, DP × TP: Weft, plain torch on one device, and the peers. And AdamW alone.

    python benchmarks/section.py training

The large model is one block of GPT-2 small (hidden 768, 12 heads, batch 8 × 256); the small one is that of the
demonstration. A step is forward, loss, backward and SGD. The limit is plain torch on one device: it does the same
arithmetic, and nothing else. Before anything is timed, all losses are compared.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import torch
from contest import contest
from figure import LIMIT, SEPARATE, WEFT, Figure
from in_process import APART, DEVICES, apart
from models.gpt2 import GPT2, LAYOUTS, Block
from peers import dtensor, jax_block
from torch.nn import functional

import weft
from weft import CPU, P
from weft.inspect.transitions import grid_of

DIM, HEADS, BATCH, LENGTH = 768, 12, 8, 256
TINY = {"vocabulary": 96, "length": 32, "dim": 64, "heads": 4, "depth": 2}
RATE = 1e-3
PARAMETERS = 64
ADAMW = ("foreach", "fused")
"""The ways in which torch steps with all parameters at once."""

Step = Callable[[], object]


def steps(quick: bool) -> Iterator[int | Figure]:
    """The block, the demonstration's model, and AdamW on many small parameters."""
    yield 2 + len(ADAMW)
    pace = {"seconds": 1.0 if quick else 8.0, "least": 3, "warm": 1}
    yield Figure("training", f"GPT-2 block, {DIM} wide, batch {BATCH} × {LENGTH}", contest(block_steps(), **pace))
    pace = {"seconds": 0.4 if quick else 3.0, "least": 5, "warm": 2}
    yield Figure("training", "the demonstration's model", contest(tiny_steps(), **pace))
    for way in ADAMW:
        yield Figure("training", f"AdamW, {PARAMETERS} parameters of 4 KiB, {way}", contest(adamw_steps(way), **pace))


def block_steps() -> dict[str, Step]:
    """One step of the block, by each contender."""
    torch.manual_seed(0)
    plain = Block(DIM, HEADS)
    x, y = torch.randn(2, BATCH, LENGTH, DIM)

    def loss(model: torch.nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return functional.mse_loss(model(inputs), targets)

    found = everywhere(plain, (x, y), LAYOUTS["tp"], loss)
    jax = jax_block.step(plain, x, y, HEADS, RATE)
    agree({**found, **jax})
    return {**found, **jax}


def tiny_steps() -> dict[str, Step]:
    """One step of the demonstration's model, by each contender."""
    torch.manual_seed(0)
    plain = GPT2(**TINY)
    tokens = torch.randint(0, TINY["vocabulary"], (8, TINY["length"] + 1))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss(model: torch.nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    found = everywhere(plain, batch, LAYOUTS["tp"], loss)
    there = tuple(map(dtensor.batch, batch))
    found["DTensor, one device"] = dtensor.with_known_attention(stepping(dtensor.model(plain), there, loss))
    agree(found)
    return found


def adamw_steps(way: str) -> dict[str, Step]:
    """One step of AdamW alone, by each contender: nothing but what lists of parameters cost."""
    torch.manual_seed(0)
    plain = torch.nn.ParameterList(torch.randn(32, 32) for _ in range(PARAMETERS))

    def stepping_with(model: torch.nn.ParameterList) -> Step:
        for parameter in model:
            parameter.grad = parameter.detach().clone()
        return torch.optim.AdamW(model, lr=RATE, **{way: True}).step

    def sharded(devices: Sequence[CPU]) -> Step:
        return stepping_with(weft.nn.shard_module(copy.deepcopy(plain), grid_of(devices), {"*": P("tp")}))

    return {
        WEFT: sharded(DEVICES),
        SEPARATE: apart(lambda: sharded(APART)),
        LIMIT: stepping_with(copy.deepcopy(plain)),
        "DTensor, one device": stepping_with(dtensor.model(plain)),
    }


def everywhere(
    plain: torch.nn.Module,
    batch: Sequence[torch.Tensor],
    layouts: dict[str, P],
    loss: Callable[[torch.nn.Module, Sequence[torch.Tensor]], torch.Tensor],
) -> dict[str, Step]:
    """The step on a mesh in one memory, on one with a memory for each device, and on one device in plain torch."""

    def sharded(devices: Sequence[CPU]) -> Step:
        mesh = grid_of(devices)
        model = weft.nn.shard_module(copy.deepcopy(plain), mesh, layouts)
        return stepping(model, weft.shard(tuple(batch), mesh, P("dp")), loss)

    return {
        WEFT: sharded(DEVICES),
        SEPARATE: apart(lambda: sharded(APART)),
        LIMIT: stepping(copy.deepcopy(plain), batch, loss),
    }


def stepping(
    model: torch.nn.Module,
    batch: Sequence[torch.Tensor],
    loss: Callable[[torch.nn.Module, Sequence[torch.Tensor]], torch.Tensor],
) -> Step:
    """A training step; nothing in it knows of devices."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value.item()

    return step


def agree(calls: dict[str, Step]) -> None:
    """Everyone's loss is the same, or the figures would compare different work; who has stepped once already is left out."""
    losses = {name: call() for name, call in calls.items() if name != SEPARATE}
    for name, value in losses.items():
        torch.testing.assert_close(
            value, losses[LIMIT], rtol=1e-3, atol=1e-4, msg=lambda said, name=name: f"{name}: {said}"
        )
