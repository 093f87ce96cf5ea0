"""Times training steps on one GPU: plain torch and Weft on 8 logical devices, eager, compiled and captured.

    python benchmarks/gpu/steps.py [--tiny] [--no-compile | --whole]

Two models of transformer blocks, bf16 autocast, AdamW; dp=2 × tp=4; in one memory and with memories apart. All ways take
turns, medians; ratios are medians of those within a turn. Compiled models are compiled block by block, once for all blocks; with
`--whole` as one program, which is all that is timed then. Beside the whole step, forward and backward and the optimizer are timed alone. `local x 8` is what memories
apart cannot beat: eight plain models of the size that each device holds, one after the other. `device ms` is what the kernels
and copies of one call take on the GPU, as torch's profiler counts them; where devices compute at once, as in captured steps with
memories apart, each takes longer than alone.

Prints a table last; with $OUT set, writes everything to $OUT/steps.json. On a machine without a GPU, `--tiny` shows that it runs.
"""
# ruff: noqa: E402 - what is imported lies beside this folder

from __future__ import annotations

import copy
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "8")

import torch
import torch._dynamo
from torch import nn
from torch.nn import functional

import weft
from weft import P
from weft.graph import capture_step
from weft.runtime import machine

ON_GPU = torch.cuda.is_available()
WHERE = "cuda" if ON_GPU else "cpu"
WHOLE = "--whole" in sys.argv
COMPILES_UNTIL = 400 if WHOLE else 150
"""Seconds after which nothing more is compiled."""
ROUNDS, SECONDS = (61, 0.12) if WHOLE else (7, 0.12)
"""How many turns each way has, and about how long one takes. In shorter ones the first launch is waited for, as in no training."""
BEGUN = time.perf_counter()
torch._dynamo.config.recompile_limit = 64

Way = Callable[[], object]

TENSOR_PARALLEL = {
    **{f"*.{name}.weight": P("tp", None) for name in ("q", "k", "v", "up")},
    **{f"*.{name}.bias": P("tp") for name in ("q", "k", "v", "up")},
    "*.o.weight": P(None, "tp"),
    "*.down.weight": P(None, "tp"),
}


@dataclass(frozen=True)
class Size:
    """How large a model and its batch are."""

    blocks: int
    width: int
    heads: int
    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.blocks} blocks of {self.width}, {self.batch} x {self.length} tokens"


SIZES = (Size(4, 1024, 16, 8, 1024), Size(12, 768, 12, 1, 128))
TINY = (Size(2, 32, 4, 2, 8),)


class Block(nn.Module):
    """A transformer block, or the share of it that one of several devices has."""

    def __init__(self, width: int, heads: int, share: int = 1) -> None:
        super().__init__()
        self.heads, self.each = heads // share, width // heads
        inner = width // share
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, inner) for _ in range(3))
        self.o = nn.Linear(inner, width)
        self.up, self.down = nn.Linear(width, 4 * inner), nn.Linear(4 * inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and a perceptron, both added."""
        batch, length, _ = x.shape
        h = self.before(x)
        q, k, v = (f(h).view(batch, length, self.heads, self.each).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).reshape(batch, length, self.heads * self.each))
        return x + self.down(functional.gelu(self.up(self.between(x))))


def autocast() -> AbstractContextManager[object]:
    """As the issue has it: bf16 where torch thinks it right."""
    return torch.autocast(WHERE, dtype=torch.bfloat16)


class Program(nn.Module):
    """A model that is compiled as one program; `Sequential.compile` would make one of each block."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._run = torch.compile(model, fullgraph=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the model gives."""
        y: torch.Tensor = self._run(x)
        return y


def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One number that needs every output."""
    with autocast():
        return model(x).float().pow(2).mean()


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if ON_GPU:
        torch.cuda.synchronize()


def on_device(way: Way) -> float:
    """Milliseconds that the GPU works for one call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        way()
        synchronize()
    found = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(event.time_range.elapsed_us() for event in found) / 1e3


@dataclass
class Contest:
    """Ways to do the same, and what each took in every round."""

    ways: dict[str, Way] = field(default_factory=dict)
    taken: dict[str, list[float]] = field(default_factory=dict)
    host: dict[str, list[float]] = field(default_factory=dict)
    device: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], Way]) -> None:
        """A way that works, warmed up; what fails is noted."""
        try:
            way = make()
            for _ in range(4):
                way()
            synchronize()
        except Exception as error:  # noqa: BLE001 - a report of what failed is what this script is for
            traceback.print_exc()
            self.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            return
        self.ways[name] = way

    def run(self) -> None:
        """All ways in turns; each turn is as many calls as fit into some time, once the first has said how long one takes."""
        times = dict.fromkeys(self.ways, 2)
        for turn in range(ROUNDS + 1):
            for name, way in self.ways.items():
                synchronize()
                begin = time.perf_counter()
                for _ in range(times[name]):
                    way()
                left = time.perf_counter()
                synchronize()
                end = time.perf_counter()
                if turn == 0:
                    times[name] = max(1, min(50, int(SECONDS / max(1e-6, (end - begin) / times[name]))))
                else:
                    self.taken.setdefault(name, []).append((end - begin) / times[name] * 1e3)
                    self.host.setdefault(name, []).append((left - begin) / times[name] * 1e3)
        if ON_GPU:
            self.device = {name: on_device(way) for name, way in self.ways.items()}

    def medians(self) -> dict[str, float]:
        """Milliseconds for one call."""
        return {name: statistics.median(values) for name, values in self.taken.items()}

    def against(self, name: str, reference: str) -> float:
        """How many times as long as a reference a way took: the median of all turns, each against the reference's of that turn."""
        pairs = zip(self.taken[name], self.taken[reference], strict=True)
        return statistics.median(ours / its for ours, its in pairs)


