"""What cuDNN's recurrent layers are given besides what they compute with."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.handlers import recurrent_states
from weft.rules.call import BoundCall

MESH = weft.make_mesh({"a": 2})


@pytest.mark.parametrize(
    ("dropout", "train", "is_kept"),
    [(0.0, True, False), (0.5, False, False), (0.5, True, True)],
)
def test_numbers_that_nothing_is_dropped_by_are_the_same_in_all_processes(
    monkeypatch: pytest.MonkeyPatch, dropout: float, train: bool, is_kept: bool
) -> None:
    ran: list[BoundCall] = []
    monkeypatch.setattr(recurrent_states, "run_by_rule", ran.append)
    x, state = weft.shard(torch.randn(3, 2, 4), MESH, weft.P(None, "a")), torch.zeros(1, 2, 5)
    weights, numbers = [torch.randn(20, 4), torch.randn(20, 5)], torch.randint(1, 255, (8,), dtype=torch.uint8)
    args = (x, weights, 2, None, state, state, 2, 5, 0, 1, False, dropout, train, False, [], numbers)
    recurrent_states._on_gpu(BoundCall(torch.ops.aten._cudnn_rnn.default, args))
    (call,) = ran
    given = call.arg("dropout_state")
    assert isinstance(given, torch.Tensor)
    assert torch.equal(given, numbers if is_kept else torch.zeros_like(numbers))
    assert call.tensors[0] is x
    assert all(one is other for one, other in zip(call.tensors[1:3], weights, strict=True))
