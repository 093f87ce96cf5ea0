"""Constants are moved to their devices when the model is loaded, not when it runs."""

from __future__ import annotations

import torch
from torch import fx

from ..lowering.program import Program
from ..recording.op import Kind

__all__ = ["hoist_constant_movements"]

_HOISTED = frozenset({Kind.MOVEMENT, Kind.COLLECTIVE, Kind.VIEW})


def hoist_constant_movements(program: Program) -> int:
    """Do now what only moves or cuts constants; how many calls went."""
    arguments = program.arguments
    known: dict[fx.Node, object] = dict(zip(arguments[program.input_count :], program.constants, strict=True))
    hoisted: list[fx.Node] = []
    for node in program.fx.nodes:
        if node.op != "call_function" or node.meta["kind"] not in _HOISTED:
            continue
        if node.all_input_nodes and all(used in known for used in node.all_input_nodes):
            assert callable(node.target)
            known[node] = node.target(*fx.node.map_arg(node.args, known.__getitem__))  # type: ignore[arg-type]
            hoisted.append(node)
    anchor = arguments[-1] if arguments else None
    for node in hoisted:
        data = known[node]
        needed = any(user not in known for user in node.users)
        if needed and isinstance(data, torch.Tensor) and anchor is not None:
            with program.fx.inserting_after(anchor):
                anchor = program.fx.placeholder(f"hoisted_{node.name}")
            node.replace_all_uses_with(anchor)
            # A view stays one: written out, a number stretched to a matrix would take a matrix of memory.
            program.constants.append(data if node.meta["kind"] is Kind.VIEW else data.contiguous())
    return len(hoisted)
