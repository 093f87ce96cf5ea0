"""Nothing that a user holds shows through: neither memory that was handed out before, nor what a tensor hands out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import weft
from weft import P
from weft.sharding.mapping import NamedMapping

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="NumPy and DLPack hold host memory here")

MESH = weft.make_mesh({"a": 2, "b": 2})
SPECS = {"replicated": P(), "split": P("a", "b"), "rows": P(("b", "a")), "one axis": P(None, "a")}
SINGLE = weft.DeviceMesh.single()

Writer = Callable[[torch.Tensor], object]
"""Takes what may be written through later."""
WRITERS: dict[str, Writer] = {
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "numpy of a part": lambda x: x[1:].numpy(),
    "numpy of detach": lambda x: x.detach().numpy(),
    "dlpack": torch.from_dlpack,
    "dlpack to numpy": np.from_dlpack,
    "dlpack of detach": lambda x: torch.from_dlpack(x.detach()),
    "dlpack of a part": lambda x: torch.from_dlpack(x[1:]),
    "dlpack of a view": lambda x: torch.from_dlpack(x.view(-1)),
    "torch": lambda x: x,
    "a torch view": lambda x: x[1:],
    "data": lambda x: x.data,
}


def data_of(x: torch.Tensor, spec: P) -> weft.Tensor:
    y = weft.shard(torch.zeros(4, 4), MESH, spec)
    y.data = x
    return y


def module_of(x: torch.Tensor, spec: P) -> weft.Tensor:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(x)
    return weft.nn.shard_module(module, MESH, {"weight": spec}).weight.detach()


MADE: dict[str, Callable[[torch.Tensor, P], weft.Tensor]] = {
    "shard": lambda x, spec: weft.shard(x, MESH, spec),
    "shard of a tree": lambda x, spec: weft.shard({"x": x}, MESH, spec)["x"],
    "shard of a view": lambda x, spec: weft.shard(x.view(2, 8).view(4, 4), MESH, spec),
    "tensor": lambda x, spec: weft.tensor(x, mapping=NamedMapping(MESH, spec)),
    "from_local": lambda x, spec: weft.from_local([x] * 4, NamedMapping(MESH, P())),
    "to_device": lambda x, spec: weft.to_device(x, weft.CPU(0)),
    "broadcast": lambda x, spec: weft.distributed_broadcast(x, MESH),
    "data": data_of,
    "shard_module": module_of,
    "copy_": lambda x, spec: weft.shard(torch.zeros(4, 4), MESH, spec).copy_(x),
}


def write(writer: object, value: float) -> None:
    if isinstance(writer, np.ndarray):
        writer = torch.from_numpy(writer) if writer.flags.writeable else writer.copy()
    writer[:] = value


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("writer", WRITERS)
def test_memory_that_was_handed_out_before_does_not_show_through(writer: str, made: str, spec: str) -> None:
    buffer = torch.arange(16.0).reshape(4, 4)
    expected = buffer.clone()
    held = WRITERS[writer](buffer)
    x = MADE[made](buffer, SPECS[spec])
    other = x.clone()
    write(held, 7)
    assert torch.equal(x.full_tensor(), expected)
    x.add_(1)
    assert torch.equal(other.full_tensor(), expected)
    assert torch.equal(buffer[1:], torch.full((3, 4), 7.0))


HANDED: dict[str, Callable[[weft.Tensor], object]] = {
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "full_tensor": lambda x: x.full_tensor(),
    "full_tensor, numpy": lambda x: x.full_tensor().numpy(),
    "full_tensor, dlpack": lambda x: torch.from_dlpack(x.full_tensor()),
    "shard": lambda x: x.local_shards[0],
    "shard, numpy": lambda x: x.local_shards[-1].numpy(),
    "shard, dlpack": lambda x: torch.from_dlpack(x.local_shards[-1]),
    "the only shard, dlpack": lambda x: torch.from_dlpack(weft.to_device(x, weft.CPU(0))),
    "the only shard, dlpack to numpy": lambda x: np.from_dlpack(weft.to_device(x, weft.CPU(0))),
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("handed", HANDED)
@pytest.mark.parametrize("lazily", ["alone", "shared"])
def test_what_is_handed_out_can_be_written_to(lazily: str, handed: str, spec: str) -> None:
    x = weft.shard(torch.arange(16.0).reshape(4, 4), MESH, SPECS[spec])
    expected = x.full_tensor().clone()
    others = [weft.shard(x, MESH, SPECS[spec]), weft.shard(x, MESH, P()), x.detach()] if lazily == "shared" else []
    held = HANDED[handed](x)
    write(held, 7)
    for each in (x, *others):
        assert torch.equal(each.full_tensor(), expected)
    before = torch.as_tensor(held).clone()
    x.add_(1)
    assert torch.equal(torch.as_tensor(held), before)


def test_the_only_shard_hands_out_a_copy_unless_memory_is_asked_for() -> None:
    x = weft.to_device(torch.zeros(4), weft.CPU(0))
    torch.from_dlpack(x)[:] = 1
    assert x.sum().item() == 0
    torch.utils.dlpack.from_dlpack(x.__dlpack__(copy=False))[:] = 1
    assert x.sum().item() == 4


@pytest.mark.parametrize("spec", ["split", "rows"])
def test_memory_is_shared_where_that_is_asked_for(spec: str) -> None:
    buffer = np.zeros((4, 4), dtype=np.float32)
    x = weft.shard(buffer, MESH, SPECS[spec], copy=False)
    buffer[1:] = 3
    assert torch.equal(x.full_tensor(), torch.from_numpy(buffer))
    x.add_(1)
    assert buffer.sum() == 52
    other = weft.shard(x, MESH, P())
    buffer[:] = 0
    assert other.sum().item() == 52
    assert torch.equal(x.local_shards[-1], torch.zeros_like(x.local_shards[-1]))


def test_memory_that_cannot_be_shared_is_not(memory: str) -> None:
    x = torch.zeros(4, 4)
    with pytest.raises(ValueError, match="it requires a gradient"):
        weft.shard(torch.zeros(4, requires_grad=True), MESH, P(), copy=False)
    with pytest.raises(ValueError, match=r"it is a weft[.]Tensor already"):
        weft.shard(weft.shard(x, MESH, P("a")), MESH, P(), copy=False)
    with pytest.raises(ValueError, match=r"a reduction over a is to be pending"):
        weft.shard(x, MESH, NamedMapping(MESH, P(), unreduced=["a"]), copy=False)
    if memory == "separate":
        with pytest.raises(ValueError, match="has replicas"):
            weft.shard(x, MESH, P("a"), copy=False)


def test_fresh_memory_is_not_copied(memory: str) -> None:
    x = torch.zeros(1 << 20)
    for given in (x, torch.nn.Parameter(torch.zeros(1 << 20)), torch.zeros(1 << 20).view(1 << 10, -1)):
        y = weft.shard(given, SINGLE, P())
        assert torch._C._is_cow_tensor(given.detach()), "it was copied at once"
        assert y.shape == given.shape


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("scan", [torch.cumsum, torch.cumprod])
def test_all_parts_of_a_running_total_have_its_dtype(scan: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    plain = torch.arange(1, 36, dtype=torch.int32).reshape(7, 5)
    found = scan(weft.shard(plain, weft.make_mesh({"x": 3}), P("x")), 0, dtype=dtype)
    expected = scan(plain, 0, dtype=dtype)
    assert {shard.dtype for shard in found.local_shards} == {dtype}
    assert torch.equal(found.full_tensor().cpu(), expected)


def test_what_was_empty_when_it_was_given_can_grow() -> None:
    out = torch.empty(0)
    x = weft.shard(out, weft.make_mesh({"a": 2}), P())
    assert torch.add(torch.ones(3), 1, out=out).tolist() == [2.0, 2.0, 2.0]
    assert x.shape == (0,)


def test_a_tensor_without_memory_may_get_some_after_it_was_shared() -> None:
    x, empty = weft.shard(torch.ones(1), MESH, P()), torch.zeros(0, 6) + 1
    torch.isin(empty, x)
    torch.sum(x, 0, out=empty)
    assert empty.tolist() == 1.0