def phases(model: nn.Module, x: torch.Tensor) -> dict[str, Way]:
    """Forward and backward, the optimizer, and the whole step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def both_ways() -> None:
        model.zero_grad(set_to_none=True)
        loss_fn(model, x).backward()

    def whole() -> None:
        both_ways()
        optimizer.step()

    whole()
    return {"step": whole, "fwd+bwd": both_ways, "adamw": optimizer.step}


def compiled(model: nn.Module) -> nn.Module:
    """The model with each block compiled, once for all of them, as they are alike; or compiled as a whole."""
    if time.perf_counter() - BEGUN > COMPILES_UNTIL:
        raise TimeoutError(f"not compiled: {COMPILES_UNTIL} s have passed")
    if WHOLE:
        return Program(model)
    for part in model:
        part.compile()
    return model


def captured_plain(model: nn.Module, x: torch.Tensor) -> Way:
    """Plain torch as its documentation says: a whole step in one CUDA graph."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)

    def whole() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_fn(model, held).backward()
        optimizer.step()

    held = x.clone()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            whole()
    torch.cuda.current_stream().wait_stream(aside)
    optimizer.zero_grad(set_to_none=True)
    launch = torch.cuda.CUDAGraph()
    with torch.cuda.graph(launch):
        whole()

    def run(_used: tuple[nn.Module, torch.optim.Optimizer]) -> None:
        held.copy_(x)
        launch.replay()

    return partial(run, (model, optimizer))  # a launch does not keep alive what it reads and writes


def captured_weft(model: nn.Module, x: torch.Tensor) -> Way:
    """Weft's step; on a GPU it must be recorded."""
    step = capture_step(
        model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss_fn, cuda_graph=True if ON_GPU else None
    )
    for _ in range(4):
        step(x)
    assert step.recordings == int(ON_GPU), step.reason
    return partial(step, x)


