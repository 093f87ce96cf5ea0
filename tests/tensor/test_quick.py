"""Ops are called by torch's functions where that is quicker: with the same arguments, to the same end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import weft.handlers  # noqa: F401 - which gives torch the ways back that it has no kernels for
from weft.engine.running.quick import _QUICK

aten = torch.ops.aten
OPS = {str(op): op for op in _QUICK}


def numbers(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5


SPECIAL: dict[torch._ops.OpOverload, list[tuple[Sequence[object], dict[str, object]]]] = {
    aten.addmm.default: [((numbers(5), numbers(4, 3), numbers(3, 5)), {}), ((numbers(5), numbers(4, 3), numbers(3, 5)), {"beta": 2, "alpha": 0.5})],
    aten.mm.default: [((numbers(4, 3), numbers(3, 5)), {})],
    aten.linear.default: [((numbers(2, 4, 3), numbers(5, 3), numbers(5)), {}), ((numbers(4, 3), numbers(5, 3)), {})],
    aten.linear_backward.default: [((numbers(2, 4, 3), numbers(2, 4, 5), numbers(5, 3), [True] * 3), {})],
    aten.matmul.default: [((numbers(2, 4, 3), numbers(5, 2, 3, 6)), {}), ((numbers(2, 4, 3), numbers(3, 6)), {})],
    aten.matmul_backward.default: [((numbers(2, 4, 6), numbers(2, 4, 3), numbers(3, 6), [True] * 2), {})],
    aten.bmm.default: [((numbers(2, 4, 3), numbers(2, 3, 5)), {})],
    aten.baddbmm.default: [((numbers(2, 4, 5), numbers(2, 4, 3), numbers(2, 3, 5)), {"beta": 2, "alpha": 0.5})],
    aten.embedding.default: [((numbers(4, 3), torch.tensor([[1, 3]])), {}), ((numbers(4, 3), torch.tensor([1]), 1, True, False), {})],
    aten.view.default: [((numbers(4, 6), [2, -1]), {}), ((numbers(1), []), {})],
    aten.expand.default: [((numbers(4, 1), [2, -1, 3]), {}), ((numbers(4, 1), [4, 5]), {"implicit": True})],
    aten.permute.default: [((numbers(4, 6), [1, 0]), {})],
    aten.native_layer_norm.default: [((numbers(4, 6), [6], numbers(6), None, 1e-5), {}), ((numbers(4, 6), [4, 6], None, None, 0.1), {})],
    aten.where.self: [((numbers(4, 6) > 1, numbers(4, 6), numbers(6)), {})],
    aten.sum.dim_IntList: [((numbers(4, 6), [1]), {}), ((numbers(4, 6), None, True), {"dtype": torch.float32}), ((numbers(4, 6), [0, -1]), {})],
    aten.sum.default: [((numbers(4, 6),), {}), ((numbers(4, 6),), {"dtype": torch.float32})],
    aten.mean.default: [((numbers(4, 6),), {"dtype": torch.float32})],
    aten.mean.dim: [((numbers(4, 6), [1], True), {}), ((numbers(4, 6), None), {"dtype": torch.float32})],
    aten.amax.default: [((numbers(4, 6),), {}), ((numbers(4, 6), [0], True), {})],
    aten.gelu.default: [((numbers(4, 6),), {}), ((numbers(4, 6),), {"approximate": "tanh"})],
    aten.clone.default: [((numbers(4, 6).t(),), {}), ((numbers(4, 6).t(),), {"memory_format": torch.contiguous_format})],
    aten.select.int: [((numbers(4, 6), -1, -2), {})],
    aten.squeeze.dim: [((numbers(4, 1), 1), {}), ((numbers(4, 1), 0), {})],
    aten.unsqueeze.default: [((numbers(4, 6), -1), {})],
    aten.transpose.int: [((numbers(4, 6), -1, 0), {})],
    aten._softmax.default: [((numbers(4, 6), -1, False), {})],
    aten._log_softmax.default: [((numbers(4, 6), 0, False), {})],
    aten.add.Tensor: [((numbers(4, 6), numbers(6)), {"alpha": 3}), ((numbers(4, 6), 2), {}), ((numbers(4, 6), 0.5), {"alpha": 2})],
    aten.add_.Tensor: [((numbers(4, 6), numbers(6)), {"alpha": -0.1}), ((numbers(4, 6), 2), {})],
    aten.sub_.Tensor: [((numbers(4, 6), numbers(6)), {"alpha": -0.1})],
    aten.copy_.default: [((numbers(4, 6), torch.ones(6)), {}), ((numbers(4, 6), torch.ones(6), True), {})],
    aten.addcdiv_.default: [((numbers(4, 6), numbers(4, 6), numbers(6)), {"value": -0.1})],
    aten.addcmul_.default: [((numbers(4, 6), numbers(4, 6), numbers(6)), {"value": 2})],
    aten.lerp_.Scalar: [((numbers(4, 6), numbers(6) * 2, 0.1), {})],
    aten.fill_.Scalar: [((numbers(4, 6), 3), {})],
    aten.pow.Tensor_Scalar: [((numbers(4, 6), 2), {}), ((torch.arange(4), 3), {})],
}  # fmt: skip


def calls(op: torch._ops.OpOverload) -> list[tuple[Sequence[object], dict[str, object]]]:
    """Ways to call an op: those above, or with one tensor, or two, or a tensor and a number."""
    if op in SPECIAL:
        return SPECIAL[op]
    scalar = op._schema.overload_name == "Scalar"
    required = [a for a in op._schema.arguments if not a.has_default_value()]
    first = numbers(4, 6)
    return [((first, 1.0 if scalar else numbers(6)) if len(required) == 2 else (first,), {})]


@pytest.mark.parametrize("name", OPS)
def test_function_and_overload(name: str) -> None:
    op = OPS[name]
    for args, kwargs in calls(op):
        results = []
        for call in (op, _QUICK[op]):
            given = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
            result = call(*given, **kwargs)
            listed = result if isinstance(result, tuple) else (result,)
            results.append([(x, x.stride(), x.dtype, x._base is given[0] or x is given[0]) for x in listed])
        for (one, *facts), (other, *others) in zip(*results, strict=True):
            assert torch.equal(one, other)
            assert facts == others
