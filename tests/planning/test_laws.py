"""The laws of plans: costs, transposes, errors, limits."""

from __future__ import annotations

import json
import sys
import time

import pytest
from hypothesis import given, settings

from weft.caches import BoundedCache
from weft.devices import CPU
from weft.errors import PlanError
from weft.planning import Plan, Topology, dual, move_cost, plan, plan_layouts, step_between
from weft.planning.parts import Parts
from weft.planning.staging.step_loads import link_loads
from weft.sharding import (
    DeviceMesh,
    NamedMapping,
    P,
    Partial,
    PlacementMapping,
    ReduceOp,
    Replicated,
    Sharded,
    make_mesh,
)
from weft.sharding.layout import Layout

from .strategies import crossings, transitions
from .test_bounds import laid

MESH = make_mesh({"a": 2, "b": 4})


@settings(max_examples=150, deadline=None)
@given(transitions(pending=True, count=3))
def test_no_movement_costs_more_than_a_detour(case):
    a, b, c, shape = case
    direct = move_cost(a, c, shape, 4)
    assert direct <= (move_cost(a, b, shape, 4) + move_cost(b, c, shape, 4)) * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(transitions(count=3))
def test_no_device_receives_more_than_on_a_detour(case):
    a, b, c, shape = case
    direct, first, second = (plan_layouts(x, y, shape, 1) for x, y in ((a, c), (a, b), (b, c)))
    for slot in range(a.mesh.num_devices):
        assert direct.received(slot) <= first.received(slot) + second.received(slot)


def only_sums(*layouts: Layout) -> bool:
    return all(op is ReduceOp.SUM for layout in layouts for _, op in layout.pending)


@settings(max_examples=120, deadline=None)
@given(transitions(pending=True))
def test_the_transpose_moves_what_the_transpose_must(case):
    source, target, shape = case
    if not only_sums(source, target):
        with pytest.raises(PlanError, match="has no transpose, because it is not linear"):
            [dual(layout) for layout in (source, target)]
        return
    forward = plan_layouts(source, target, shape, 1)
    backward = forward.transpose()
    assert (backward.source, backward.target) == (dual(target), dual(source))
    assert backward.transpose() is forward or backward.transpose() == forward
    if len(shape):
        assert backward.lower_bound.total == forward.lower_bound.total
        assert backward.bytes_received.total == forward.bytes_received.total


@settings(max_examples=80, deadline=None)
@given(transitions())
def test_each_step_has_a_transpose(case):
    source, target, shape = case
    for step in plan_layouts(source, target, shape, 1).steps:
        back = step.transpose()
        assert (back.source, back.target) == (dual(step.target), dual(step.source))
        assert back.bytes_received.total == step.bytes_received.total
        assert back.transpose() == step_between(step.source, step.target, shape, 1)


TRANSPOSES = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_reduce": "all_reduce",
    "local_slice": "fill_partial",
    "fill_partial": "local_slice",
    "all_to_all": "all_to_all",
    "permute": "permute",
}
EXAMPLES = {
    "all_gather": (laid(MESH, "a", "b"), laid(MESH, "a", "")),
    "reduce_scatter": (laid(MESH, "a", "", pending="b"), laid(MESH, "a", "b")),
    "all_reduce": (laid(MESH, "a", "", pending="b"), laid(MESH, "a", "")),
    "local_slice": (laid(MESH, "a", ""), laid(MESH, "a", "b")),
    "fill_partial": (laid(MESH, "a", "b"), laid(MESH, "a", "", pending="b")),
    "all_to_all": (laid(MESH, "ab", ""), laid(MESH, "", "ab")),
    "permute": (laid(MESH, "ab", ""), laid(MESH, "ba", "")),
}


@pytest.mark.parametrize("kind", TRANSPOSES)
def test_native_steps_transpose_to_native_steps(kind):
    step = step_between(*EXAMPLES[kind], (16, 16), 4)
    assert step.kind == kind
    assert step.transpose().kind == TRANSPOSES[kind]
    assert step.transpose().transpose() == step


@settings(max_examples=60, deadline=None)
@given(crossings())
def test_another_order_of_devices_never_moves_more(case):
    source, target, shape = case
    fixed = plan(source, target, shape, "int8")
    free = plan(source, target, shape, "int8", relabel=True)
    assert free.bytes_received.total <= fixed.bytes_received.total
    assert sorted(free.target.mesh.devices) == sorted(target.mesh.devices)
    assert (free.target.splits, free.target.mesh.mesh_shape) == (target.splits, target.mesh.mesh_shape)


