"""Sums and means of bags of embeddings: the features may be split, the table and the bags are whole."""

from __future__ import annotations

import torch

from .arguments import arranged, tensor_names
from .factors import Dims, Factors
from .registry import Call, Rule, rules

aten = torch.ops.aten

_LARGEST = 2
"""torch's number for the largest of a bag, whose place differs between features."""


def _bagged(call: Call) -> Factors | None:
    """Beside the result, torch gives what depends on the bags only."""
    if call.arg("mode") == _LARGEST:
        return None
    features: Dims = ((), ("e",))
    inputs = arranged(call, _whole(call) | {"weight": features})
    sizes = {"e": call.tensors[0].shape[1]}
    return Factors(inputs, (features, ((),), ((),), ((),)), sizes, repeated=frozenset((k, "e") for k in (1, 2, 3)))


def _bagged_backward(call: Call) -> Factors | None:
    if call.arg("mode") == _LARGEST or call.arg("sparse"):
        return None
    features: Dims = ((), ("e",))
    inputs = arranged(call, _whole(call) | {"grad": features})
    return Factors(inputs, (features,), {"e": call.tensors[0].shape[1]}, linear=0)


def _whole(call: Call) -> dict[str, Dims]:
    return {name: ((),) * spec.ndim for name, spec in zip(tensor_names(call), call.tensors, strict=True)}


for _op in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
    rules[_op] = Rule(_bagged)
for _op in (aten._embedding_bag_backward.default, aten._embedding_bag_dense_backward.default):
    rules[_op] = Rule(_bagged_backward)
