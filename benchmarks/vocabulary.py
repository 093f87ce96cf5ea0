"""How quick the words are: one device's box on a mesh of 65,536, and the import of `weft.sharding`.

Run it with `python benchmarks/vocabulary.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

from weft.sharding import NamedMapping, P, make_mesh
from weft.sharding.geometry import box, holders
from weft.sharding.layout import Layout

RUNS = 9


def seconds(work: Callable[[], object], repeats: int = 1000) -> float:
    """The least time of one call: other work on the machine only ever adds to it."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        times.append((time.perf_counter() - start) / repeats)
    return min(times)


def import_seconds() -> float:
    """What `import weft.sharding` adds to the start of an interpreter."""
    with TemporaryDirectory() as compiled:
        # As installed packages are: compiled once, whatever the environment says about writing bytecode.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}

        def started(code: str) -> float:
            return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True, env=environment), repeats=1)

        return started("import weft.sharding") - started("pass")


def main() -> None:
    """Print one line a measurement."""
    shape, slot = (1_000_003, 4096, 4096), 54_321
    small, large = make_mesh({"dp": 2, "tp": 2, "sp": 2}), make_mesh({"dp": 64, "tp": 64, "sp": 16})
    spec = P("dp", ("sp", "tp"), None)
    for mesh, at in ((small, 5), (large, slot)):
        layout = NamedMapping(mesh, spec).layout(3)
        print(f"one device's box on {mesh}: {seconds(lambda: box(layout, shape, at)) * 1e6:.1f} µs")  # noqa: B023
    layout = NamedMapping(large, P("dp", "tp", None)).layout(3)
    print(f"the 16 devices that hold the same box on {large}: {seconds(lambda: holders(layout, slot)) * 1e6:.1f} µs")
    print(f"the layout of a mapping on {large}: {seconds(lambda: NamedMapping(large, spec).layout(3)) * 1e6:.1f} µs")
    splits = layout.splits
    print(f"an interned layout on {large}: {seconds(lambda: Layout(large, splits)) * 1e6:.1f} µs")
    print(f"import weft.sharding: {import_seconds() * 1e3:.1f} ms beyond the interpreter's start")


if __name__ == "__main__":
    main()
