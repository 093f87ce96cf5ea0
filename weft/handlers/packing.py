"""Padded batches in forms of their own: packed sequences, and what torch's transformer encoder leaves out of a batch.

A packed sequence is two tensors. How many sequences each step has is read by torch itself, so it is plain. The encoder's
fast path makes a nested tensor, which has no layout; here it stays padded, and knows what is kept of it.
"""

from __future__ import annotations

from typing import cast

import torch

from ..engine.arguments import argument
from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.moves.movement import to_plain
from ..engine.sharded import ShardedTensor
from ..rules.call import BoundCall

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]

_KEPT = "_kept_of_padded"
"""The attribute of a padded tensor that says which positions the nested tensor it stands for has."""
_PADDING_MASK = 1
"""How torch's encoder layer is told that a mask is one of padding."""


@handler(aten._pack_padded_sequence.default)
def _packed(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, lengths, batch_first = cast("tuple[torch.Tensor, torch.Tensor, bool]", args)
    lengths = to_plain(lengths) if isinstance(lengths, ShardedTensor) else lengths
    sizes = func(torch.empty((*x.shape[:2], 1)), lengths, batch_first)[1]
    if not isinstance(x, ShardedTensor):
        return func(x, lengths, batch_first)[0], sizes
    data, _ = cast("tuple[torch.Tensor, torch.Tensor]", run_by_rule(BoundCall(func, (x, lengths, batch_first), kwargs)))
    return data, sizes


@handler(aten._nested_tensor_from_mask.default)
def _left_out(call: BoundCall) -> object:
    args = call.args
    x, kept = cast("tuple[torch.Tensor, torch.Tensor]", args[:2])
    padded = torch.where(kept.unsqueeze(-1), x, torch.zeros((), dtype=x.dtype, device=x.device))
    padded.__dict__[_KEPT] = kept
    return padded


@handler(aten._transformer_encoder_layer_fwd.default)
def _layer(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    kept = getattr(args[0], _KEPT, None)
    if kept is None:
        return run_by_rule(call)
    names = [a.name for a in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs | {"mask": kept.logical_not(), "mask_type": _PADDING_MASK}
    result = cast(torch.Tensor, run_by_rule(BoundCall(func, tuple(given[name] for name in names), {})))
    result.__dict__[_KEPT] = kept
    return result


@handler(aten.to_padded_tensor.default)
def _padded(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(torch.Tensor, args[0])
    kept = getattr(x, _KEPT, None)
    if kept is None:
        raise NotImplementedError(
            "sharded tensors have no nested form, and an encoder layer that torch's fast path does not take (one with hooks, "
            "say) cannot leave padding out: make the encoder with enable_nested_tensor=False"
        )
    padding = torch.full(
        (), float(cast(float, argument(func, args, kwargs, "padding"))), dtype=x.dtype, device=x.device
    )
    return torch.where(kept.unsqueeze(-1), x, padding)
