"""The states that recurrent layers begin with, which lie as the batch does.

Torch begins with plain zeros, which are whole everywhere, and adds to them in place what comes of the batch: all of that would be
gathered, in each step. Each device needs the rows of the state only that are its own in the batch, and has them.
"""

from __future__ import annotations

import torch

from ..engine.dispatch_keys import give_first
from ..engine.moves.movement import layout_of, move
from ..sharding.layout import Layout

aten = torch.ops.aten

Tensors = list[torch.Tensor]


def _lies_like_batch(x: torch.Tensor, states: torch.Tensor | Tensors, *rest: object) -> tuple[object, ...]:
    """The arguments of a cell, whose rows are the batch."""
    return x, _split(states, x, 0, 0), *rest


def _layers_lie_like_batch(x: torch.Tensor, states: torch.Tensor | Tensors, *rest: object) -> tuple[object, ...]:
    """The arguments of layers: of their states the second dim is the batch, of what they read the first where they say so."""
    is_batch_first = bool(rest[-1])
    return x, _split(states, x, 0 if is_batch_first else 1, 1), *rest


def _split(states: torch.Tensor | Tensors, x: torch.Tensor, batch: int, dim: int) -> torch.Tensor | Tensors:
    """States of which a dim is split as the batch, a dim of `x`."""
    layout = layout_of(x)
    if layout is None or x.dim() <= batch or not layout.splits[batch]:
        return states
    axes, samples = layout.splits[batch], x.shape[batch]

    def split(state: torch.Tensor) -> torch.Tensor:
        own = layout_of(state)
        is_whole = own is None or (own.mesh == layout.mesh and not own.pending and not any(own.splits))
        if not is_whole or state.dim() <= dim or state.shape[dim] != samples:
            return state  # where it is of another size, torch says so
        return move(state, Layout.replicated(layout.mesh, state.dim()).with_split(dim, axes), op="a first state")

    return split(states) if isinstance(states, torch.Tensor) else [split(state) for state in states]


for _cell in (aten.lstm_cell, aten.gru_cell, aten.rnn_tanh_cell, aten.rnn_relu_cell):
    give_first(_cell.default, _lies_like_batch)
for _layers in (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu):
    give_first(_layers.input, _layers_lie_like_batch)
