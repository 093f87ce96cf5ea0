"""Lookups and writes by index in any layout are those of the whole tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import weft
from weft import P
from weft.runtime.machine import use_separate_memory

from .case import Case
from .harness import GRID

G = torch.Generator().manual_seed(4)
X = torch.randn(5, 4, dtype=torch.float64, generator=G)
Y = torch.randn(5, 4, dtype=torch.float64, generator=G)
I = torch.tensor([3, 0, 4, 3, 1, 2])  # noqa: E741
J = torch.randint(0, 4, (5, 4), generator=G)

LOOKUPS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select columns": lambda x, i: x.index_select(1, i % 4),
    "index": lambda x, i: x[i],
    "index column": lambda x, i: x[:, i % 4],
    "index negative": lambda x, i: x[i - 5],
    "index both": lambda x, i: x[i, i % 4],
    "index 2d": lambda x, i: x[i.view(2, 3)],
    "index broadcast": lambda x, i: x[i[:, None], (i % 4)[None, :3]],
    "index and slice": lambda x, i: x[1:][i % 4, 1:3],
    "index apart": lambda x, i: x[:, None][i, :, i % 4],
    "index by a list": lambda x, _i: x[[0, 2, 2]],
    "embedding": lambda x, i: functional.embedding(i, x),
    "embedding 2d": lambda x, i: functional.embedding(i.view(3, 2), x),
    "embedding padding": lambda x, i: functional.embedding(i, x, padding_idx=3),
    "embedding by frequency": lambda x, i: functional.embedding(i, x, scale_grad_by_freq=True),
    "embedding_bag": lambda x, i: functional.embedding_bag(i.view(2, 3), x, mode="sum"),
    "embedding_bag mean": lambda x, i: functional.embedding_bag(i, x, torch.tensor([0, 2, 2])),
    "embedding_bag max": lambda x, i: functional.embedding_bag(i.view(3, 2), x, mode="max"),
    "take": lambda x, i: x.take(i * 3),
    "index_add": lambda x, i: x.index_add(0, i, torch.cat([x, x[:1]]) * 2),
    "index_copy": lambda x, i: x.index_copy(0, i[:3], x[:3] * 2),
    "index_copy of a number": lambda x, i: x[:, 0].index_copy(0, i[:1], x[2, 1]),
    "index_fill": lambda x, i: x.index_fill(1, i[:2] % 4, 3.0),
    "index_put": lambda x, i: x.index_put((i[:3],), x[:3] * 2),
    "index_put both": lambda x, i: x.index_put((i[1:5], torch.arange(4)), x[0]),
    "index_put column": lambda x, i: x.index_put((torch.arange(5)[:, None], (i % 4)[None, 1:3]), x[:, :2]),
    "index_put adds": lambda x, i: x.index_put((i,), torch.cat([x, x[:1]]), accumulate=True),
    "index_put adds one": lambda x, i: x.index_put((i,), x[0, 0], accumulate=True),
    "one_hot": lambda x, i: (functional.one_hot(i, 5), functional.one_hot(i)),
    "bincount": lambda x, i: (i.bincount(), i.bincount(minlength=9), i.to(torch.uint8).bincount()),
    "bincount of nothing": lambda x, i: i[:0].bincount(x[:0, 0].detach(), minlength=3),
    "isin": lambda x, i: torch.isin(i, torch.tensor([1, 3])),
}


BY_INDEX = {name: Case(function, (X, I), limit=8, meshes=[GRID]) for name, function in LOOKUPS.items()}


@pytest.mark.parametrize("name", BY_INDEX)
def test_lookups_by_index(name: str) -> None:
    BY_INDEX[name].check()


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64], ids=str
)
@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_lookups_in_dtypes_that_torch_does_not_add(separate: bool, dtype: torch.dtype) -> None:
    """What is looked up in a split dim is a sum of which one part is not zero."""
    plain = torch.arange(20).view(5, 4).to(dtype)
    use_separate_memory(separate)
    for spec in (P("a"), P(("b", "a")), P("a", "b"), P(None, "b")):
        x = weft.shard(plain, GRID, spec)
        for look in (lambda y: y[I], lambda y: y[I[1:] > 2], lambda y: y[I[1:], 1], lambda y: y[:, I % 4]):
            found, expected = (look(y) for y in (x, plain))
            assert torch.equal(found.full_tensor().double(), expected.double())
    use_separate_memory(False)


PLACED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "gather": lambda x, y, j: x.gather(0, j),
    "gather columns": lambda x, y, j: x.gather(1, j[:, :2]),
    "gather fewer": lambda x, y, j: x.gather(0, j[:3, :2]),
    "take_along_dim": lambda x, y, j: x.take_along_dim(j, 1),
    "scatter": lambda x, y, j: x.scatter(1, j[:, :1], y[:, :1]),
    "scatter value": lambda x, y, j: x.scatter(0, j, 2.0),
    "scatter_add": lambda x, y, j: x.scatter_add(0, j, y),
    "scatter_add columns": lambda x, y, j: x.scatter_add(1, j[:, :3], y[:, :3]),
    "scatter_add of more": lambda x, y, j: x.detach().scatter_add(1, j[:, :2], y.detach()),
    "scatter_add of more rows": lambda x, y, j: x.detach().scatter_add(0, j[:3], y.detach()),
    "scatter of more": lambda x, y, j: x.detach().scatter(1, j[:, :1], y.detach()),
    "scatter reduce": lambda x, y, j: x.detach().scatter(0, j, 3.0, reduce="multiply"),
    "scatter_reduce": lambda x, y, j: x.scatter_reduce(0, j, y, "sum"),
    "scatter_reduce amax": lambda x, y, j: x.detach().scatter_reduce(0, j, y.detach(), "amax", include_self=False),
}


BY_PLACE = {name: Case(function, (X, Y, J), limit=8) for name, function in PLACED.items()}


@pytest.mark.parametrize("name", BY_PLACE)
def test_gathers_and_scatters(name: str) -> None:
    BY_PLACE[name].check()


MASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "masked_fill": lambda x, m: x.masked_fill(m, 2.0),
    "where": lambda x, m: torch.where(m, x, -x),
    "masked_select": lambda x, m: x.masked_select(m),
    "masked_scatter": lambda x, m: x.masked_scatter(m, x * 2),
    "index by a mask": lambda x, m: x[m],
    "index rows by a mask": lambda x, m: x[m[:, 0]],
    "mask and index": lambda x, m: x[m[:, 0], 1],
    "put by a mask": lambda x, m: x.index_put((m,), torch.tensor(3.0, dtype=x.dtype)),
    "nonzero": lambda x, m: (m.nonzero(), m.nonzero(as_tuple=True)),
    "count_nonzero": lambda x, m: m.count_nonzero(0),
    "where alone": lambda x, m: torch.where(m),
    "argwhere": lambda x, m: torch.argwhere(m),
}


BY_MASK = {name: Case(function, (X, X > 0.2), limit=8, meshes=[GRID]) for name, function in MASKED.items()}


@pytest.mark.parametrize("name", BY_MASK)
def test_masks(name: str) -> None:
    BY_MASK[name].check()


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's, of vmap
def test_bags_of_each() -> None:
    def each(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.vmap(functional.embedding_bag, (0, None))(i.view(3, 2, 1), x)

    Case(each, (X, I), limit=8).check()
