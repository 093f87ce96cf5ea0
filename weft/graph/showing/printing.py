"""A graph as text that a reader can follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from ..recording.op import PART, Argument, RecordedCall
from ..recording.types import TensorType

if TYPE_CHECKING:
    from ..recording.graph import Graph

__all__ = ["argument_text", "text"]

COLUMN = 34
"""Where the types start."""

_IN_A_ROW = 3
"""How many inputs, and half as many names, are written in one row."""


def text(graph: Graph) -> str:
    """The graph, one line an operation, each with its type."""
    inputs = [f"{value.name}: {value.type}" for value in graph.inputs]
    if len(inputs) <= _IN_A_ROW:
        lines = [f"graph {graph.name}({', '.join(inputs)})"]
    else:
        lines = [f"graph {graph.name}(", *(f"    {line}," for line in inputs), ")"]
    for node in graph.nodes:
        call: RecordedCall = node.meta["call"]
        if call.op is PART:
            continue
        results = _row([user.name for user in _parts(node)]) if call.many else node.name
        written = ", ".join(
            [*map(argument_text, call.args), *(f"{k}={argument_text(v)}" for k, v in call.kwargs.items())]
        )
        left = f"  {results} = {call.op.name}({written})" if call.types else f"  {call.op.name}({written})"
        lines.append(f"{left:<{COLUMN}}  {_types(call.types)}".rstrip())
    lines += [f"  where {constraint}" for constraint in graph.constraints]
    if graph.outputs is not None:
        lines.append(f"  return {', '.join(value.name for value in graph.results)}")
    return "\n".join(lines)


def argument_text(argument: Argument) -> str:
    """One argument of a call."""
    if hasattr(argument, "node"):
        return str(argument.node.name)
    if isinstance(argument, fx.Node):
        return argument.name
    if isinstance(argument, torch.Tensor):
        return str(argument.item()) if argument.ndim == 0 else f"<{argument.numel()} numbers>"
    if isinstance(argument, (tuple, list)):
        return f"[{_row([*map(argument_text, argument)])}]"
    return str(getattr(argument, "__name__", argument)) if callable(argument) else str(argument)


def _parts(node: fx.Node) -> list[fx.Node]:
    parts = [user for user in node.users if user.meta["call"].op is PART]
    return sorted(parts, key=lambda part: int(part.meta["call"].args[1]))


def _types(types: tuple[TensorType, ...]) -> str:
    """The types; of many alike, what they share and the devices they are on."""
    if len(types) > 1 and len({(t.dtype, t.shape) for t in types}) == 1:
        shared = str(types[0]).rsplit(" on ", 1)[0]
        return f"{shared} on {_row([*dict.fromkeys(str(t.device) for t in types)])}"
    return _row([*map(str, types)])


def _row(names: list[str]) -> str:
    """Names with commas; of many, the first, the second and the last."""
    return ", ".join(names) if len(names) <= 2 * _IN_A_ROW else f"{names[0]}, {names[1]}, .., {names[-1]}"
