"""How long planning takes, over meshes of 8 to 4,096 devices, new and known; and one device's box on a mesh of 65,536.

python benchmarks/section.py planning
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from contest import Timing, contest
from figure import WEFT, Figure
from planning import SHAPE, all_layouts

from weft.planning import plan_layouts
from weft.sharding import DeviceMesh, NamedMapping, P, make_mesh
from weft.sharding.geometry import box
from weft.sharding.layout import Layout

SIZES = (2, 4, 8, 16)
"""Of each of the three axes of a mesh."""


def figures(quick: bool) -> Iterator[int | Figure]:
    """Planning anew on meshes of three axes, then what is looked up or calculated at once."""
    yield 2 * len(SIZES) + 2
    pairs = 30 if quick else 150
    for size in SIZES:
        mesh = make_mesh(dict.fromkeys("abc", size))
        for pending, words in ((False, "a new movement"), (True, "a new one, sums pending")):
            timing = planned(mesh, pending, pairs)
            yield Figure("planning", words, {WEFT: timing}, devices=mesh.num_devices)
    mesh = make_mesh({"a": 2, "b": 4})
    source, target = NamedMapping(mesh, P("a", "b")).layout(2), NamedMapping(mesh, P("b", "a")).layout(2)
    known = contest({WEFT: lambda: plan_layouts(source, target, SHAPE, 4)}, seconds=0.1, repeat=100)
    yield Figure("planning", "a known plan", known)
    large = make_mesh({"dp": 64, "tp": 64, "sp": 16})
    layout = NamedMapping(large, P("dp", ("sp", "tp"), None)).layout(3)
    found = contest({WEFT: lambda: box(layout, (1_000_003, 4096, 4096), 54_321)}, seconds=0.1, repeat=100)
    yield Figure("planning", "one device's box", found, devices=large.num_devices)


def planned(mesh: DeviceMesh, pending: bool, count: int) -> Timing:
    """Processor time of planning movements that are not known: each has a shape of its own."""
    layouts = all_layouts(mesh, 2, pending=pending)
    every = [(a, b) for a in layouts for b in layouts if a is not b]
    pairs: list[tuple[Layout, Layout]] = every[:: max(1, len(every) // count)]
    times = []
    for i, (source, target) in enumerate(pairs):
        shape = (SHAPE[0], SHAPE[1] + 64 * (i + 1))
        start = time.process_time()
        plan_layouts(source, target, shape, 4)
        times.append(time.process_time() - start)
    return Timing.of(times)
