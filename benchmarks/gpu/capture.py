"""Times a step of 50 small ops over 8 logical devices on one GPU: eager tensors against one captured launch.

    python benchmarks/gpu/capture.py

Prints a table last; with $OUT set, writes everything to $OUT/capture.json.
"""
# ruff: noqa: E402 - what is imported lies beside this folder

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "8")

import torch

import weft
from weft import P
from weft.graph import capture
from weft.graph import compile as compiled

GOAL = 10
WIDTH = 64
ON_GPU = torch.cuda.is_available()
WHERE = "cuda" if ON_GPU else "cpu"
MESH = weft.make_mesh({"dp": 2, "tp": 4})

Step = Callable[..., torch.Tensor]


def elementwise(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """50 ops on tensors that are split both ways; nothing moves."""
    for _ in range(10):
        x = torch.tanh(x * 0.9 + shift)
        x = (x - 0.1).relu()
    return x


def layers(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """50 ops as in five layers of a network: products split by columns, then by rows, whose sums are reduced."""
    for _ in range(5):
        h = torch.tanh(x @ up + shift) * 0.5
        y = (h @ down + x).relu()
        x = (y - y.mean(-1, keepdim=True)) * 0.9
    return x


STEPS: dict[str, tuple[Step, dict[str, P]]] = {
    "50 elementwise ops": (elementwise, {"x": P("dp", "tp"), "shift": P("tp")}),
    "50 ops of five layers": (
        layers,
        {"x": P("dp", None), "up": P(None, "tp"), "down": P("tp", None), "shift": P("tp")},
    ),
}


def plain() -> dict[str, torch.Tensor]:
    """Small tensors on the device."""
    torch.manual_seed(0)
    scale = WIDTH**-0.5
    return {
        "x": torch.randn(32, WIDTH, device=WHERE),
        "up": torch.randn(WIDTH, WIDTH, device=WHERE) * scale,
        "down": torch.randn(WIDTH, WIDTH, device=WHERE) * scale,
        "shift": torch.randn(WIDTH, device=WHERE),
    }


def milliseconds(run: Callable[[], object], times: int = 50) -> float:
    """The median over batches of `times` calls, from the first to the last kernel's end."""
    for _ in range(5):
        run()
    taken = []
    for _ in range(7):
        synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            run()
        synchronize()
        taken.append((time.perf_counter() - begin) * 1e3 / times)
    return statistics.median(taken)


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if ON_GPU:
        torch.cuda.synchronize()


def measured(name: str) -> dict[str, object]:
    """The times of one step in every way, and whether they all give the same."""
    step, specs = STEPS[name]
    tensors = plain()
    whole = [tensors[of] for of in specs]
    laid = [weft.shard(tensors[of], MESH, spec) for of, spec in specs.items()]
    graph = capture(step, *laid)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "eager": lambda: step(*laid),
        "plain torch": lambda: step(*whole),
    }
    models = {"flat function": compiled(graph, cuda_graph=False)}
    models["one launch"] = compiled(graph, cuda_graph=True) if ON_GPU else models["flat function"]
    for way, model in models.items():
        ways[way] = lambda model=model: model(*laid)
    expected = step(*whole)
    found: dict[str, object] = {"ops": _ops(step, whole)}
    for way, run in ways.items():
        for _ in range(3):
            result = run()
            result = result.full_tensor() if isinstance(result, weft.Tensor) else result
            torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
        found[way] = milliseconds(run)
    found["device"] = _device_time(ways["one launch"])
    return found


def _ops(step: Step, whole: list[torch.Tensor]) -> int:
    """How many operations torch sees."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step(*whole)
    top = [event for event in profile.events() if event.cpu_parent is None and event.name.startswith("aten::")]
    return len(top)


def _device_time(run: Callable[[], object], times: int = 20) -> float | None:
    """Milliseconds on the device, between two events around many runs."""
    if not ON_GPU:
        return None
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


def table(found: dict[str, dict[str, object]]) -> str:
    """The times as a table, in microseconds."""
    ways = ("eager", "plain torch", "flat function", "one launch")
    lines = [("step", *ways, "eager / one launch", "goal")]
    for name, of in found.items():
        times = [float(of[way]) * 1e3 for way in ways]  # type: ignore[arg-type]
        ratio = times[0] / times[-1]
        met = f"≥ {GOAL} ×: {'met' if ratio >= GOAL else 'MISSED'}"
        lines.append((name, *(f"{t:.0f} µs" for t in times), f"{ratio:.1f} ×", met))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main() -> int:
    """Time every step; 1 if one failed."""
    found: dict[str, dict[str, object]] = {}
    failed = False
    for name in STEPS:
        try:
            found[name] = measured(name)
        except Exception:  # noqa: BLE001 - a report of what failed is what this script is for
            failed = True
            traceback.print_exc()
    about = {"gpu": torch.cuda.get_device_name(0) if ON_GPU else "none", "torch": torch.__version__}
    if "OUT" in os.environ:
        text = json.dumps({"machine": about, "steps": found}, indent=1, ensure_ascii=False)
        Path(os.environ["OUT"], "capture.json").write_text(text)
    print(json.dumps(about), json.dumps({name: of["ops"] for name, of in found.items()}))
    print(table(found))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
