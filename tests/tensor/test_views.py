"""A view shows what is written to its base, and its base what is written to the view, in any layout."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

import weft
from tests.tensor.programs import difference, shortened
from tests.tensor.view_making import make_chain
from weft import P

BATCH = 100
HARD = (2159, 3044, 21577, 21675)
"""Seeds that were wrong once: windows over a border, a conjugate of what is pending, a write that resolves, strides of `mH`."""


def check(seed: int) -> None:
    program = make_chain(seed)
    if difference(program) or difference(program):
        short = shortened(program)
        raise AssertionError(f"{difference(short) or difference(program)}\n\n{short}")


@pytest.mark.parametrize("batch", range(4))
def test_writes_show_through_chains_of_views(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(seed)


@pytest.mark.parametrize("seed", HARD)
def test_chains_that_were_wrong_once(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
def test_merged_dims_go_with_who_holds_them(is_read: bool) -> None:
    """Not when Python looks for what nobody holds: they may be as large as a batch."""
    x = weft.shard(torch.ones(4, 2, 6), weft.make_mesh({"a": 2, "b": 2}), P("a", "b"))
    gc.disable()
    try:
        merged = x.reshape(8, 6)
        turned = merged.t()
        if is_read:
            assert turned.sin().shape == (6, 8)
        held = [weakref.ref(merged._value), weakref.ref(turned._value)]
        del merged, turned
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("of_rows", [P("a"), P()], ids=str)
def test_views_of_rows_that_an_index_took_begin_where_torch_says(of_rows: P, is_read: bool) -> None:
    """Also while the rows lie wherever they were taken."""
    whole, places, mesh = torch.arange(24.0).reshape(3, 2, 4), torch.tensor([2, 0, 1]), weft.make_mesh({"a": 2})
    taken = weft.shard(whole, mesh, of_rows)[weft.shard(places, mesh, P("a")), :]
    expected = whole[places, :]
    if is_read:
        taken.full_tensor()
    for view in (lambda x: x.select(-1, -1), lambda x: x[..., 2:], lambda x: x.narrow(1, 1, 1)[..., 1:].mT):
        shown, torchs = view(taken), view(expected)
        assert (shown.storage_offset(), shown.stride()) == (torchs.storage_offset(), torchs.stride())
        assert torch.equal(shown.full_tensor(), torchs)


def test_views_of_what_is_pending_begin_where_torch_says() -> None:
    """Also those whose elements had to be brought; what is beside them is no overlap."""
    whole = torch.arange(12.0).reshape(4, 3)
    for axes in ({"a": 2, "b": 2}, {"a": 1, "b": 2}):
        mesh = weft.make_mesh(axes)
        mapping = weft.NamedMapping(mesh, P(None, "b"), unreduced=["a"])
        shards = [part.clone() for part in whole.split(2, 1)]
        x = weft.from_local(shards + [torch.zeros_like(part) for part in shards] * (axes["a"] - 1), mapping)
        for view in (lambda x: x[1:].diagonal(1), lambda x: x[-3, 0:2:3], lambda x: x[1:].t()[1:]):
            shown, torchs = view(x), view(whole)
            assert (shown.storage_offset(), shown.stride()) == (torchs.storage_offset(), torchs.stride())
        x[1, 1:2].copy_(x[2, 1:2])
        assert x.full_tensor()[1, 1] == whole[2, 1]


def test_copies_of_strided_views_of_what_is_pending_begin_where_torch_says() -> None:
    whole, mesh = torch.arange(48.0).reshape(8, 6), weft.make_mesh({"a": 2, "b": 2})
    mapping = weft.NamedMapping(mesh, P(None, None), unreduced=["a", "b"])
    x = weft.from_local([whole.clone(), *(torch.zeros_like(whole) for _ in range(3))], mapping)
    for view in (
        lambda x: x.reshape(8, -1, 3)[6, 1:, ::3].as_strided((), (), 19),
        lambda x: x[6:].as_strided((), (), 7),
    ):
        copied, torchs = copy.deepcopy(view(x)), copy.deepcopy(view(whole))
        assert (copied.storage_offset(), copied.stride()) == (torchs.storage_offset(), torchs.stride())
        assert torch.equal(copied.full_tensor(), torchs)
