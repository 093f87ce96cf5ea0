"""Small messages: what is put in comes out, and the memory outlives the mode it was made in."""

from __future__ import annotations

import pytest
import torch

from weft.runtime.processes.transport.small_messages import SmallMessages

SENT = {0: torch.arange(5.0), 2: torch.tensor([True, False])}


def passed_on(small: SmallMessages, call: int) -> tuple[list[int], dict[int, torch.Tensor]]:
    """What arrives where everyone sends the same to everyone."""
    small.fill(call, SENT)
    small.arriving.copy_(small.leaving)
    found = {k: torch.empty_like(x) for k, x in SENT.items()}
    small.empty(found)
    return small.calls(), found


@pytest.mark.parametrize("call", [7, -(1 << 63), (1 << 63) - 1])
def test_what_is_put_in_comes_out_with_the_call(call: int) -> None:
    calls, found = passed_on(SmallMessages(3), call)
    assert calls == [call] * 3
    assert all(torch.equal(found[k], x) for k, x in SENT.items())


def test_memory_made_in_inference_mode_is_used_after_it() -> None:
    with torch.inference_mode():
        small = SmallMessages(3)
        assert passed_on(small, 1)[0] == [1, 1, 1]
    assert passed_on(small, 2)[0] == [2, 2, 2]