def plain_model(size: Size) -> nn.Module:
    """On the GPU, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.blocks))).to(WHERE)


def local_models(size: Size) -> tuple[list[nn.Module], torch.Tensor]:
    """Eight models of the size that each device holds at dp=2 x tp=4, and the batch of one."""
    made = [
        nn.Sequential(*(Block(size.width, size.heads, share=4) for _ in range(size.blocks))).to(WHERE) for _ in range(8)
    ]
    rows = max(1, size.batch // 2) if size.batch > 1 else size.batch
    return made, torch.randn(rows, size.length, size.width, device=WHERE)


def local_ways(size: Size) -> dict[str, Way]:
    """The phases of the eight, one after the other."""
    models, x = local_models(size)
    each = [phases(model, x) for model in models]

    def after_another(name: str) -> None:
        for ways in each:
            ways[name]()

    return {name: partial(after_another, name) for name in each[0]}


def sharded(model: nn.Module, x: torch.Tensor, size: Size) -> tuple[nn.Module, torch.Tensor]:
    """The model and its batch on 8 logical devices."""
    mesh = weft.make_mesh({"dp": 2, "tp": 4})
    ours = weft.nn.shard_module(copy.deepcopy(model), mesh, TENSOR_PARALLEL)
    return ours, weft.shard(x, mesh, P("dp") if size.batch > 1 else P())


def measured(size: Size, memory: str, compiles: bool) -> dict[str, Contest]:
    """All ways for one size in one memory, phase by phase."""
    machine.use_separate_memory(memory == "apart")
    torch._dynamo.reset()  # all models are the same code to it, of which it compiles eight and runs the rest uncompiled
    plain = plain_model(size)
    x = torch.randn(size.batch, size.length, size.width, device=WHERE)
    contests = {name: Contest() for name in ("step", "fwd+bwd", "adamw")}
    makers: dict[str, Callable[[], dict[str, Way]]] = {
        "plain eager": lambda: phases(copy.deepcopy(plain), x),
        "weft eager": lambda: phases(*sharded(plain, x, size)),
    }
    if memory == "apart":
        makers["local x 8"] = lambda: local_ways(size)
    if WHOLE:
        makers.clear()
    elif ON_GPU:
        makers["plain captured"] = lambda: {"step": captured_plain(copy.deepcopy(plain), x)}
    if not WHOLE:
        makers["weft captured"] = lambda: {"step": captured_weft(*sharded(plain, x, size))}
    if compiles and memory == "one":
        makers["plain compiled"] = lambda: phases(compiled(copy.deepcopy(plain)), x)

        def compiled_weft() -> dict[str, Way]:
            ours, there = sharded(plain, x, size)
            return phases(compiled(ours), there)

        makers["weft compiled"] = compiled_weft
        if ON_GPU:
            makers["plain compiled, captured"] = lambda: {"step": captured_plain(compiled(copy.deepcopy(plain)), x)}

        def compiled_and_captured() -> dict[str, Way]:
            ours, there = sharded(plain, x, size)
            return {"step": captured_weft(compiled(ours), there)}

        makers["weft compiled, captured"] = compiled_and_captured
    for name, make in makers.items():
        try:
            ways = make()
        except Exception as error:  # noqa: BLE001 - as above
            traceback.print_exc()
            contests["step"].failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        for phase, way in ways.items():
            contests[phase].add(name, lambda way=way: way)
    for contest in contests.values():
        contest.run()
    machine.use_separate_memory(False)
    return contests


REFERENCES = {
    "weft eager": "plain eager",
    "weft captured": "plain captured",
    "weft compiled": "plain compiled",
    "weft compiled, captured": "plain compiled, captured",
}


def rows_of(size: Size, memory: str, contests: dict[str, Contest]) -> list[tuple[str, ...]]:
    """The lines of the table for one size in one memory."""
    rows = []
    for phase, contest in contests.items():
        medians = contest.medians()
        for name, took in medians.items():
            reference = "local x 8" if memory == "apart" and name == "weft eager" else REFERENCES.get(name, "")
            ratio = f"{contest.against(name, reference):.2f} x {reference}" if reference in medians else ""
            spread = f"{min(contest.taken[name]):.2f} - {max(contest.taken[name]):.2f}"
            host = f"{statistics.median(contest.host[name]):.2f}"
            if memory == "apart" and name == "weft captured" and name in contest.device:
                ratio = f"{took / contest.device[name]:.2f} x its device time"
            device = f"{contest.device[name]:.2f}" if name in contest.device else ""
            rows.append((str(size), memory, phase, name, f"{took:.2f}", spread, host, device, ratio))
        rows += [(str(size), memory, phase, name, "failed", "", "", "", why) for name, why in contest.failed.items()]
    return rows


def main() -> int:
    """Time everything; 1 if something failed."""
    compiles = "--no-compile" not in sys.argv
    sizes = TINY if "--tiny" in sys.argv else SIZES
    head = ("model", "memory", "phase", "way", "ms", "spread", "host ms", "device ms", "against")
    rows: list[tuple[str, ...]] = [head]
    about = {"gpu": torch.cuda.get_device_name(0) if ON_GPU else "none", "torch": torch.__version__}
    for size in sizes:
        for memory in ("one",) if WHOLE else ("one", "apart"):
            rows += rows_of(size, memory, measured(size, memory, compiles))
            print(f"{size}, {memory}: done after {time.perf_counter() - BEGUN:.0f} s", flush=True)
            if ON_GPU:
                torch.cuda.empty_cache()
            if "OUT" in os.environ:  # what is known is not lost if time runs out
                Path(os.environ["OUT"], "steps.json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1))
    print(json.dumps(about))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
