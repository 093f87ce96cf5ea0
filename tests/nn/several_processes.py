"""What each of several processes runs for `test_several_processes`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import weft
from examples.models import llama
from weft import P


def trained() -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    """A plain model, and the same sharded over all processes, after three steps each."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    with torch.device("cpu"):
        plain = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 8)).double()
    plain[3].weight = plain[2].weight
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, {"0.*": P("tp"), "2.weight": P(None, "tp")})
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (plain, model)]
    for _ in range(3):
        x = torch.randn(4, 6, dtype=torch.float64, device="cpu")
        for m, optimizer, batch in zip((plain, model), optimizers, (x, weft.shard(x, mesh, P("dp"))), strict=True):
            optimizer.zero_grad()
            m(batch).square().mean().backward()
            optimizer.step()
    return plain, model, optimizers[1]


def check_local_map() -> None:
    """A softmax over a dim that lies in several processes, unevenly, and its gradient."""

    def softmax(x: torch.Tensor) -> torch.Tensor:
        e = (x - weft.all_reduce(x.amax(-1, keepdim=True), "max")).exp()
        return e / weft.all_reduce(e.sum(-1, keepdim=True))

    mesh = weft.make_mesh({"t": 4})
    x, weights = torch.randn(2, 3, 10, dtype=torch.float64).unbind()
    x.requires_grad_()
    with weft.comm_log() as log:
        found = weft.local_map(softmax, P(None, "t"), P(None, "t"), mesh=mesh)(x)
    assert {record.kind for record in log if record.bytes_received} == {"all_reduce"}, log.counts()
    torch.testing.assert_close(found.full_tensor().cpu(), x.softmax(-1))
    (gradient,) = torch.autograd.grad((found * weights).sum(), x)
    (expected,) = torch.autograd.grad((x.softmax(-1) * weights).sum(), x)
    torch.testing.assert_close(gradient, expected)
    check_replicas()


def check_replicas() -> None:
    """What processes return as replicas is compared, and all of them raise the same; rounding is no difference."""
    mesh = weft.make_mesh({"a": 2, "b": 2})
    x = torch.arange(130.0).reshape(2, 65)
    changes: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
        "values": lambda x, at: x + at,
        "the order of rows": lambda x, at: x.flip(0) if at else x,
        "an odd number": lambda x, at: torch.where((x == 3) & (at == 1), torch.nan, x),
        "whole numbers": lambda x, at: x.long() + at,
    }
    for name, change in changes.items():
        for axis in mesh.axis_names:
            expected = "device 0 (a=0, b=0) and device " + ("2 (a=1, b=0)" if axis == "a" else "1 (a=0, b=1)")
            differing = weft.local_map(lambda x, c=change, a=axis: c(x, weft.axis_index(a)), P(), P(), mesh=mesh)
            try:
                differing(x)
            except ValueError as error:
                assert f"{expected} returned different values" in str(error), (name, str(error))
            else:
                raise AssertionError(f"{name}, over {axis}: taken")
    rounded = weft.local_map(lambda x: x * (1 + 1e-7 * weft.axis_index("a")), P(), P(), mesh=mesh)(x)
    torch.testing.assert_close(rounded.local_shards[0].cpu(), x)
    parts = weft.local_map(lambda x: x + weft.axis_index("b"), P(None, "b"), P(None, "b"), mesh=mesh)(x)
    assert parts.sum().item() == x.sum().item() + 64


def check_meta() -> None:
    """A module made on the meta device is the one of one device."""
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    torch.manual_seed(1)
    made = weft.nn.shard_module(nn.Linear(6, 8, device="meta"), mesh, {"weight": P("tp", "dp")})
    torch.manual_seed(1)
    # Every kind of device draws numbers of its own.
    assert torch.equal(made.weight.full_tensor(), nn.Linear(6, 8, device=made.weight.device).weight)


def check_to() -> None:
    """A module goes through meta and comes back, in the layouts it had; nothing comes out of meta."""
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    torch.manual_seed(2)
    plain = nn.Linear(6, 8)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    values = {name: x.detach().clone() for name, x in plain.named_parameters()}
    model = weft.nn.shard_module(plain, mesh, {"weight": P("tp", "dp")})
    home = model.weight.device
    for moved in (model.to(home), model.to(home, torch.float64).float(), model.to("meta").to_empty(device=home)):
        assert moved.weight.mapping.layout(2) is weft.NamedMapping(mesh, P("tp", "dp")).layout(2)
        assert moved.weight.device == home
    model.load_state_dict(values)
    model(torch.ones(2, 6, device="cpu")).sum().backward()
    optimizer.step()  # was made before the parameters were sharded
    assert torch.allclose(model.weight.full_tensor().cpu(), values["weight"].cpu() - 1)
    shards = [torch.empty(4, 3, device="meta") for _ in range(2)]
    assert weft.from_local(shards, model.weight.mapping).is_meta
    try:
        model.weight.to("meta").to(home)
    except NotImplementedError as error:
        assert str(error) == "Cannot copy out of meta tensor; no data!"


