"""Staged plans beside every staging, by the cost model: all pairs of layouts on small machines, pending sums included.

    python benchmarks/staging.py                          a few minutes
    python benchmarks/staging.py --write docs/planning.md
    python benchmarks/staging.py --large                  some seconds: 64 MiB on 4 and 64 hosts of 8, and planning 10,240 devices

A staging is any one, two or three steps through layouts in between, each straight or staged, that moves no more bytes in all
than the plan for one host. Links are those of the `h100` preset. On 4 and 64 hosts, the form to compare with is written down: each
byte crosses once between hosts, shared by the 8 devices of each, which then pass it on.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import write_between

from tests.planning.stagings import Stagings
from weft.devices import CPU
from weft.planning import Topology, plan_layouts
from weft.planning.costs.cost import step_time
from weft.sharding import DeviceMesh, ReduceOp
from weft.sharding.layout import Layout

SHAPES = ((768, 3072), (1001, 777), (48, 48), (100003,))
H100 = Topology.preset("h100")
SIZE = 64 << 20
MOST = 1280
"""Hosts of 8 devices, whose movements are planned within a tenth of a second."""


def table() -> str:
    """A row for each machine: over all shapes and both orders of the mesh."""
    lines = ["| hosts × devices | pairs of layouts | over the best, at most | over 1.05 |", "|---|---|---|---|"]
    for hosts, devices in product((2, 3, 4), repeat=2):
        ratios = [
            ratio
            for shape, turned in product(SHAPES, (False, True))
            for ratio in Stagings(hosts, devices, shape, turned=turned).ratios()
        ]
        over = sum(ratio > 1.05 for ratio in ratios)
        lines.append(f"| {hosts} × {devices} | {len(ratios):,} | {max(ratios):.3f} | {over} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def hosts_of_eight(hosts: int, *, named: bool) -> DeviceMesh:
    """So many hosts, as an axis of their own or as part of the only one."""
    shape, names = ((hosts, 8), ("host", "device")) if named else ((hosts * 8,), ("x",))
    return DeviceMesh([CPU(i) for i in range(hosts * 8)], shape, names)


def staged_form(hosts: int) -> float:
    """The seconds in which each device has what all others hold, staged: between hosts once, and then inside each."""
    far = H100.rack if hosts <= 4 else H100.fabric
    between = far.latency + SIZE / 8 * (1 - 1 / hosts) / far.bandwidth
    return between + H100.host.latency + SIZE * 7 / 8 / H100.host.bandwidth


def large_table() -> str:
    """64 MiB in f32: straight, as planned, and in the staged form."""
    lines = ["| | straight | as planned | the staged form | |", "|---|---|---|---|---|"]
    for hosts, named in product((4, 64), (True, False)):
        mesh = hosts_of_eight(hosts, named=named)
        whole = Layout(mesh, ((),))
        summed = Layout(mesh, ((),), dict.fromkeys(mesh.axis_names, ReduceOp.SUM))
        for name, source, hops in (("all-gather", Layout(mesh, (mesh.axis_names,)), 1), ("all-reduce", summed, 2)):
            plan = plan_layouts(source, whole, (SIZE // 4,), 4, topology=H100)
            straight = sum(step_time(replace(step, stages=None), H100) for step in plan.steps)
            form = hops * staged_form(hosts)
            axes = "" if named else ", one axis"
            figures = " | ".join(f"{1e3 * each:.2f} ms" for each in (straight, plan.estimated_time, form))
            lines.append(f"| {name}, {hosts} hosts of 8{axes} | {figures} | {plan.estimated_time / form:.2f} × |")
    return "\n".join(lines)


def transitions(mesh: DeviceMesh) -> Iterator[tuple[Layout, Layout]]:
    """Every pair of layouts of a matrix, some axes pending, that are not the same."""
    host, device = mesh.axis_names
    splits = [
        ((), ()),
        ((host, device), ()),
        ((), (host, device)),
        ((host,), (device,)),
        ((device,), (host,)),
        ((host,), ()),
    ]
    found = [Layout(mesh, each) for each in splits]
    found += [
        Layout(mesh, ((), ()), dict.fromkeys(mesh.axis_names, ReduceOp.SUM)),
        Layout(mesh, ((device,), ()), {host: ReduceOp.SUM}),
    ]
    yield from ((one, other) for one, other in product(found, repeat=2) if one is not other)


def planning_time() -> str:
    """How long movements on 10,240 devices take to be planned, each of a shape that nobody has asked for."""
    mesh = hosts_of_eight(MOST, named=True)
    taken = []
    gc.collect()
    for number, (source, target) in enumerate(transitions(mesh)):
        start = time.process_time()
        plan_layouts(source, target, (20480, 20480 + 64 * number), 4, topology=H100)
        taken.append(time.process_time() - start)
    first, *_, longest = sorted(taken)
    median = statistics.median(taken)
    return (
        f"Planning {len(taken)} movements on {8 * MOST:,} devices, pending sums included: {1e3 * first:.1f} to {1e3 * longest:.0f} ms "
        f"each, {1e3 * median:.1f} ms in the median."
    )


def main() -> None:
    """The command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", type=Path, default=None, help="a page to write the table to, between its marks")
    options.add_argument("--large", action="store_true", help="only 4 and 64 hosts, and planning 10,240 devices")
    said = options.parse_args()
    if not said.large:
        shown = table()
        if said.write is not None:
            write_between(said.write, "stagings", shown)
    shown = f"{large_table()}\n\n{planning_time()}"
    print(shown)
    if said.write is not None:
        write_between(said.write, "large", shown)


if __name__ == "__main__":
    main()
