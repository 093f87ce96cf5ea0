"""Kept blocks: given again when nobody uses them, and never while somebody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import weft
from weft.runtime.memory.host_memory import empty_cache
from weft.runtime.memory.host_pool import LEAST, HostPool, pool, pooled_empty
from weft.runtime.memory.lazy_copy import lazy_clone
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

CPU = torch.device("cpu")
SIZE = LEAST // 4


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    before = pool.bound
    pool.forget()
    pool.bound = 64 << 20
    yield
    pool.forget()
    pool.bound = before


def made(value: float = 0.0) -> torch.Tensor:
    return pooled_empty((SIZE,), torch.float32, CPU).fill_(value)


USES: dict[str, Callable[[torch.Tensor], object]] = {
    "the tensor": lambda x: x,
    "a view": lambda x: x[3:5],
    "its storage": lambda x: x.untyped_storage(),
    "NumPy": lambda x: x.numpy(),
    "DLPack": torch.from_dlpack,
    "a lazy copy": lazy_clone,
}


@pytest.mark.parametrize("name", USES)
def test_what_somebody_uses_is_not_overwritten(name: str) -> None:
    used = USES[name](made(7.0))
    others = [made(1.0) for _ in range(3)]
    assert len({x.data_ptr() for x in others}) == 3
    seen = torch.empty(0).set_(used) if isinstance(used, torch.UntypedStorage) else used  # type: ignore[call-overload]
    assert float(seen[0]) == 7.0  # type: ignore[index]


def test_what_autograd_keeps_is_not_overwritten() -> None:
    weight = torch.ones(SIZE, requires_grad=True)
    product = (weight * made(7.0)).sum()
    made(1.0)
    assert torch.autograd.grad(product, weight)[0].unique().tolist() == [7.0]


def test_what_nobody_uses_is_given_again() -> None:
    first = made()
    address = first.data_ptr()
    del first
    assert made().data_ptr() == address
    assert pool.kept == LEAST


def test_another_size_gets_another_block() -> None:
    made()
    assert pooled_empty((SIZE + 1,), torch.float32, CPU).untyped_storage().nbytes() == 4 * SIZE + 4


def test_small_results_and_those_over_the_bound_are_not_kept() -> None:
    pooled_empty((SIZE // 2,), torch.float32, CPU)
    pooled_empty((32 << 20,), torch.float32, CPU)
    assert pool.kept == 0


def test_kept_bytes_stay_within_the_bound() -> None:
    few = HostPool(3 * LEAST)
    held = [few.block(LEAST) for _ in range(5)]
    assert len({block.data_ptr() for block in held}) == 5
    assert few.kept == 3 * LEAST


def test_emptying_the_cache_keeps_what_is_in_use() -> None:
    x = made(5.0)
    empty_cache()
    assert pool.kept == 0
    made(1.0)
    assert x.unique().tolist() == [5.0]


def test_memory_that_other_processes_see_is_not_given_again() -> None:
    x = made(5.0)
    x.share_memory_()
    address = x.data_ptr()
    del x
    assert made().data_ptr() != address


def test_threads_do_not_get_the_same_block() -> None:
    def work(value: int) -> bool:
        return all((made(value) == value).all() for _ in range(20))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_reductions_come_from_kept_blocks() -> None:
    mesh = weft.make_mesh({"a": 2})
    pending = named_mapping(Layout(mesh, ((),), {"a": weft.ReduceOp.SUM}))
    x = weft.from_local([torch.ones(SIZE), torch.ones(SIZE)], pending, shape=(SIZE,))
    y = weft.all_reduce(x)
    z = weft.all_reduce(x)
    z.mul_(3)
    assert y.unique().tolist() == [2.0]
    del y, z
    before = pool.kept
    assert weft.all_reduce(x).unique().tolist() == [2.0]
    assert pool.kept == before
