"""Needless copies: a buffer that nobody writes to after it was read is read in place."""

from __future__ import annotations

import torch
from torch import fx

from ..lowering.program import Program
from .effects import root, touched_buffer, writes

__all__ = ["drop_needless_copies"]


def drop_needless_copies(program: Program) -> int:
    """Read buffers in place where nothing writes to them later; how many copies went."""
    written: set[fx.Node] = set()
    dropped = 0
    for node in reversed(list(program.fx.nodes)):
        if node.op != "call_function":
            continue
        if writes(node):
            assert isinstance(node.args[0], fx.Node)
            written.add(root(node.args[0]))
        elif node.target is torch.clone and (buffer := touched_buffer(node)) is not None and buffer not in written:
            node.replace_all_uses_with(buffer)
            program.fx.erase_node(node)
            dropped += 1
    return dropped
