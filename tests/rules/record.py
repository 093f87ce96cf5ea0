"""The record: what every op of PyTorch's database does with sharded tensors, sample by sample and layout by layout.

A line says where the results lie and what moved for them, then the same of the gradients:

    mm, first dim split: (x, –); all_gather x 120 | (x, –), (x, –); –

Where the two memories differ, the line of memories apart is followed by one that begins with `one memory:`.
A change that alters a line is a change of behaviour: it is read, and explained in the commit that makes it.

    python -m tests.rules.record        writes the file anew
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

from .harness import memory
from .opinfo import LAYOUTS, name_of, op_infos, tried_largest

FILE = Path(__file__).with_name("record.txt")


def lines(op: object) -> Iterator[str]:
    """The lines of one op."""
    for layout in LAYOUTS:
        apart, together = (_record(op, layout, separate) for separate in (True, False))
        yield f"{name_of(op)}, {layout}: {apart}"
        if apart != together:
            yield f"    one memory: {together}"


def _record(op: object, layout: str, separate: bool) -> str:
    with memory(separate):
        return tried_largest(op, layout).record


def recorded() -> dict[str, list[str]]:
    """The lines on file, by op."""
    found: dict[str, list[str]] = {}
    for line in FILE.read_text().splitlines():
        if not line.startswith(" "):
            name = line.partition(", ")[0]
        found.setdefault(name, []).append(line)
    return found


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        FILE.write_text("".join(f"{line}\n" for op in sorted(op_infos(), key=name_of) for line in lines(op)))
