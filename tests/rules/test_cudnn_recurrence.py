"""Recurrent layers of cuDNN over a split batch: nothing but the gradients of weights moves. On a GPU: `tests/gpu/test_recurrence.py`."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import weft
from weft import P

from .harness import memory
from .recurrent_kernels import GRU, LSTM, TANH, stand_ins

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="stand-ins for the kernels of a GPU, which is here")
MESH = weft.make_mesh({"dp": 4})
MODULES = {LSTM: nn.LSTM, GRU: nn.GRU, TANH: nn.RNN}
OPTIONS: dict[str, dict[str, object]] = {
    "one": {},
    "batch first": {"batch_first": True},
    "deep": {"num_layers": 2, "bidirectional": True},
    "deep, batch first": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "without biases": {"bias": False},
}


@pytest.fixture(params=[True, False], ids=["apart", "one memory"], autouse=True)
def stored(request: pytest.FixtureRequest) -> Iterator[None]:
    with memory(request.param), stand_ins():
        yield


def spec_of(module: nn.RNNBase) -> P:
    return P("dp") if module.batch_first else P(None, "dp")


def grown(
    module: nn.RNNBase, mode: int, x: torch.Tensor, first: list[torch.Tensor], train: bool = True, dropout: float = 0.0
):
    """What the op gives, and the gradients of all that it is given."""
    states, cells = first if mode == LSTM else (*first[:1], None)
    results = torch.ops.aten._cudnn_rnn(
        x, module._flat_weights, 4 if module.bias else 2, None, states, cells, mode, module.hidden_size, 0,
        module.num_layers, module.batch_first, dropout, train, module.bidirectional, [], None,
    )  # fmt: skip
    loss = results[0].square().sum() + 2 * results[1].sum()
    (loss + 3 * results[2].sum() if mode == LSTM else loss).backward()
    given = [x, states, *([cells] if mode == LSTM else [])]
    return [*results[:3], *(each.grad for each in given)], [p.grad for p in module.parameters()]


def made(mode: int, name: str, batch: int) -> tuple[nn.RNNBase, torch.Tensor, list[torch.Tensor]]:
    module = MODULES[mode](5, 7, **OPTIONS[name])
    x = torch.randn((batch, 3, 5) if module.batch_first else (3, batch, 5))
    rows = module.num_layers * (2 if module.bidirectional else 1)
    return module, x, [torch.randn(rows, batch, 7) for _ in range(2)]


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, weft.Tensor) else x


@pytest.mark.parametrize("batch", [8, 3])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mode", MODULES)
def test_a_split_batch_moves_the_gradients_of_weights_only(mode: int, name: str, batch: int) -> None:
    module, x, first = made(mode, name, batch)
    expected, of_weights = grown(
        copy.deepcopy(module), mode, x.clone().requires_grad_(), [s.clone().requires_grad_() for s in first]
    )
    weft.nn.shard_module(module, MESH, {})
    for _ in range(2):  # the second time repeats what is known
        module.zero_grad()
        ours = weft.shard(x, MESH, spec_of(module)).requires_grad_()
        states = [weft.shard(s, MESH, P(None, "dp")).requires_grad_() for s in first]
        with weft.comm_log() as log:
            found, here = grown(module, mode, ours, states)
        assert {record.op for record in log if record.total_bytes} == {"gradient"}
        for one, other in zip([*found, *here], [*expected, *of_weights], strict=True):
            torch.testing.assert_close(whole(one), other, rtol=1e-4, atol=1e-5)
        assert [y.stride() for y in found[:2]] == [y.stride() for y in expected[:2]]
        assert found[0].placements == ours.placements
        assert found[1].placements == states[0].placements


def test_what_is_drawn_for_all_sequences_is_drawn_once() -> None:
    """With dropout between layers, the whole batch is computed everywhere."""
    module, x, first = made(LSTM, "deep", 8)
    weft.nn.shard_module(module, MESH, {})
    ours = weft.shard(x, MESH, P(None, "dp"))
    results, _ = grown(
        module, LSTM, ours.requires_grad_(), [weft.shard(s, MESH, P()).requires_grad_() for s in first], dropout=0.5
    )
    assert results[0].mapping.spec == P(None, None, None)


def test_only_what_is_asked_for_is_given() -> None:
    module, x, first = made(LSTM, "one", 8)
    weft.nn.shard_module(module, MESH, {}).requires_grad_(False)
    module.weight_hh_l0.requires_grad_()
    states = [weft.shard(s, MESH, P(None, "dp")).requires_grad_(False) for s in first]
    found, of_weights = grown(module, LSTM, weft.shard(x, MESH, P(None, "dp")), states)
    assert found[3:] == [None] * 3
    assert [g is not None for g in of_weights] == [False, True, False, False]


def test_notes_of_other_sequences_are_refused_by_the_stand_in() -> None:
    """Otherwise these tests could pass with the notes of the whole batch for a part of it."""
    module, x, (states, cells) = made(LSTM, "one", 4)
    args = [module._flat_weights, 4, None, states, cells, LSTM, 7, 0, 1, False, 0.0, True, False, [], None]
    out, *_, notes, block = torch.ops.aten._cudnn_rnn(x, *args)
    back = [*args[:2], block, states, cells, out, out, None, None, *args[5:], notes, [True] * 4]
    torch.ops.aten._cudnn_rnn_backward(x, *back)
    with pytest.raises(AssertionError):
        torch.ops.aten._cudnn_rnn_backward(x + 1, *back)
