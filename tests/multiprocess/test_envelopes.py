"""Small messages: what is put in comes out, and the memory outlives the mode it was made in."""

from __future__ import annotations

import pytest
import torch

from weft.runtime.processes.transport.small_messages import Envelopes

SENT = {0: torch.arange(5.0), 2: torch.tensor([True, False])}


def passed_on(envelopes: Envelopes, call: int) -> tuple[list[int], dict[int, torch.Tensor]]:
    """What arrives where everyone sends the same to everyone."""
    envelopes.fill(call, SENT)
    envelopes.arriving.copy_(envelopes.leaving)
    found = {k: torch.empty_like(x) for k, x in SENT.items()}
    envelopes.empty(found)
    return envelopes.calls(), found


@pytest.mark.parametrize("call", [7, -(1 << 63), (1 << 63) - 1])
def test_what_is_put_in_comes_out_with_the_call(call: int) -> None:
    calls, found = passed_on(Envelopes(3), call)
    assert calls == [call] * 3
    assert all(torch.equal(found[k], x) for k, x in SENT.items())


def test_memory_made_in_inference_mode_is_used_after_it() -> None:
    with torch.inference_mode():
        envelopes = Envelopes(3)
        assert passed_on(envelopes, 1)[0] == [1, 1, 1]
    assert passed_on(envelopes, 2)[0] == [2, 2, 2]
