"""Numbers for the names in a graph, under which all its rules hold: what torch traces with."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..recording.sizes import value_of

if TYPE_CHECKING:
    from ..recording.constraint import Constraint
    from ..recording.graph import Graph

__all__ = ["example_sizes"]

_FIRST, _STEP, _ROUNDS = 420, 60, 32


def example_sizes(graph: Graph) -> Mapping[str, int] | None:
    """A number for each name, so that every constraint holds; `None` where none were found.

    Names get numbers that differ and divide by small ones. A broken rule moves the names in it until it holds.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["n", "m"])]) as graph:
    ...     halves = graph.inputs[0].reshape(["n * 22", "m // 22"])
    >>> example_sizes(graph)
    {'n': 420, 'm': 660}
    """
    sizes = {name: _FIRST + _STEP * i for i, name in enumerate(graph.symbols)}
    for _ in range(_ROUNDS):
        broken = next((rule for rule in graph.constraints if not rule.holds(sizes)), None)
        if broken is None:
            return sizes
        _mend(broken, sizes)
    return None


def _mend(broken: Constraint, sizes: dict[str, int]) -> None:
    """Move the names in a rule towards where it holds: grow what must be large, or to where the sides meet."""
    growing = broken.symbols if broken.relation == "==" else broken.right.symbols
    if broken.relation == "==" or not growing:
        for name in sorted(broken.symbols):
            meeting = _meeting(broken, sizes, name)
            if meeting > 1 and broken.holds({**sizes, name: meeting}):
                sizes[name] = meeting
                return
    factor = max(2, math.lcm(*map(int, re.findall(r"\b[1-9]\d*\b", str(broken)))))
    for name in growing:
        sizes[name] *= factor


def _meeting(rule: Constraint, sizes: Mapping[str, int], name: str) -> int:
    """Where the two sides meet as one name changes, if both are straight lines; else anywhere."""
    here, there = (
        value_of(rule.left, at) - value_of(rule.right, at) for at in (sizes, {**sizes, name: sizes[name] + _STEP})
    )
    return sizes[name] + -here * _STEP // (there - here) if there != here else 0
