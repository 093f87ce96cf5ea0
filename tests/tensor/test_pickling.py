"""A pickle says what a tensor is, not how a process stores it: whoever loads it has the same tensor."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch

import weft
from weft import P
from weft.runtime import machine
from weft.sharding import ReduceOp, make_mesh
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

MESH = make_mesh({"a": 2, "b": 2})
VALUE = torch.arange(24.0).reshape(6, 4)
LAYOUTS = [
    Layout(MESH, ((), ())),
    Layout(MESH, (("a",), ())),
    Layout(MESH, (("b", "a"), ())),
    Layout(MESH, (("a",), ("b",))),
    Layout(MESH, ((), ()), {"a": ReduceOp.SUM}),
    Layout(MESH, (("a",), ()), {"b": ReduceOp.MAX}),
    Layout(MESH, ((), ()), {"a": ReduceOp.SUM, "b": ReduceOp.SUM}),
]


def saved(x: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    return buffer.getvalue()


def loaded(written: bytes) -> torch.Tensor:
    found: torch.Tensor = torch.load(io.BytesIO(written), weights_only=False)
    return found


WAYS: dict[str, tuple[Callable[[torch.Tensor], bytes], Callable[[bytes], torch.Tensor]]] = {
    "pickle": (pickle.dumps, pickle.loads),
    "torch.save": (saved, loaded),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_pickle_is_the_same_tensor_in_either_memory(layout: Layout, way: str, memory: str) -> None:
    dump, load = WAYS[way]
    x = weft.shard(VALUE, MESH, named_mapping(layout))
    x.mark = "kept"  # type: ignore[attr-defined]
    written, whole, shards = dump(x), x.full_tensor(), [shard.clone() for shard in x.local_shards]
    for separate in (False, True):
        machine.use_separate_memory(separate)
        y = load(written)
        assert isinstance(y, weft.Tensor)
        assert y.mapping == x.mapping
        assert y.mark == "kept"  # type: ignore[attr-defined]
        assert torch.equal(y.full_tensor(), whole)
        assert all(map(torch.equal, y.local_shards, shards))
        assert torch.equal((y * 2).full_tensor(), whole * 2)
        y.zero_()
        assert not y.full_tensor().any()
    machine.use_separate_memory(memory == "separate")
    assert torch.equal(x.full_tensor(), whole)


def test_strides_are_pickled() -> None:
    x = weft.shard(VALUE, MESH, P("a", "b")).mT
    y = pickle.loads(pickle.dumps(x))
    assert y.stride() == x.stride()
    assert torch.equal(y.full_tensor(), VALUE.mT)


def test_a_shallow_copy_shares_memory() -> None:
    x = weft.shard(VALUE.clone(), MESH, P("a", "b")).requires_grad_()
    y = copy.copy(x)
    assert y.requires_grad
    assert y.is_leaf
    with torch.no_grad():
        y.add_(1)
    assert torch.equal(x.full_tensor(), VALUE + 1)


@pytest.mark.parametrize("spec", [P("a"), P()], ids=str)
def test_deep_copies_of_views_whose_base_was_given_the_memory_of_one(spec: P) -> None:
    x = weft.shard(torch.arange(8.0), weft.make_mesh({"a": 2}), spec)
    turned = x.unsqueeze(0).transpose(-1, 1)
    again = turned.view_as(turned)
    x.data = again[...]
    first, second = copy.deepcopy((turned, again))
    first.add_(1)
    assert second.full_tensor().flatten().tolist() == list(range(1, 9))
    assert x.full_tensor().flatten().tolist() == list(range(8))
