"""Which outputs share memory with something that can be seen from outside."""

from __future__ import annotations

from torch import fx

from weft.graph.lowering import Program
from weft.graph.passes.effects import is_pure, root

__all__ = ["shared_outputs"]


def shared_outputs(program: Program) -> list[int]:
    """The outputs that look at an input's, a constant's or another output's memory, or may."""
    (output,) = (node for node in program.fx.nodes if node.op == "output")
    seen: set[fx.Node] = set()
    shared = []
    values = output.args[0]
    assert isinstance(values, tuple)
    for i, value in enumerate(values):
        assert isinstance(value, fx.Node)
        source = root(value)
        if (
            source in seen
            or source.op == "placeholder"
            or not is_pure(source)
            or source.meta["call"].op.name == "checked"
        ):
            shared.append(i)
        seen.add(source)
    return shared