def test_a_free_order_turns_a_permutation_into_nothing():
    source, target = laid(MESH, "ab", ""), laid(MESH, "ba", "")
    assert plan(source, target, (64, 64), "float32").bytes_received.total > 0
    assert plan(source, target, (64, 64), "float32", relabel=True).bytes_received.total == 0


def test_a_free_order_of_many_devices_is_found_too():
    mesh = make_mesh({"a": 16, "b": 16})
    found = plan(laid(mesh, "ab", ""), laid(mesh, "ba", ""), (1024, 8), "float32", relabel=True)
    assert found.bytes_received.total == 0


def test_plans_take_either_vocabulary():
    named = plan(NamedMapping(MESH, P("a", "b")), NamedMapping(MESH, P(None, "b")), (8, 8), "bfloat16")
    placed = plan(
        PlacementMapping(MESH, (Sharded(0), Sharded(1))),
        PlacementMapping(MESH, (Replicated(), Sharded(1))),
        (8, 8),
        "bf16",
    )
    assert named is placed
    assert named.itemsize == 2
    assert plan(PlacementMapping(MESH, (Partial(), Replicated())), NamedMapping(MESH, P()), (8,), "int64").itemsize == 8


def test_a_plan_can_be_written_as_json():
    made = plan_layouts(laid(MESH, "a", "", pending="b"), laid(MESH, "", ""), (8192, 8192), 4)
    said = json.loads(json.dumps(made.to_dict()))
    assert said["bytes_received"] == {"max": made.bytes_received.max, "total": made.bytes_received.total}
    assert [step["kind"] for step in said["steps"]] == [step.kind for step in made.steps]


def test_a_plan_fits_one_screen():
    text = str(plan_layouts(laid(MESH, "a", "", pending="b"), laid(MESH, "", ""), (8192, 8192), 4))
    assert text.startswith("Plan (a, –) sum@b -> (–, –) on a=2 × b=4\n  tensor    8192 × 8192, 4 bytes an element\n")
    assert len(text.splitlines()) < 24
    assert max(map(len, text.splitlines())) < 120


def test_a_plan_for_the_same_thing_is_the_same_plan():
    source, target = laid(MESH, "a", "b"), laid(MESH, "b", "a")
    assert plan_layouts(source, target, (8, 8), 4) is plan_layouts(source, target, (8, 8), 4)
    start = time.perf_counter()
    for _ in range(1000):
        plan_layouts(source, target, (8, 8), 4)
    assert time.perf_counter() - start < 0.1  # 1 µs each is usual; this only catches planning anew


def test_plans_are_not_remembered_without_end(monkeypatch):
    plans = sys.modules["weft.planning.plans"]

    assert 1000 < plans._cache.bound < 1_000_000
    monkeypatch.setattr(plans, "_cache", BoundedCache(3))
    for size in range(10):
        plan_layouts(laid(MESH, "a", "b"), laid(MESH, "b", "a"), (8, size), 4)
    assert len(plans._cache) == 3


def test_a_memory_limit_cuts_a_plan_into_parts_then_finds_one_without_a_middle():
    mesh = make_mesh({"a": 4, "b": 2})
    source, target = laid(mesh, "", "", pending="a"), laid(mesh, "", "")
    free: Plan = plan_layouts(source, target, (64, 64), 4)
    parts = plan_layouts(source, target, (64, 64), 4, memory_limit=free.peak_memory - 1)
    assert (parts.parts, parts.steps, parts.bytes_received) == (Parts(1, 32), free.steps, free.bytes_received)
    assert 2 * 64 * 64 * 4 < parts.peak_memory < free.peak_memory
    assert "  parts     32 along dim 1, one after another\n" in str(parts)
    assert parts.received(3) == free.received(3)
    tight = plan_layouts(source, target, (64, 64), 4, memory_limit=2 * 64 * 64 * 4)
    assert (tight.parts, [step.kind for step in tight.steps]) == (None, ["all_reduce"])
    assert tight.peak_memory == 2 * 64 * 64 * 4
    with pytest.raises(PlanError) as error:
        plan_layouts(source, target, (64, 64), 4, memory_limit=tight.peak_memory - 1)
    assert str(error.value) == (
        "no plan from (–, –) sum@a to (–, –) of a tensor of shape (64, 64) fits in 32,767 bytes a device: "
        "it needs 32,768 (the source 16,384, the target 16,384). "
        "Raise memory_limit to 32,768, or split the source or the target over more devices"
    )


