"""Recurrent layers on a GPU: over a split batch nothing but the gradients of weights moves."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import weft
from weft import Accelerator, P

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[True, False], ids=["cudnn", "cells"], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """All layers by one call of cuDNN, or cell by cell."""
    with torch.backends.cudnn.flags(enabled=request.param, allow_tf32=False):
        yield


OPTIONS: dict[str, dict[str, object]] = {
    "one": {},
    "batch first": {"batch_first": True},
    "deep": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "without biases": {"bias": False},
    "projected": {"proj_size": 4},
}


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, weft.Tensor) else x


def grown(module: nn.RNNBase, x: torch.Tensor) -> list[torch.Tensor]:
    """What layers give, last states included, and the gradients of input and weights."""
    out, last = module(x)
    last = last if isinstance(last, tuple) else (last,)
    loss = out.square().sum()
    for state in last:
        loss = loss + state.sum()
    loss.backward()
    return [out, *last, x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("batch", [8, 3])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("made", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda made: made.__name__)
def test_a_split_batch_moves_the_gradients_of_weights_only(made, name, batch, memory) -> None:
    if "proj_size" in OPTIONS[name] and made is not nn.LSTM:
        return
    mesh = weft.DeviceMesh([Accelerator(i) for i in range(4)], (4,), ("dp",))
    module = made(5, 7, device="cuda", **OPTIONS[name])
    x = torch.randn((batch, 9, 5) if module.batch_first else (9, batch, 5), device="cuda")
    expected = grown(copy.deepcopy(module), x.clone().requires_grad_())
    weft.nn.shard_module(module, mesh, {})
    for _ in range(2):  # the second time repeats what is known
        module.zero_grad()
        ours = weft.shard(x, mesh, P("dp") if module.batch_first else P(None, "dp")).requires_grad_()
        with weft.comm_log() as log:
            found = grown(module, ours)
        assert {record.op for record in log if record.total_bytes} == {"gradient"}
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(whole(one), other, rtol=1e-3, atol=1e-4)
        assert [y.stride() for y in found[:2]] == [y.stride() for y in expected[:2]]
        assert found[0].placements == ours.placements


CELLS = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell, "RNN": nn.RNNCell}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_cells(name: str, bias: bool, memory) -> None:
    mesh = weft.DeviceMesh([Accelerator(i) for i in range(4)], (4,), ("dp",))
    module, x = CELLS[name](5, 7, bias=bias, device="cuda"), torch.randn(6, 5, device="cuda")

    def grown(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        given = x.requires_grad_()
        found = module(given)
        first = found[0] if isinstance(found, tuple) else found
        first.square().sum().backward()
        return [first, given.grad, *(p.grad for p in module.parameters())]

    expected = grown(copy.deepcopy(module), x.clone())
    weft.nn.shard_module(module, mesh, {})
    with weft.comm_log() as log:
        found = grown(module, weft.shard(x, mesh, P("dp")))
    assert {record.op for record in log if record.total_bytes} == {"gradient"}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(whole(one), other, rtol=1e-3, atol=1e-4)


def test_dropout_between_layers_is_drawn_once_for_all(memory) -> None:
    mesh = weft.DeviceMesh([Accelerator(i) for i in range(4)], (4,), ("dp",))
    module = weft.nn.shard_module(nn.LSTM(5, 7, num_layers=2, dropout=0.5, device="cuda"), mesh, {})
    found = grown(module, weft.shard(torch.randn(9, 8, 5, device="cuda"), mesh, P(None, "dp")).requires_grad_())
    assert all(torch.isfinite(whole(x)).all() for x in found)
