"""Plans move what must be moved, and no more."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations, product

import numpy as np
import pytest

from weft.devices import CPU
from weft.planning import lower_bound, plan_layouts
from weft.sharding import DeviceMesh, ReduceOp, make_mesh
from weft.sharding.geometry import box
from weft.sharding.layout import Layout

MIB = 1 << 20
MESHES = [sizes for count in (1, 2, 3) for sizes in product((2, 3, 4), repeat=count) if list(sizes) == sorted(sizes)]
"""Axis sizes in order: another order only renames the axes."""


def all_layouts(mesh: DeviceMesh, rank: int, *, pending: bool = False) -> list[Layout]:
    """Every layout: each axis splits a dim, or none, or holds a sum; in every order."""
    found = {}
    for roles in product(range(-1 - pending, rank), repeat=mesh.ndim):
        at = dict(zip(mesh.axis_names, roles, strict=True))
        held = {axis: ReduceOp.SUM for axis, role in at.items() if role == -2}
        dims = [[axis for axis, role in at.items() if role == dim] for dim in range(rank)]
        for splits in product(*map(permutations, dims)):
            found[Layout(mesh, splits, held)] = None
    return list(found)


def boxes(layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    return np.array([box(layout, shape, slot) for slot in range(layout.mesh.num_devices)])


def lacking(held: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """|T| − |T ∩ S| for each slot, from the boxes alone."""
    common = np.minimum(held[..., 1], wanted[..., 1]) - np.maximum(held[..., 0], wanted[..., 0])
    return np.prod(wanted[..., 1] - wanted[..., 0], axis=-1) - np.prod(np.maximum(common, 0), axis=-1)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_movements_reach_the_bound_on_each_device(sizes, rank):
    """One, two and three mesh axes, all layouts, axis orders included; where there are too many pairs, every so many."""
    mesh = make_mesh(dict(zip("abc", sizes, strict=False)))
    layouts = all_layouts(mesh, rank)
    stride = max(1, len(layouts) ** 2 // 150) | 1
    for shape in [(24, 36, 48)[:rank], (7, 10, 5)[:rank]]:
        held = lru_cache(lambda i, shape=shape: boxes(layouts[i], shape))
        for pair in range(0, len(layouts) ** 2, stride):
            i, j = divmod(pair, len(layouts))
            plan = plan_layouts(layouts[i], layouts[j], shape, 1)
            each = lacking(held(i), held(j))
            assert (plan.bytes_received.max, plan.bytes_received.total) == (each.max(), each.sum())
            assert plan.bytes_received == plan.lower_bound
            slot = pair % mesh.num_devices
            assert plan.received(slot) == each[slot]


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pending_sums_reach_the_bound_in_total(sizes, rank):
    mesh = make_mesh(dict(zip("abc", sizes, strict=False)))
    layouts = all_layouts(mesh, rank, pending=True)
    stride = max(1, len(layouts) ** 2 // 60) | 1
    for shape in [(24, 36, 48)[:rank], (7, 10, 5)[:rank]]:
        for pair in range(0, len(layouts) ** 2, stride):
            i, j = divmod(pair, len(layouts))
            plan = plan_layouts(layouts[i], layouts[j], shape, 1)
            assert plan.bytes_received.total == plan.lower_bound.total, (str(layouts[i]), str(layouts[j]))


def naive_bound(source: Layout, target: Layout, shape: tuple[int, ...]) -> int:
    """(contributions − 1) + targets − [a target holds a contribution], element by element; resolved targets only."""
    mesh = source.mesh
    contributions = math.prod(mesh.axis_size(axis) for axis in source.pending_axes)
    total = 0
    held = [box(source, shape, slot) for slot in range(mesh.num_devices)]
    wanted = [box(target, shape, slot) for slot in range(mesh.num_devices)]

    def inside(where, element):
        return all(a <= x < b for x, (a, b) in zip(element, where, strict=True))

    for element in product(*map(range, shape)):
        targets = [slot for slot in range(mesh.num_devices) if inside(wanted[slot], element)]
        total += contributions - 1 + len(targets) - any(inside(held[slot], element) for slot in targets)
    return total


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2), (2, 3), (2, 2, 2)], ids=str)
def test_the_bound_is_what_counting_elements_gives(sizes):
    mesh = make_mesh(dict(zip("abc", sizes, strict=False)))
    for shape in [(5,), (4, 3)]:
        sources = [layout for layout in all_layouts(mesh, len(shape), pending=True) if layout.pending]
        targets = all_layouts(mesh, len(shape))
        for k in range(0, len(sources) * len(targets), 1 + len(sources) * len(targets) // 60):
            source, target = sources[k // len(targets)], targets[k % len(targets)]
            assert lower_bound(source, target, shape, 1).total == naive_bound(source, target, shape)


def laid(mesh: DeviceMesh, *splits: str, pending: str = "") -> Layout:
    return Layout(mesh, [tuple(axes) for axes in splits], dict.fromkeys(pending, ReduceOp.SUM))


EIGHT, TWO_FOUR, FOUR_FOUR, CUBE = (
    make_mesh(dict(zip("abc", sizes, strict=False))) for sizes in [(8,), (2, 4), (4, 4), (2, 2, 2)]
)
KNOWN_LIMITS = {
    "8: S0→S1": (laid(EIGHT, "a", ""), laid(EIGHT, "", "a"), 28),
    "8: S0→R": (laid(EIGHT, "a", ""), laid(EIGHT, "", ""), 224),
    "8: R→S0": (laid(EIGHT, "", ""), laid(EIGHT, "a", ""), 0),
    "8: R→P": (laid(EIGHT, "", ""), laid(EIGHT, "", "", pending="a"), 0),
    "8: S0→P": (laid(EIGHT, "a", ""), laid(EIGHT, "", "", pending="a"), 0),
    "8: P→S0": (laid(EIGHT, "", "", pending="a"), laid(EIGHT, "a", ""), 224),
    "8: P→R": (laid(EIGHT, "", "", pending="a"), laid(EIGHT, "", ""), 448),
    "2×4: S0[ab]→S0[ba]": (laid(TWO_FOUR, "ab", ""), laid(TWO_FOUR, "ba", ""), 32),
    "2×4: S0[ab]→S0[b]": (laid(TWO_FOUR, "ab", ""), laid(TWO_FOUR, "b", ""), 64),
    "2×4: (a,b)→(b,a)": (laid(TWO_FOUR, "a", "b"), laid(TWO_FOUR, "b", "a"), 32),
    "4×4: S0[ab]→S1[ab]": (laid(FOUR_FOUR, "ab", ""), laid(FOUR_FOUR, "", "ab"), 15),
    "4×4: Pa,Rb→S0[a],Rb": (laid(FOUR_FOUR, "", "", pending="a"), laid(FOUR_FOUR, "a", ""), 96),
    "4×4: Pa,Rb→RR": (laid(FOUR_FOUR, "", "", pending="a"), laid(FOUR_FOUR, "", ""), 288),
    "2×2×2: (ab,c)→(c,ab)": (laid(CUBE, "ab", "c"), laid(CUBE, "c", "ab"), 32),
}


@pytest.mark.parametrize("name", KNOWN_LIMITS)
def test_known_transitions_reach_their_limit(name):
    source, target, limit = KNOWN_LIMITS[name]
    assert plan_layouts(source, target, (8192, 8192), 4).bytes_received.max == limit * MIB


def test_several_axes_move_in_one_fused_all_to_all():
    source, target = laid(FOUR_FOUR, "a", "b", "", ""), laid(FOUR_FOUR, "", "", "a", "b")
    plan = plan_layouts(source, target, (16, 16, 16, 16), 1)
    local = 16**4 // 16
    assert [step.kind for step in plan.steps] == ["all_to_all"]
    assert plan.bytes_received.max == local - local // 16


NAMES = {
    "local_slice": (laid(TWO_FOUR, "", ""), laid(TWO_FOUR, "a", "b")),
    "all_gather": (laid(TWO_FOUR, "ab", ""), laid(TWO_FOUR, "a", "")),
    "all_to_all": (laid(TWO_FOUR, "ab", ""), laid(TWO_FOUR, "", "ab")),
    "permute": (laid(TWO_FOUR, "ab", ""), laid(TWO_FOUR, "ba", "")),
    "exchange": (laid(TWO_FOUR, "a", "b"), laid(TWO_FOUR, "b", "a")),
    "all_reduce": (laid(TWO_FOUR, "a", "", pending="b"), laid(TWO_FOUR, "a", "")),
    "reduce_scatter": (laid(TWO_FOUR, "", "", pending="ab"), laid(TWO_FOUR, "b", "a")),
    "fill_partial": (laid(TWO_FOUR, "ab", ""), laid(TWO_FOUR, "a", "", pending="b")),
    "reduce_exchange": (laid(TWO_FOUR, "a", "", pending="b"), laid(TWO_FOUR, "b", "")),
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_transition_that_is_exactly_a_native_step_is_called_so(kind):
    assert [step.kind for step in plan_layouts(*NAMES[kind], (64, 64), 4).steps] == [kind]


def test_replicas_share_the_work_before_they_reduce():
    plan = plan_layouts(laid(FOUR_FOUR, "", "", pending="a"), laid(FOUR_FOUR, "a", ""), (64, 64), 4)
    assert [step.kind for step in plan.steps] == ["local_slice", "reduce_scatter", "all_gather"]


def test_an_axis_of_size_one_moves_nothing():
    mesh = make_mesh({"a": 1, "b": 4})
    for source, target in [
        (laid(mesh, "a", "b"), laid(mesh, "", "ab")),
        (laid(mesh, "", "b", pending="a"), laid(mesh, "a", "b")),
    ]:
        plan = plan_layouts(source, target, (8, 8), 4)
        assert plan.bytes_received.total == 0
        assert [step.kind for step in plan.steps] == ["local_slice"]


def test_memory_is_source_and_target():
    for source, target, _ in KNOWN_LIMITS.values():
        plan = plan_layouts(source, target, (8192, 8192), 4)
        ends = sum(math.prod(b - a for a, b in box(layout, plan.shape, 0)) * 4 for layout in (source, target))
        assert plan.peak_memory <= 1.07 * ends


def test_a_layout_that_stays_needs_no_steps():
    layout = laid(TWO_FOUR, "a", "b")
    plan = plan_layouts(layout, layout, (8, 8), 4)
    assert plan.steps == ()
    assert plan.bytes_received.total == plan.estimated_time == 0


def test_disjoint_meshes_receive_everything_once():
    here = make_mesh({"a": 4})
    there = DeviceMesh([CPU(i) for i in range(4, 10)], (2, 3), ("x", "y"))
    plan = plan_layouts(laid(here, "a", ""), Layout(there, (("x",), ("y",))), (12, 12), 1)
    assert plan.bytes_received.total == 144
    assert plan.bytes_received.max == 24
