"""`explain` says what a tensor would have to do, before it does."""

from __future__ import annotations

import pytest
import torch

import weft
from weft import P
from weft.inspect.explain import explain, explain_plan
from weft.planning import plan_layouts
from weft.sharding import ReduceOp, make_mesh
from weft.sharding.layout import Layout


def test_a_tensor_is_explained_by_its_mapping():
    mesh = weft.make_mesh({"dp": 2, "tp": 4})
    x = weft.shard(torch.ones(16, 8), mesh, P("dp", "tp"))
    found = explain(x, P(None, ("tp", "dp")))
    assert found.plan.bytes_received.max == 32
    assert [step.kind for step in found.plan.steps] == ["all_to_all"]
    assert str(found).startswith("(dp, tp) -> (–, tp·dp) on dp=2 × tp=4: 16 × 8, 4 bytes an element\n")
    assert found.plan is explain(x, weft.NamedMapping(mesh, P(None, ("tp", "dp")))).plan


def test_a_plain_tensor_counts_as_whole_on_one_device():
    mesh = weft.make_mesh({"tp": 4})
    found = explain(torch.ones(8, 8), weft.NamedMapping(mesh, P("tp")))
    assert found.plan.bytes_received.max == 64


def test_contributions_are_drawn_with_a_plus():
    mesh = make_mesh({"a": 2, "b": 2})
    text = str(
        explain_plan(plan_layouts(Layout(mesh, ((), ()), {"b": ReduceOp.SUM}), Layout(mesh, ((), ())), (8, 8), 4))
    )
    assert "│ 0 2 + 1 3 │" in text


@pytest.mark.parametrize("rank", range(5))
def test_any_rank_and_any_mesh_can_be_drawn(rank):
    mesh = make_mesh({"a": 32, "b": 2, "c": 2})
    splits = [("a",), ("b",), ("c",), (), ()][:rank]
    text = str(explain_plan(plan_layouts(Layout(mesh, splits), Layout(mesh, ((),) * rank), (64,) * rank, 4)))
    assert max(map(len, text.splitlines())) <= 100
    assert ("dim 0 is split too" in text) == (rank > 2)


def test_nothing_to_do_says_so():
    layout = Layout(make_mesh({"a": 2}), (("a",),))
    assert "nothing to do: the layouts are the same" in str(explain_plan(plan_layouts(layout, layout, (8,), 4)))
