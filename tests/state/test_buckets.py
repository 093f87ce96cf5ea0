"""Messages: every element of every part is in one of them, in order, and none is too large."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.planning.states.buckets import PartSize, buckets

parts = st.lists(
    st.builds(PartSize, st.lists(st.integers(1, 6), max_size=3).map(tuple), st.sampled_from([1, 2, 4, 8])), max_size=8
)


@given(parts=parts, limit=st.integers(16, 200))
def test_messages_carry_everything_once(parts: list[PartSize], limit: int) -> None:
    messages = buckets(parts, limit)
    carried = {number: [0] * math.prod(part.shape) for number, part in enumerate(parts)}
    for message in messages:
        assert message
        at = 0
        for cut in message:
            part = parts[cut.part]
            assert at % part.itemsize == 0
            sizes = [stop - start for start, stop in cut.box]
            at += math.prod(sizes) * part.itemsize
            for index in indices(cut.box, part.shape):
                carried[cut.part][index] += 1
        assert at <= limit
    assert all(count == 1 for each in carried.values() for count in each)


def indices(box: tuple[tuple[int, int], ...], shape: tuple[int, ...]) -> list[int]:
    found = [0]
    for (start, stop), size in zip(box, shape, strict=True):
        found = [outer * size + inner for outer in found for inner in range(start, stop)]
    return found


@pytest.mark.parametrize(("limit", "expected"), [(32 << 20, 2), (1 << 20, 9), (100 << 10, 83)])
def test_small_parts_share_a_message_and_large_ones_have_their_own(limit: int, expected: int) -> None:
    small, large = PartSize((64,), 4), PartSize((2048, 1024), 4)
    assert len(buckets([small, large, small, small], limit)) == expected
