"""Reading from the memory of a process: all of it arrives, however little the system gives at once."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.runtime.processes.transport import reading


@given(st.lists(st.integers(0, 300), max_size=12), st.integers(1, 200), st.integers(1, 4))
def test_stretches_of_any_length_are_read(sizes: list[int], most_bytes: int, most_spans: int) -> None:
    theirs = torch.arange(sum(sizes)).to(torch.uint8)
    ours = torch.zeros_like(theirs)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MOST_BYTES", most_bytes)
        patch.setattr(reading, "MOST_SPANS", most_spans)
        given_, wanted = (
            [(x.data_ptr() + start, size) for start, size in zip(starts, sizes, strict=True)] for x in (theirs, ours)
        )
        reading.read_memory(os.getpid(), given_, wanted)
    assert torch.equal(ours, theirs)


def test_memory_that_is_not_there_is_an_error() -> None:
    ours = torch.zeros(4)
    with pytest.raises(WeftError, match=f"cannot read the memory of process id {os.getpid()}"):
        reading.read_memory(os.getpid(), [(16, ours.nbytes)], [(ours.data_ptr(), ours.nbytes)])
