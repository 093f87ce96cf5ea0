"""Padding with what stands at the ends, unfolding and gating along split dims: the dim stays split, and little moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as nn
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft
from weft.sharding.geometry import box
from weft.sharding.layout import Layout
from weft.sharding.placements import ReduceOp

from .harness import GRID, LINE, check, laid, memory
from .test_windows import exchanged, grown, numbers

LAYOUTS = st.sampled_from(
    [
        Layout(LINE, [(), (), ("x",)]),
        Layout(GRID, [(), (), ("b", "a")]),
        Layout(GRID, [("b",), (), ("a",)]),
        Layout(GRID, [(), ("a",), ("b",)]),
    ]
)


def received(layout: Layout, shape: Sequence[int], sources: torch.Tensor) -> list[int]:
    """For each device, the bytes of its part of a result that it does not hold; the result says whence each comes."""
    counts = []
    for slot in range(layout.mesh.num_devices):
        held = torch.zeros(tuple(shape), dtype=torch.bool)
        held[tuple(slice(*side) for side in box(layout, shape, slot))] = True
        mine = sources[tuple(slice(*side) for side in box(layout, sources.shape, slot))].long().flatten()
        counts.append(8 * int((~held.flatten()[mine]).sum()))
    return counts


@settings(max_examples=25, deadline=None)
@given(
    mode=st.sampled_from(["reflect", "replicate"]),
    layout=LAYOUTS,
    size=st.integers(1, 17),
    before=st.integers(0, 4),
    after=st.integers(0, 4),
)
def test_ends_of_split_dims_are_padded(mode: str, layout: Layout, size: int, before: int, after: int) -> None:
    assume(mode == "replicate" or max(before, after) < size)
    shape = (2, 3, size)
    numbered = torch.arange(2 * 3 * size, dtype=torch.float64).reshape(shape)
    for separate in (False, True):
        out, grads, forward, backward = grown(
            lambda x: nn.pad(x, (before, after), mode=mode), [numbers(*shape)], [layout], separate
        )
        assert out._layout is layout
        assert grads[0]._layout is layout
        least = received(layout, shape, nn.pad(numbered, (before, after), mode=mode))
        assert exchanged(forward) == ([(max(least), sum(least))] if any(least) else [])
        assert sum(total for _, total in exchanged(backward)) == sum(least), "what went there comes back"
        assert {r.kind for r in (*forward, *backward)} <= {"exchange"}


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_images_and_volumes_are_padded_in_any_layout(mode: str) -> None:
    check(lambda x: nn.pad(x, (1, 2, 2, 1), mode=mode), numbers(2, 3, 5, 4), limit=12)
    check(lambda x: nn.pad(x, (1, 0, 1, 1, 0, 1), mode=mode), numbers(1, 2, 3, 4, 3), limit=12)


@pytest.mark.parametrize("separate", [False, True])
def test_padding_that_is_too_wide_is_refused(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(2, 3, 4), Layout(LINE, [(), (), ("x",)]))
        with pytest.raises(RuntimeError, match="Padding size should be less than"):
            nn.pad(x, (4, 0), mode="reflect")
        y = nn.pad(x, (300, 0), mode="replicate")
        assert torch.equal(y.full_tensor(), nn.pad(x.full_tensor(), (300, 0), mode="replicate"))


@settings(max_examples=40, deadline=None)
@given(layout=LAYOUTS, length=st.integers(1, 17), size=st.integers(1, 6), step=st.integers(1, 5))
def test_split_dims_are_unfolded(layout: Layout, length: int, size: int, step: int) -> None:
    assume(size <= length)
    shape = (2, 3, length)
    logs = []
    for separate in (False, True):
        out, grads, forward, backward = grown(lambda x: x.unfold(2, size, step), [numbers(*shape)], [layout], separate)
        assert out._layout.splits == (*layout.splits, ())
        assert grads[0]._layout is layout
        logs.append([(r.kind, r.bytes_received, r.total_bytes) for r in (*forward, *backward)])
        least = []
        for slot in range(layout.mesh.num_devices):
            held, made = box(layout, shape, slot), box(out._layout, out.shape, slot)
            first, last = made[2][0] * step, (made[2][1] - 1) * step + size
            needed = set(range(first, last)) if made[2][0] < made[2][1] else set()
            rest = (held[0][1] - held[0][0]) * (held[1][1] - held[1][0])
            least.append(8 * rest * len(needed - set(range(*held[2]))))
        assert exchanged(forward) == ([(max(least), sum(least))] if any(least) else [])
        assert sum(total for _, total in exchanged(backward)) == sum(least), "what came goes back"
        assert {r.kind for r in (*forward, *backward)} <= {"exchange"}
    assert logs[0] == logs[1], "one memory tells what separate ones move"


def test_any_dim_of_any_layout_is_unfolded() -> None:
    check(lambda x: x.unfold(1, 3, 2), numbers(3, 7, 4), limit=12)
    check(lambda x: x.unfold(0, 2, 1).unfold(1, 3, 3) * 2, numbers(5, 7), limit=12)


@pytest.mark.parametrize("separate", [False, True])
def test_unfolded_tensors_are_views(separate: bool) -> None:
    x = numbers(9, 2)
    with memory(separate):
        ours = laid(x, Layout(LINE, [("x",), ()]))
        view = ours.unfold(0, 3, 3)
        ours[4] = 7.0
        view[0].mul_(2)
        x[4] = 7.0
        x.unfold(0, 3, 3)[0].mul_(2)
        torch.testing.assert_close(ours.full_tensor(), x)
        torch.testing.assert_close(view.full_tensor(), x.unfold(0, 3, 3))


@settings(max_examples=30, deadline=None)
@given(layout=LAYOUTS, half=st.integers(1, 9))
def test_split_dims_are_gated(layout: Layout, half: int) -> None:
    shape = (2, 3, 2 * half)
    numbered = torch.arange(6 * 2 * half).reshape(shape)
    for separate in (False, True):
        out, grads, forward, backward = grown(lambda x: nn.glu(x, 2), [numbers(*shape)], [layout], separate)
        assert out._layout is layout
        assert grads[0]._layout is layout
        least = [sum(received(layout, shape, part)) for part in numbered.chunk(2, 2)]
        assert sum(total for _, total in exchanged(forward)) == sum(least)
        assert {r.kind for r in (*forward, *backward)} <= {"exchange"}


@pytest.mark.parametrize("separate", [False, True])
def test_short_numbers_and_pending_sums_are_gated(separate: bool) -> None:
    x = numbers(4, 12)
    with memory(separate):
        short = laid(x.bfloat16(), Layout(LINE, [(), ("x",)]))
        torch.testing.assert_close(nn.glu(short).full_tensor(), nn.glu(x.bfloat16()))
        waiting = laid(x, Layout(GRID, [(), ("a",)], {"b": ReduceOp.SUM}))
        with weft.comm_log() as log:
            y = nn.glu(waiting)
        torch.testing.assert_close(y.full_tensor(), nn.glu(x))
        assert set(log.counts()) == {"all_reduce", "exchange"}


@pytest.mark.parametrize("separate", [False, True])
def test_numbers_that_torch_does_not_gate(separate: bool) -> None:
    with memory(separate):
        for dtype in (torch.int64, torch.bool):
            x = laid(torch.ones(3, 8, dtype=dtype), Layout(LINE, [(), ("x",)]))
            with pytest.raises(RuntimeError, match="not implemented for"):
                nn.glu(x, 1)
