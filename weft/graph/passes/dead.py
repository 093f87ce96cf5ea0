"""Dead code: what no output and no store needs is not computed."""

from __future__ import annotations

from ..lowering.program import Program
from .effects import writes

__all__ = ["drop_dead_code"]


def drop_dead_code(program: Program) -> int:
    """Take out the calls that nothing needs; how many went."""
    dropped = 0
    for node in reversed(list(program.fx.nodes)):
        if node.op == "call_function" and not node.users and not writes(node):
            program.fx.erase_node(node)
            dropped += 1
    _drop_constants(program)
    return dropped


def _drop_constants(program: Program) -> None:
    arguments = program.arguments[program.input_count :]
    kept = []
    for node, data in zip(arguments, program.constants, strict=True):
        if node.users:
            kept.append(data)
        else:
            program.fx.erase_node(node)
    program.constants = kept
