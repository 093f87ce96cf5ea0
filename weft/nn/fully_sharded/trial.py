"""What a block would move with its parameters left split: found by running it on tensors without memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import cast

import optree
import torch
from torch.nn.utils import stateless

from ...engine.moves.movement import layout_of
from ...watch.comm_log import comm_log, paused

__all__ = ["bytes_when_split", "form_of_arguments"]


def form_of_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
    """What of a block's arguments decides on what it moves."""
    return tuple(
        (tuple(x.shape), x.dtype, layout_of(x), x.requires_grad) if isinstance(x, torch.Tensor) else type(x)
        for x in optree.tree_leaves(_tree((args, kwargs)), none_is_leaf=True)
    )


def bytes_when_split(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> int:
    """The bytes that the busiest device of each movement receives, forward and backward, with the parameters as they lie."""
    with torch.random.fork_rng(devices=()), torch.enable_grad(), paused(), comm_log() as log:
        tensors = {name: _without_memory(x) for name, x in (*module.named_parameters(), *module.named_buffers())}
        given = [_imagined(x) for x in args]
        named = {name: _imagined(x) for name, x in kwargs.items()}
        with stateless._reparametrize_module(module, tensors):
            output = module.forward(*given, **named)
        outputs = [x for x in optree.tree_leaves(_tree(output)) if isinstance(x, torch.Tensor) and x.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
    return log.bytes_received


def _imagined(x: object) -> object:
    """An argument, its tensors without memory."""
    return optree.tree_map(
        lambda leaf: _without_memory(leaf) if isinstance(leaf, torch.Tensor) else leaf, _tree(x), none_is_leaf=True
    )


def _without_memory(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to("meta").requires_grad_(x.requires_grad)


def _tree(x: object) -> optree.PyTree[object]:
    return cast("optree.PyTree[object]", x)
