"""Common subexpressions: the same call of the same things is made once.

Where devices share memory, this is also what makes replicas cost nothing: eight devices that compute the same from
one broadcast value compute it once.
"""

from __future__ import annotations

import torch
from torch import fx

from ..lowering.program import Program
from .effects import is_pure, writes

__all__ = ["merge_common_subexpressions"]

_SMALL = 64
"""Constants of up to this many elements are compared."""


def merge_common_subexpressions(program: Program) -> int:
    """Make equal calls one; how many went."""
    merged = _merge_constants(program)
    seen: dict[object, fx.Node] = {}
    for node in list(program.fx.nodes):
        if node.op != "call_function" or not is_pure(node) or writes(node):
            continue
        key = (node.target, _key(node.args), _key(tuple(sorted(node.kwargs.items()))))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            program.fx.erase_node(node)
            merged += 1
    return merged


def _key(argument: object) -> object:
    if isinstance(argument, (tuple, list)):
        return tuple(_key(item) for item in argument)
    if isinstance(argument, slice):
        return ("slice", _key((argument.start, argument.stop, argument.step)))
    # 1, 1.0 and True are equal in Python and differ in torch.
    return (type(argument), repr(argument) if isinstance(argument, float) else argument)


def _merge_constants(program: Program) -> int:
    arguments = program.arguments[program.input_count :]
    seen: dict[object, fx.Node] = {}
    merged = 0
    for node, data in zip(arguments, program.constants, strict=True):
        if data.numel() > _SMALL:
            continue
        bits = data.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
        first = seen.setdefault((data.dtype, data.shape, data.device, bits), node)
        if first is not node:
            node.replace_all_uses_with(first)
            merged += 1
    return merged
