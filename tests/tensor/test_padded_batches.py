"""Packed sequences and padding that torch's encoder leaves out: what plain torch gives, for sharded batches and weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import weft
from weft import P
from weft.runtime.machine import residence

MESH = weft.make_mesh({"dp": 2, "tp": 2})
HOME = residence(MESH).device
CASES = {
    "LSTM": (nn.LSTM, {}),
    "deep LSTM": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "GRU": (nn.GRU, {"bidirectional": True}),
    "RNN": (nn.RNN, {}),
}


def whole(x: torch.Tensor | None) -> torch.Tensor | None:
    return x.full_tensor() if isinstance(x, weft.Tensor) else x


@pytest.mark.parametrize("spec", [P("dp"), P(None, None, "tp")], ids=str)
@pytest.mark.parametrize("lengths", [[5, 4, 2, 1], [2, 5, 1, 3]], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("name", CASES)
def test_recurrent_modules_take_packed_sequences(name: str, lengths: list[int], spec: P) -> None:
    torch.manual_seed(0)
    make, options = CASES[name]
    plain = make(4, 6, batch_first=True, **options).double().to(HOME)
    model = weft.nn.shard_module(copy.deepcopy(plain), MESH, {"weight_ih*": P("tp")})
    values = torch.randn(4, 5, 4, dtype=torch.float64, device=HOME)
    results = []
    for module, x in ((plain, values), (model, weft.shard(values, MESH, spec))):
        x.requires_grad_()
        packed = pack_padded_sequence(x, torch.tensor(lengths, device="cpu"), batch_first=True, enforce_sorted=False)
        assert type(packed.batch_sizes) is torch.Tensor  # torch reads its memory
        out, state = module(packed)
        padded, found = pad_packed_sequence(out, batch_first=True)
        assert found.tolist() == lengths
        padded.square().sum().backward()
        states = state if isinstance(state, tuple) else (state,)
        results.append([padded, *states, x.grad, *(p.grad for p in module.parameters())])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(whole(found), expected, rtol=1e-9, atol=1e-12)


def test_lengths_may_be_sharded() -> None:
    x = torch.randn(4, 5, 3, device=HOME)
    lengths = torch.tensor([5, 3, 3, 1], device="cpu")
    expected = pack_padded_sequence(x, lengths, batch_first=True)
    spread = weft.shard(x, MESH, P("dp"))
    found = torch._VF._pack_padded_sequence(spread, weft.shard(lengths.to(HOME), MESH, P("tp")), True)
    assert torch.equal(found[0].full_tensor(), expected.data)
    assert torch.equal(found[1], expected.batch_sizes)


def encoders() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, nn.LayerNorm(8))
    plain = plain.to(HOME).eval()
    patterns = {"*linear1.*": P("tp"), "*linear2.weight": P(None, "tp")}
    return plain, weft.nn.shard_module(copy.deepcopy(plain), MESH, patterns)


def padding(*lengths: int) -> torch.Tensor:
    return torch.arange(5, device=HOME) >= torch.tensor(lengths, device=HOME)[:, None]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("spec", [P("dp"), P(), P(None, "tp")], ids=str)
@pytest.mark.parametrize("sharded_mask", [False, True])
def test_an_encoder_leaves_padding_out(spec: P, sharded_mask: bool) -> None:
    plain, model = encoders()
    x, mask = torch.randn(4, 5, 8, device=HOME), padding(5, 3, 1, 4)
    given = weft.shard(mask, MESH, P("dp")) if sharded_mask else mask
    with torch.no_grad():
        expected = plain(x, src_key_padding_mask=mask)
        found = model(weft.shard(x, MESH, spec), src_key_padding_mask=given)
    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_that_is_not_at_the_end() -> None:
    plain, model = encoders()
    x, mask = torch.randn(4, 5, 8, device=HOME), padding(5, 3, 2, 4).flip(1)
    with torch.no_grad():
        expected = plain(x, src_key_padding_mask=mask)
        found = model(weft.shard(x, MESH, P("dp")), src_key_padding_mask=mask)
    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-4, atol=1e-5)


def test_a_layer_that_would_read_the_padding_is_refused() -> None:
    _, model = encoders()
    model.layers[1].linear1.register_forward_hook(lambda *_: None)  # torch then takes no fast path for this layer
    with torch.no_grad(), pytest.raises(NotImplementedError, match="make the encoder with enable_nested_tensor=False"):
        model(weft.shard(torch.randn(4, 5, 8, device=HOME), MESH, P("dp")), src_key_padding_mask=padding(5, 3, 1, 4))