MAX, SUM = ReduceOp.MAX, ReduceOp.SUM
ERRORS = {
    "another kind": (
        Layout(MESH, ((),), {"a": SUM}),
        Layout(MESH, ((),), {"a": MAX}),
        "a pending sum over mesh axis 'a' cannot become a pending max: its contributions mean something else. "
        "Resolve it first: all_reduce(x, 'sum', reduce_axes=('a',))",
    ),
    "another kind elsewhere": (
        Layout(MESH, ((),), {"a": SUM}),
        Layout(MESH, ((),), {"b": MAX}),
        "a pending sum over mesh axis 'a' cannot become a pending max over 'b': its contributions mean something else. "
        "Resolve it first: all_reduce(x, 'sum', reduce_axes=('a',))",
    ),
    "mixed kinds": (
        Layout(MESH, ((),), {"a": SUM, "b": MAX}),
        Layout(MESH, ((),)),
        "pending sum over 'a' and max over 'b' give different results in different orders: say the order, one at a time, "
        "beginning for instance with all_reduce(x, 'sum', reduce_axes=('a',))",
    ),
    "another rank": (
        Layout(MESH, (("a",), ())),
        Layout(MESH, ((),)),
        "a plan needs layouts of the tensor's rank: the shape (8,) has 1 dims, but the source (a, –) has 2 and the target (–) has 1",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_planned_says_why(name):
    source, target, text = ERRORS[name]
    with pytest.raises(PlanError) as error:
        plan_layouts(source, target, (8,), 4)
    assert str(error.value) == text


def test_mixed_kinds_are_resolved_one_at_a_time():
    both = Layout(MESH, ((),), {"a": SUM, "b": MAX})
    for left in ("a", "b"):
        plan_layouts(both, Layout(MESH, ((),), {left: dict(both.pending)[left]}), (8,), 4)


def test_sizes_are_known_and_not_negative():
    with pytest.raises(PlanError, match=r"a size is 0 or more, but the shape \(-1,\) has -1"):
        plan(laid(MESH, "a"), laid(MESH, "b"), (-1,), "float32")
    with pytest.raises(PlanError, match="a plan needs known sizes"):
        plan(laid(MESH, "a"), laid(MESH, "b"), ("batch",), "float32")
    with pytest.raises(TypeError, match="unknown dtype"):
        plan(laid(MESH, "a"), laid(MESH, "b"), (8,), "float31")
    with pytest.raises(TypeError, match="a plan leads from mapping to mapping"):
        plan("a", laid(MESH, "b"), (8,), "float32")


SLOW = Topology(devices_per_host=4)


def test_each_byte_crosses_a_slow_link_once():
    here = make_mesh({"a": 4})
    there = DeviceMesh([CPU(i) for i in range(4, 8)], (4,), ("x",))
    source, target = laid(here, "a", ""), Layout(there, ((), ()))
    near = plan_layouts(source, target, (4096, 4096), 4)
    far = plan_layouts(source, target, (4096, 4096), 4, topology=SLOW)
    assert [(step.kind, step.stages) for step in near.steps] == [("exchange", None)]
    assert [(step.kind, step.stages.name) for step in far.steps] == [("exchange", "host by host")]
    assert link_loads(far.steps[0], SLOW)[0].rack * there.num_devices == 4096 * 4096 * 4
    assert far.bytes_received == near.bytes_received


def test_planning_stays_fast_on_thousands_of_devices():
    mesh = make_mesh({"a": 16, "b": 16, "c": 16})
    pairs = [
        (laid(mesh, "abc", ""), laid(mesh, "cba", "")),
        (laid(mesh, "ab", "c"), laid(mesh, "c", "ab")),
        (laid(mesh, "", "", pending="ac"), laid(mesh, "", "", pending="b")),
    ]
    for source, target in pairs:
        taken = []
        for rows in (8192, 4096, 2048):
            start = time.perf_counter()
            plan_layouts(source, target, (rows, 8192), 4)
            taken.append(time.perf_counter() - start)
        assert min(taken) < 0.5  # a millisecond or two are usual; this catches loops over pairs, not a busy machine
