"""Libraries that read tensors by address (safetensors) find the whole value there, in any layout."""

from __future__ import annotations

import ctypes
import gc
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, load_model, save_file, save_model

import weft
from weft import P
from weft.tensor import addresses as pointing

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="addresses are read on the host")

MESH = weft.make_mesh({"dp": 2, "tp": 3})
SPECS = [P(), P("dp"), P(None, "tp"), P("tp", "dp"), P(("dp", "tp")), P(None, ("tp", "dp"))]


def read(x: torch.Tensor) -> list[float]:
    """The elements at a tensor's address."""
    return list((ctypes.c_float * x.numel()).from_address(x.data_ptr()))


@settings(max_examples=25)
@given(spec=st.sampled_from(SPECS), shape=st.sampled_from([(4, 6), (5, 7), (1, 2), (3, 1)]))
def test_a_file_of_any_layout_is_the_file_of_the_whole(spec, shape) -> None:
    x = torch.randn(shape)
    with tempfile.TemporaryDirectory() as folder:
        save_file({"x": weft.shard(x, MESH, spec)}, f"{folder}/x.safetensors")
        assert torch.equal(load_file(f"{folder}/x.safetensors")["x"], x)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_views_lie_in_the_memory_of_what_they_show(spec) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    y = weft.shard(x, MESH, spec)
    assert read(y) == x.flatten().tolist()
    for show in (torch.Tensor.detach, lambda t: t.view(-1), lambda t: t.view(-1)[-1], lambda t: t[1:], lambda t: t[2]):
        assert show(y).data_ptr() - y.data_ptr() == show(x).data_ptr() - x.data_ptr()
        assert show(y).untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        assert read(show(y)) == show(x).flatten().tolist()
    assert y.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert y.clone().data_ptr() != y.data_ptr()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_is_written_later_is_read_later(spec) -> None:
    y = weft.shard(torch.zeros(4, 6), MESH, spec)
    assert set(read(y)) == {0.0}
    y.add_(1)
    assert set(read(y)) == {1.0}
    y[2] = 5
    assert read(y) == y.full_tensor().flatten().tolist()
    y.data = torch.full((4, 6), 7.0)
    assert set(read(y)) == {7.0}


def test_strides_lead_to_the_elements() -> None:
    x = torch.arange(12.0).reshape(4, 3)
    for show in (lambda t: t.mT, lambda t: t[:, None].expand(4, 2, 3), lambda t: t[::2], lambda t: t.mT[1:, ::2]):
        for settle in (lambda t: t, torch.Tensor.detach):
            y = settle(show(weft.shard(x, MESH, P("dp"))))
            reach = 1 + sum(stride * (size - 1) for stride, size in zip(y.stride(), y.shape, strict=True))
            memory = torch.tensor(list((ctypes.c_float * reach).from_address(y.data_ptr())))
            assert torch.equal(memory.as_strided(y.shape, y.stride()), show(x))


def test_modes_change_nothing() -> None:
    y = weft.shard(torch.zeros(4, 6), MESH, P("dp"))
    with torch.inference_mode():
        assert set(read(y)) == {0.0}
    with torch.no_grad():
        y.add_(1)
    assert set(read(y)) == {1.0}
    with torch.device("meta"):
        z = y * 2
        assert set(read(z)) == {2.0}
    with torch.inference_mode():
        made = y + 2
    assert set(read(made)) == {3.0}


def test_a_pending_sum_is_read_as_its_value() -> None:
    total = weft.shard(torch.ones(2, 6), MESH, P(None, "tp")) @ weft.shard(torch.ones(6, 2), MESH, P("tp", None))
    assert read(total) == [6.0] * 4


def test_nothing_to_read_has_no_address() -> None:
    assert weft.shard(torch.ones(0, 4), MESH, P("dp")).data_ptr() == 0
    assert weft.shard(torch.ones(2, 4, device="meta"), MESH, P("dp")).data_ptr() == 0


def test_copies_for_reading_go_with_the_tensors_that_were_read(memory: str) -> None:
    gc.collect()
    before = len(pointing._KNOWN)
    y = weft.shard(torch.ones(4, 6), MESH, P("tp"))
    y.data_ptr()
    shown = y.detach()
    assert shown.data_ptr() == y.data_ptr()
    assert len(pointing._KNOWN) == before + (memory == "separate")  # one copy for both
    del y, shown
    assert len(pointing._KNOWN) == before


def test_the_weights_of_an_rnn_stay_where_they_are() -> None:
    layer = weft.nn.shard_module(torch.nn.LSTM(4, 3), MESH, {"weight_ih_l0": P("tp")})
    before = [(x.data_ptr(), x.mapping) for x in layer.parameters()]
    torch._cudnn_rnn_flatten_weight(
        layer._flat_weights, 4, 4, 2, 3, 0, 1, False, False
    )  # as `layer.to(device)` does on GPUs
    assert [(x.data_ptr(), x.mapping) for x in layer.parameters()] == before


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.other = torch.nn.Embedding(12, 6), torch.nn.Linear(6, 12), torch.nn.Linear(6, 12)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_tied_weights_are_found_and_saved_once(spec, tmp_path: Path) -> None:
    plain = Tied()
    whole = {name: x.clone() for name, x in plain.state_dict().items()}
    model = weft.nn.shard_module(Tied(), MESH, {"embed.weight": spec, "head.weight": spec, "other.weight": spec})
    model.load_state_dict(whole)
    save_model(model, str(tmp_path / "m.safetensors"))
    save_model(plain, str(tmp_path / "p.safetensors"))
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "p.safetensors").read_bytes()
    with torch.no_grad():
        model.embed.weight.zero_()
    load_model(model, str(tmp_path / "m.safetensors"))
    assert torch.equal(model.head.weight.full_tensor(), whole["head.weight"])
    with pytest.raises(RuntimeError, match="Some tensors share memory"):  # as of plain tensors
        save_file(model.state_dict(), str(tmp_path / "f.safetensors"))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_full_state_dict_is_plain_and_keeps_what_is_tied(spec) -> None:
    plain = Tied()
    model = Tied()
    model.load_state_dict(plain.state_dict())
    weft.nn.shard_module(model, MESH, {"embed.weight": spec, "head.weight": spec})
    whole = weft.checkpoint.full_state_dict(model)
    assert list(whole) == list(plain.state_dict())
    assert whole["embed.weight"] is whole["head.weight"]
    for name, x in plain.state_dict().items():
        assert type(whole[name]) is torch.Tensor
        assert not whole[name].requires_grad
        assert torch.equal(whole[name], x)
    whole["embed.weight"].zero_()
    assert torch.equal(model.embed.weight.full_tensor(), plain.embed.weight)
