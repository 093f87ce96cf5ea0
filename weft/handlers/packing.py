"""Padded batches in forms of their own: packed sequences, and what torch's transformer encoder leaves out of a batch.

A packed sequence is two tensors. How many sequences each step has is read by torch itself, so it is plain. The encoder's
fast path makes a nested tensor, which has no layout; here it stays padded, and knows what is kept of it.
"""

from __future__ import annotations

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.moves.movement import to_plain
from ..engine.sharded import ShardedTensor
from ..rules.call import BoundCall

aten = torch.ops.aten

_KEPT = "_kept_of_padded"
"""The attribute of a padded tensor that says which positions the nested tensor it stands for has."""
_PADDING_MASK = 1
"""How torch's encoder layer is told that a mask is one of padding."""


@handler(aten._pack_padded_sequence.default)
def _packed(call: BoundCall) -> object:
    """What torch packs is what it would take of each step; the lengths are read on the host, wherever the batch lies."""
    x, lengths = call.tensor("input"), call.tensor("lengths")
    lengths = (to_plain(lengths) if isinstance(lengths, ShardedTensor) else lengths).cpu()
    sizes = call.replaced(input=torch.empty((*x.shape[:2], 1)), lengths=lengths).results()[1]
    if not isinstance(x, ShardedTensor):
        return call.replaced(lengths=lengths).results()[0], sizes
    steps = torch.arange(len(sizes)).repeat_interleave(sizes)
    sequences = torch.cat([torch.arange(count) for count in sizes.tolist()])
    taken = [sequences, steps] if call.flag("batch_first") else [steps, sequences]
    return aten.index.Tensor(x, [index.to(x.device) for index in taken]), sizes


@handler(aten._nested_tensor_from_mask.default)
def _left_out(call: BoundCall) -> object:
    x, kept = call.tensor("t"), call.tensor("mask")
    return _with_kept(torch.where(kept.unsqueeze(-1), x, torch.zeros((), dtype=x.dtype, device=x.device)), kept)


def _with_kept(padded: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    padded.__dict__[_KEPT] = kept
    return padded


@handler(aten._transformer_encoder_layer_fwd.default)
def _layer(call: BoundCall) -> object:
    kept = getattr(call.tensor("src"), _KEPT, None)
    if kept is None:
        return run_by_rule(call)
    result = run_by_rule(call.replaced(mask=kept.logical_not(), mask_type=_PADDING_MASK))
    assert isinstance(result, torch.Tensor)
    return _with_kept(result, kept)


@handler(aten.to_padded_tensor.default)
def _padded(call: BoundCall) -> object:
    x = call.tensor("self")
    kept = getattr(x, _KEPT, None)
    if kept is None:
        raise NotImplementedError(
            "sharded tensors have no nested form, and an encoder layer that torch's fast path does not take (one with hooks, "
            "say) cannot leave padding out: make the encoder with enable_nested_tensor=False"
        )
    padding = torch.full((), call.number("padding"), dtype=x.dtype, device=x.device)
    return torch.where(kept.unsqueeze(-1), x, padding)
