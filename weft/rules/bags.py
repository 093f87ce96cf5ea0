"""Sums and means of bags of embeddings: rows and features of the table may be split, the bags are whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from .arguments import arranged, tensor_names
from .bounds import Bound
from .call import BoundCall
from .factors import Dims, Factors
from .registry import Region, Rule, rules

__all__ = ["LARGEST"]

aten = torch.ops.aten

_SUM, _MEAN, LARGEST = range(3)
"""torch's numbers for what is made of a bag; the place of the largest differs between features."""


def _bagged(call: BoundCall) -> Factors | None:
    """Beside the result, torch gives what depends on the bags only."""
    if call.arg("mode") == LARGEST or 0 in call.tensors[0].shape:
        return None
    inputs = arranged(call, _whole(call) | {"weight": (("v",), ("e",))})
    rows, features = call.tensors[0].shape
    outputs: tuple[Dims, ...] = (((), ("e",)), ((),), ((),), ((),))
    repeated = frozenset((k, name) for k in (1, 2, 3) for name in "ve")
    return Factors(inputs, outputs, {"v": rows, "e": features}, repeated=repeated)


def _bagged_backward(call: BoundCall) -> Factors | None:
    if call.arg("mode") == LARGEST or call.arg("sparse"):
        return None
    features: Dims = ((), ("e",))
    inputs = arranged(call, _whole(call) | {"grad": features})
    return Factors(inputs, (features,), {"e": call.tensors[0].shape[1]}, linear=0)


def _whole(call: BoundCall) -> dict[str, Dims]:
    return {name: ((),) * spec.ndim for name, spec in zip(tensor_names(call), call.tensors, strict=True)}


def _rows(call: BoundCall) -> tuple[Bound, ...]:
    rows = call.tensors[0].shape[0]
    words = "index {index} of a bag is not in the valid range [0, {size})"
    return (Bound(1, 0, rows, error=RuntimeError, words=words),)


def _bagged_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """The sums of the rows that are here: bags lose what others have of them, and nothing is said of that row."""
    func, args, kwargs = call.func, call.args, call.kwargs
    if inputs[0].is_whole(0):
        return func(*args, **kwargs)
    given = _by_name(func, args, kwargs)
    weight, index, offsets = (cast(torch.Tensor, given[name]) for name in ("weight", "indices", "offsets"))
    ones = torch.ones((1, 1), dtype=torch.float32, device=weight.device).expand(inputs[0].whole[0], 1)
    mean = given["mode"] == _MEAN
    _, *others = func(**given | {"weight": ones, "per_sample_weights": None})
    start, stop = inputs[0].box[0]
    here = (index >= start) & (index < stop)
    before = torch.cat([here.new_zeros(1, dtype=offsets.dtype), here.cumsum(0, dtype=offsets.dtype)])
    factors, padding = given["per_sample_weights"], cast(int, given["padding_idx"])
    own = {
        "indices": index[here] - start,
        "offsets": before[offsets.long()],
        "mode": _SUM,
        "per_sample_weights": None if factors is None else cast(torch.Tensor, factors)[here],
        "padding_idx": padding - start if start <= padding < stop else -1,
    }
    total = func(**given | own)[0] if stop > start else weight.new_zeros(outputs[0].shape)
    if mean:
        total = total / func(**given | {"weight": ones, "mode": _SUM})[0].clamp(min=1).to(total.dtype)
    return (total, *others)


def _by_name(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    """All arguments of a call, those that are left out too."""
    arguments = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return defaults | {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs


for _op in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
    rules[_op] = Rule(_bagged, local=_bagged_here, bounds=_rows)
for _op in (aten._embedding_bag_backward.default, aten._embedding_bag_dense_backward.default):
    rules[_op] = Rule(_bagged_backward)
