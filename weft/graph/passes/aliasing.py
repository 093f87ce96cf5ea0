"""Which outputs share memory with something that can be seen from outside."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import final

from torch import fx

from ..lowering.program import Program
from .effects import is_pure, root

__all__ = ["Sharing", "shared_outputs"]


@final
@dataclass(frozen=True, slots=True)
class Sharing:
    """The outputs that must become their own: `lazily`, when somebody writes, or `now`, since somebody will."""

    lazily: tuple[int, ...] = ()
    now: tuple[int, ...] = ()


def shared_outputs(program: Program, buffers: AbstractSet[int]) -> Sharing:
    """The outputs that look at an input's, a constant's or another output's memory, or may.

    `buffers` are the positions of the inputs that are written to from outside.
    """
    arguments = program.arguments
    written = {arguments[i] for i in buffers}
    (output,) = (node for node in program.fx.nodes if node.op == "output")
    values = output.args[0]
    assert isinstance(values, tuple)
    seen: set[fx.Node] = set()
    lazily, now = [], []
    for i, value in enumerate(values):
        assert isinstance(value, fx.Node)
        source = root(value)
        if source in written or not is_pure(source):
            now.append(i)
        elif source in seen or source.op == "placeholder":
            lazily.append(i)
        seen.add(source)
    return Sharing(tuple(lazily), tuple(now))
