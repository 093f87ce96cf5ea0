"""Staged plans beside every staging, by the cost model: all pairs of layouts on small machines, pending sums included.

    python benchmarks/staging.py                          a few minutes
    python benchmarks/staging.py --write docs/planning.md

A staging is any one, two or three steps through layouts in between, each straight or staged, that moves no more bytes in all
than the plan for one host. Links are those of the `h100` preset.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import write_between

from tests.planning.stagings import Stagings

SHAPES = ((768, 3072), (1001, 777), (48, 48), (100003,))


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


def main() -> None:
    """The command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", type=Path, default=None, help="a page to write the table to, between its marks")
    said = options.parse_args()
    shown = table()
    if said.write is not None:
        write_between(said.write, "stagings", shown)


if __name__ == "__main__":
    main()
