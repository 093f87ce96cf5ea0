"""The planner: bytes beside the lower bound and beside peers, and how long planning takes.

    python benchmarks/planning.py [--dtensor] [--xla PYTHON] [--write docs/planning.md] [--exhaustive] [--json out.json]

`--dtensor` asks DTensor's planners in this environment; `--xla` compiles the same transitions with the JAX of another
interpreter. `--write` puts the tables between the markers of a page. `--exhaustive` plans every movement on meshes of
one to three axes of sizes 2 to 4, ranks 1 to 3, and compares what each device receives with what it lacks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from itertools import permutations, product
from pathlib import Path

from pages import write_between
from transitions import ITEMSIZE, SHAPE, Case, cases

from weft.planning import Plan, plan_layouts
from weft.planning.boxes.census import everywhere
from weft.planning.plans import _cache
from weft.sharding import DeviceMesh, ReduceOp, make_mesh
from weft.sharding.geometry import box
from weft.sharding.layout import Layout

HERE = Path(__file__).parent
MIB = 1 << 20
Peers = dict[str, dict[str, list[float] | float]]


def planned(case: Case) -> Plan:
    """Our plan of a transition."""
    mesh = make_mesh(case.axes)
    ends = [
        Layout(mesh, map(tuple, splits), dict.fromkeys(pending, ReduceOp.SUM))
        for splits, pending in ((case.source, case.pending), (case.target, case.target_pending))
    ]
    return plan_layouts(*ends, SHAPE, ITEMSIZE)


def asked(command: list[str]) -> dict:
    """What a peer's script prints, the last line of it."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def bytes_table(peers: dict[str, dict]) -> list[str]:
    """MiB received per device: ours, the limit and the peers', with the geometric mean over the limit."""
    columns = ["mesh", "transition", "limit", "Weft", "steps", *peers]
    rows = []
    ratios: dict[str, list[float]] = {name: [] for name in ("Weft", *peers)}
    for case in cases():
        plan = planned(case)
        limit = plan.lower_bound.max / MIB
        row = [case.mesh, case.name, f"{limit:g}", f"{plan.bytes_received.max / MIB:g}"]
        row.append(", ".join(step.kind for step in plan.steps))
        ratios["Weft"].append(plan.bytes_received.max / MIB / limit)
        for name, answer in peers.items():
            amount = answer["mib"][f"{case.mesh} {case.name}"]
            row.append(f"{amount:g}")
            ratios[name].append(amount / limit)
        rows.append(row)
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    summary = [
        f"{name} {statistics.geometric_mean(values):.2f} (worst {max(values):.1f})" for name, values in ratios.items()
    ]
    return [*lines, "", f"Geometric mean over the limit, {len(rows)} transitions: {', '.join(summary)}."]


def median_ms(pairs: list[tuple[Layout, Layout]], shape: tuple[int, int]) -> tuple[float, float]:
    """Processor time of planning anew, in the middle and near the end; each pair has its own shape, so none is known."""
    times = []
    for turn in range(3):
        for i, (source, target) in enumerate(pairs):
            sizes = (shape[0], shape[1] + 64 * (turn * len(pairs) + i + 1))
            start = time.process_time()
            plan_layouts(source, target, sizes, 4)
            times.append(1e3 * (time.process_time() - start))
    return statistics.median(times), sorted(times)[int(0.95 * len(times))]


def all_layouts(mesh: DeviceMesh, rank: int, *, pending: bool = False) -> list[Layout]:
    """Every layout: each axis splits a dim, or none, or holds a sum; in every order."""
    found: dict[Layout, None] = {}
    for roles in product(range(-1 - pending, rank), repeat=mesh.ndim):
        at = dict(zip(mesh.axis_names, roles, strict=True))
        held = {axis: ReduceOp.SUM for axis, role in at.items() if role == -2}
        dims = [[axis for axis, role in at.items() if role == dim] for dim in range(rank)]
        for splits in product(*map(permutations, dims)):
            found[Layout(mesh, splits, held)] = None
    return list(found)


def times_table() -> list[str]:
    """How long planning takes, new and known."""
    small, large = make_mesh({"a": 2, "b": 4}), make_mesh({"a": 16, "b": 16, "c": 16})
    lines = ["| mesh | transitions | median | 95 of 100 |", "|---|---|---|---|"]
    for mesh, stride in ((small, 7), (large, 211)):
        for pending, words in ((False, "movements"), (True, "with pending sums")):
            layouts = all_layouts(mesh, 2, pending=pending)
            pairs = [(a, b) for a in layouts for b in layouts][::stride]
            middle, slow = median_ms(pairs, SHAPE)
            lines.append(f"| {mesh} | {words} | {middle:.2f} ms | {slow:.2f} ms |")
    source, target = all_layouts(small, 2)[3], all_layouts(small, 2)[5]
    plan_layouts(source, target, SHAPE, 4)
    start = time.perf_counter()
    for _ in range(100_000):
        plan_layouts(source, target, SHAPE, 4)
    known = (time.perf_counter() - start) * 10
    lines.append(f"| {small} | a known one | {known:.2f} µs | |")
    return lines


def exhaustive() -> str:
    """Every movement on small meshes: each device receives what it lacks, no more."""
    count = 0
    for axes, rank in product((1, 2, 3), (1, 2, 3)):
        for sizes in product((2, 3, 4), repeat=axes):
            mesh = make_mesh(dict(zip("abc", sizes, strict=False)))
            shape = (12, 10, 7)[:rank]
            layouts = all_layouts(mesh, rank)
            boxes = {layout: [box(layout, shape, slot) for slot in range(mesh.num_devices)] for layout in layouts}
            for source, target in product(layouts, layouts):
                plan = plan_layouts(source, target, shape, 1)
                each = [0] * mesh.num_devices
                for step in plan.steps:
                    for times, measure in step.load():
                        each = [x + times * y for x, y in zip(each, everywhere(mesh, shape, measure), strict=True)]
                assert each == [lacking(s, t) for s, t in zip(boxes[source], boxes[target], strict=True)], (
                    source,
                    target,
                )
                count += 1
            _cache.clear()
    return f"{count:,} movements: every device receives exactly what it lacks."


def lacking(held: tuple[tuple[int, int], ...], wanted: tuple[tuple[int, int], ...]) -> int:
    """|T| − |T ∩ S|."""
    common = math.prod(max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in zip(held, wanted, strict=True))
    return math.prod(d - c for c, d in wanted) - common


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtensor", action="store_true")
    parser.add_argument("--xla", metavar="PYTHON")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers: dict[str, dict] = {}
    if options.dtensor:
        answer = asked([sys.executable, str(HERE / "peers" / "dtensor_bytes.py")])
        for i, name in enumerate(("DTensor greedy", "DTensor graph")):
            peers[name] = {"version": answer["version"], "mib": {key: pair[i] for key, pair in answer["mib"].items()}}
    if options.xla:
        peers["XLA"] = asked([options.xla, str(HERE / "peers" / "xla_bytes.py")])
    versions = ", ".join(f"{name} {answer['version']}" for name, answer in peers.items())
    tables = {"bytes": [*bytes_table(peers), *([f"Versions: {versions}."] if versions else [])]}
    tables["times"] = [
        *times_table(),
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} cores; processor time of one process.",
    ]
    if options.exhaustive:
        tables["exhaustive"] = [exhaustive()]
    for name, lines in tables.items():
        print("\n".join(lines), end="\n\n")
        if options.write:
            write_between(options.write, name, "\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps({"peers": peers, "tables": tables}, indent=2))


if __name__ == "__main__":
    main()
