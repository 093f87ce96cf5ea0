"""Linear algebra of many matrices: the matrices are whole, the dims ahead of them may be split.

cdist    b p m!, b r m! -> b p r
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...sharding.placements import ReduceOp
from ..call import BoundCall
from ..dims import one_each
from ..factors import Dims, Factors
from ..registry import Rule, rules

aten = torch.ops.aten


def _batched(inputs: Sequence[int], outputs: Sequence[int]) -> Rule:
    """The rule of an op on matrices: how many dims of each tensor, and of each result, belong to one matrix."""

    def factors(call: BoundCall) -> Factors | None:
        first, *others = [spec.shape[: spec.ndim - own] for spec, own in zip(call.tensors, inputs, strict=True)]
        return _ahead(first, inputs, outputs) if all(ahead == first for ahead in others) else None

    return Rule(factors)


def _ahead(shape: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Factors:
    batch = [f"d{i}" for i in range(len(shape))]

    def dims(own: int) -> Dims:
        return one_each([*batch, *[None] * own])

    return Factors(tuple(map(dims, inputs)), tuple(map(dims, outputs)), dict(zip(batch, shape, strict=True)))


def _solve(call: BoundCall) -> Factors | None:
    """A matrix and right-hand sides, which are matrices or vectors."""
    matrix, given = call.tensors
    ahead = matrix.shape[:-2]
    if given.shape[:-1] == (*ahead, matrix.shape[-2]) and given.ndim == matrix.ndim:
        return _ahead(ahead, (2, 2), (2, 2, 1, 0))
    return _ahead(ahead, (2, 1), (1, 2, 1, 0)) if given.shape == matrix.shape[:-1] else None


rules |= {
    aten._linalg_svd.default: _batched((2,), (2, 1, 2)),
    aten._linalg_eigh.default: _batched((2,), (1, 2)),
    aten.linalg_eig.default: _batched((2,), (1, 2)),
    aten.linalg_inv_ex.default: _batched((2,), (2, 0)),
    aten.linalg_cholesky_ex.default: _batched((2,), (2, 0)),
    aten.cholesky_inverse.default: _batched((2,), (2,)),
    aten.linalg_qr.default: _batched((2,), (2, 2)),
    aten._linalg_det.default: _batched((2,), (0, 2, 1)),
    aten._linalg_slogdet.default: _batched((2,), (0, 0, 2, 1)),
    aten.linalg_lu.default: _batched((2,), (2, 2, 2)),
    aten.linalg_lu_factor_ex.default: _batched((2,), (2, 1, 0)),
    aten.linalg_ldl_factor_ex.default: _batched((2,), (2, 1, 0)),
    aten.linalg_matrix_exp.default: _batched((2,), (2,)),
    aten.linalg_solve_triangular.default: _batched((2, 2), (2,)),
    aten.linalg_lu_solve.default: _batched((2, 1, 2), (2,)),
    aten._linalg_solve_ex.default: Rule(_solve),
}


class _Pairs:
    """The factors of the distances between two sets of points."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        batch = [f"d{i}" for i in range(first.ndim - 2)]
        self.fit = first.shape[:-2] == second.shape[:-2]
        self.sizes = dict(zip(batch, first.shape, strict=False)) | {"p": first.shape[-2], "r": second.shape[-2]}
        self.first, self.second = one_each([*batch, "p", None]), one_each([*batch, "r", None])
        self.distances = one_each([*batch, "p", "r"])


def _cdist(call: BoundCall) -> Factors | None:
    pairs = _Pairs(*call.tensors)
    return Factors((pairs.first, pairs.second), (pairs.distances,), pairs.sizes) if pairs.fit else None


def _cdist_backward(call: BoundCall) -> Factors | None:
    """The gradient of the first points: a sum over the second ones."""
    _, first, second, _ = call.tensors
    pairs = _Pairs(first, second)
    inputs = (pairs.distances, pairs.first, pairs.second, pairs.distances)
    return Factors(inputs, (pairs.first,), pairs.sizes, linear=0) if pairs.fit else None


rules |= {
    aten._cdist_forward.default: Rule(_cdist, of_nothing=ReduceOp.SUM),
    aten._cdist_backward.default: Rule(_cdist_backward, of_nothing=ReduceOp.SUM),
}
