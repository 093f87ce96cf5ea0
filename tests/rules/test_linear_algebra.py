"""Linear algebra of many matrices in every layout: a split batch moves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as nn

import weft
from weft import P
from weft.sharding.layout import Layout

from .case import Case
from .harness import GRID, laid, memory, moved_bytes


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + 4 * torch.eye(3, dtype=x.dtype)


MATRICES: dict[str, Callable[[torch.Tensor], object]] = {
    "singular values": torch.linalg.svdvals,
    "svd": lambda x: torch.linalg.svd(x)[1],
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x + x.mT),
    "inverse": lambda x: torch.linalg.inv(_positive(x)),
    "cholesky": lambda x: torch.linalg.cholesky(_positive(x)),
    "qr": lambda x: torch.linalg.qr(x)[1],
    "determinant": torch.linalg.det,
    "log determinant": lambda x: torch.linalg.slogdet(x)[1],
    "lu": lambda x: torch.linalg.lu(_positive(x))[1:],
    "lu_factor": lambda x: torch.linalg.lu_factor(_positive(x))[0],
    "matrix_exp": torch.linalg.matrix_exp,
    "matrix_power": lambda x: torch.linalg.matrix_power(x, 3),
    "pinv": torch.linalg.pinv,
    "solve": lambda x: torch.linalg.solve(_positive(x), x),
    "solve vectors": lambda x: torch.linalg.solve(_positive(x), x[..., 0]),
    "solve many alike": lambda x: torch.linalg.solve(_positive(x), x[0]),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(_positive(x), x, upper=True),
}
BATCH = numbers(5, 3, 3)


BATCHES = {name: Case(function, (BATCH,), limit=4, rtol=1e-8, atol=1e-8) for name, function in MATRICES.items()}


@pytest.mark.parametrize("name", BATCHES)
def test_many_matrices(name: str) -> None:
    BATCHES[name].check()


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "svd": lambda x: torch.linalg.svd(x / x),
    "eigh": lambda x: torch.linalg.eigh(x / x),
    "cholesky": torch.linalg.cholesky,
    "cholesky_inverse": torch.cholesky_inverse,
    "inv": torch.linalg.inv,
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(x, check_errors=True),
    "inv_ex": lambda x: torch.linalg.inv_ex(x, check_errors=True),
    "solve_ex": lambda x: torch.linalg.solve_ex(x, x, check_errors=True),
    "lu_factor_ex": lambda x: torch.linalg.lu_factor_ex(x, check_errors=True),
}


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
@pytest.mark.parametrize("axes", [((), ("a",)), (("b",), ("a",)), (("a", "b"), ())], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_matrices_that_are_refused_are_counted_as_in_the_whole(
    name: str, axes: tuple[tuple[str, ...], ...], separate: bool
) -> None:
    x = (numbers(1, 1, 3, 3).abs() + 4 * torch.eye(3, dtype=torch.float64)).repeat(2, 4, 1, 1)
    x = x + x.mT
    x[0, 3] = x[1, 0] = 0  # the first of which another device has than the first
    with pytest.raises(RuntimeError, match=r"Batch element 3") as plain:
        REFUSED[name](x)
    with memory(separate):
        there = laid(x, Layout(GRID, [*axes, (), ()]))
        for _ in range(2):  # also when the call is known
            with pytest.raises(type(plain.value)) as told:
                REFUSED[name](there)
            assert str(told.value) == str(plain.value)


PAIRS: dict[str, tuple[Callable[..., object], tuple[tuple[int, ...], ...]]] = {
    "cdist": (torch.cdist, ((2, 4, 3), (2, 5, 3))),
    "cdist of one norm": (lambda x, y: torch.cdist(x, y, p=1), ((4, 3), (5, 3))),
    "cdist, broadcast": (torch.cdist, ((2, 4, 3), (5, 3))),
    "bilinear": (nn.bilinear, ((4, 3), (4, 2), (5, 3, 2))),
}


SETS = {
    name: Case(function, tuple(numbers(*shape, seed=i) for i, shape in enumerate(shapes)))
    for name, (function, shapes) in PAIRS.items()
}


@pytest.mark.parametrize("name", SETS)
def test_pairs(name: str) -> None:
    SETS[name].check()


@pytest.mark.parametrize("separate", [False, True])
def test_a_split_batch_moves_no_matrix(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(8, 3, 3), Layout(GRID, [("a",), (), ()]))
        for name in MATRICES.keys() - {"solve many alike", "pinv"}:  # which take matrices apart
            # Whether an inverse exists is asked of all, one number for each.
            assert moved_bytes(lambda name=name: MATRICES[name](x)) <= 8 * 4 * 2, name
        points, others = (
            laid(numbers(8, 3), Layout(GRID, [("a",), ()])),
            laid(numbers(6, 3), Layout(GRID, [("b",), ()])),
        )
        assert moved_bytes(lambda: torch.cdist(points, others)) == 0


@pytest.mark.parametrize("separate", [True, False], ids=["apart", "one"])
def test_solutions_that_kernels_mark_as_conjugates_are_read_as_numbers(separate: bool) -> None:
    x = torch.randn(4, 2, 2, dtype=torch.complex128) + 4 * torch.eye(2)
    solved = torch.view_as_real(torch.linalg.solve(x, x.mT, left=False).resolve_conj())
    with memory(separate):
        y = weft.shard(x, weft.make_mesh({"dp": 2}), P("dp"))
        for _ in range(2):
            by_factors = torch.linalg.lu_solve(*torch.linalg.lu_factor(y), y.mT, left=False)
            for each in (torch.linalg.solve(y, y.mT, left=False), by_factors):
                torch.testing.assert_close(torch.view_as_real(each.resolve_conj()).full_tensor(), solved)