def check_vmap() -> None:
    """A batch dim that is split over the processes stays split."""
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    x = torch.arange(48.0, device="cpu").reshape(4, 2, 6)
    moved = torch.vmap(lambda v: weft.shard(v, mesh, P(None, "tp")))(weft.shard(x, mesh, P("dp")))
    assert moved.mapping.layout(3) is weft.NamedMapping(mesh, P("dp", None, "tp")).layout(3)
    assert torch.equal(moved.full_tensor().cpu(), x)


def check_padded() -> None:
    """Packed sequences, an encoder that leaves padding out, and scalars that torch reads by itself."""
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    torch.manual_seed(3)
    recurrent = nn.LSTM(6, 4, batch_first=True)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1).eval()
    x, lengths = torch.randn(4, 5, 6), torch.tensor([2, 5, 1, 3])
    mask = torch.arange(5) >= lengths[:, None]
    results = []
    for spread in (False, True):
        batch = weft.shard(x, mesh, P("dp")) if spread else x
        if spread:
            weft.nn.shard_module(recurrent, mesh, {"weight_ih*": P("tp")})
            weft.nn.shard_module(encoder, mesh, {"*linear1.*": P("tp")})
        packed = nn.utils.rnn.pack_padded_sequence(batch, lengths.cpu(), batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(recurrent(packed)[0], batch_first=True)
        with torch.no_grad():
            encoded = encoder(batch, src_key_padding_mask=mask)
        results.append([padded.detach(), encoded, torch.tensor([encoded.sum(), 1.0])])
    for expected, found in zip(*results, strict=True):
        value = found.full_tensor() if isinstance(found, weft.Tensor) else found
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)


def check_counting() -> None:
    """Each process counts the operations of the whole, as plain torch does."""
    counts = []
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    plain = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, {"0.*": P("tp"), "2.weight": P(None, "tp")})
    x = torch.ones(4, 6)
    for each, batch in ((plain, x), (model, weft.shard(x, mesh, P("dp")))):
        with FlopCounterMode(display=False) as counter:
            each(batch).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]


def check_short_sums(mesh: weft.DeviceMesh) -> None:
    """Sums of half precision travel as such, though the model widens them: a block of Megatron's takes two each way."""
    torch.manual_seed(0)
    layers, batch, length, width = 2, 4, 8, 16
    model = llama.Llama(16, length, width, 2, 2, 32, layers).bfloat16()
    weft.nn.shard_module(model, mesh, llama.LAYOUTS["tp"])
    with weft.comm_log() as log:
        model(weft.shard(torch.randint(16, (batch, length)), mesh, P("dp"))).float().square().mean().backward()
    sums = [each for each in log if each.axes == ("tp",) and tuple(each.shape) == (batch, length, width)]
    assert [each.kind for each in sums] == ["all_reduce"] * 4 * layers
    held = batch * length * width * 2 // mesh.axis_size("dp")
    assert {each.bytes_received for each in sums} == {held * 2 * (mesh.axis_size("tp") - 1) // mesh.axis_size("tp")}


def main(path: str) -> None:
    """Trains, saves and loads in another layout."""
    weft.distributed.init(devices_per_process=2)
    plain, model, optimizer = trained()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.full_tensor().cpu(), one, rtol=1e-9, atol=1e-12)
    weft.checkpoint.save({"model": model, "optimizer": optimizer, "step": 3}, path)
    line = weft.make_mesh({"x": 4})
    again = weft.nn.shard_module(copy.deepcopy(plain), line, {"*.weight": P(None, "x")})
    for parameter in again.parameters():
        nn.init.zeros_(parameter)
    resumed = torch.optim.AdamW(again.parameters(), lr=0.1)
    weft.checkpoint.load(path, {"model": again, "optimizer": resumed, "step": None})
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(other.full_tensor().cpu(), one, rtol=1e-9, atol=1e-12)
    check_local_map()
    check_meta()
    check_to()
    check_vmap()
    check_padded()
    check_counting()
    check_short_sums(weft.make_mesh({"dp": 2, "tp": 2}))
    weft.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
