"""Movements that may hold little go part by part, and bring the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import weft
from weft import NamedMapping, P, PlanError
from weft.planning import plan_layouts
from weft.runtime import machine
from weft.runtime.memory import memory_limit
from weft.sharding import make_mesh

MESH = make_mesh({"a": 4, "b": 2})
PENDING, WHOLE = NamedMapping(MESH, P(None, None), unreduced={"a": "sum"}), NamedMapping(MESH, P(None, None))


@pytest.fixture(params=[True, False], ids=["memories apart", "one memory"])
def apart(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = machine.ownership.separate_memory
    machine.use_separate_memory(request.param)
    yield request.param
    machine.use_separate_memory(before)


def summed() -> weft.Tensor:
    return weft.from_local([torch.full((64, 50), slot // 2 + 1.0) for slot in range(8)], PENDING)


def tight() -> int:
    free = plan_layouts(PENDING.layout(2), WHOLE.layout(2), (64, 50), 4)
    return free.peak_memory - 1


def test_what_goes_in_parts_is_the_same(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    original = memory_limit.in_parts

    def watched(plan, pieces, dtype, move):
        def noting(part, shape):
            shapes.append(shape)
            return move(part, shape)

        return original(plan, pieces, dtype, noting)

    monkeypatch.setattr("weft.runtime.run.in_parts", watched)
    x = summed()
    with weft.comm_log() as log:
        y = x.redistribute(WHOLE, memory_limit=tight())
    assert y.mapping == WHOLE
    assert all(shard.eq(10).all() for shard in y.local_shards)
    assert len(log) > 0
    assert bool(shapes) is apart  # in one memory nothing is held twice
    assert sum(columns for _, columns in shapes) == (50 if apart else 0)


def test_what_cannot_fit_is_an_error_before_anything_moves(apart: bool) -> None:
    x = summed()
    with weft.comm_log() as log, pytest.raises(PlanError, match="fits in 100 bytes a device: it needs 25,600"):
        x.redistribute(WHOLE, memory_limit=100)
    assert not len(log)
    assert x.mapping == PENDING
    with pytest.raises(TypeError, match="memory_limit is a number of bytes, but got '1 GiB'"):
        x.redistribute(WHOLE, memory_limit="1 GiB")


def test_its_gradient_is_that_of_the_movement(apart: bool) -> None:
    x = weft.shard(torch.ones(64, 50), MESH, P("a", None)).requires_grad_()
    (x.redistribute(WHOLE, memory_limit=1 << 20) * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.full_tensor().eq(3).all()
