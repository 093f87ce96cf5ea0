"""A program whose processes bring different things to one call, or write to a file what only one of them has."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import weft
from weft import P

HERE = int(os.environ["RANK"])
EVERY = os.environ.get("WEFT_CHECK") == "1"


def told(call: Callable[[], object]) -> str:
    """What a call raises, as this process is told."""
    try:
        call()
    except (weft.WeftError, RuntimeError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def one_is_told(call: Callable[[], object]) -> str:
    """What some process is told: the first has gone on, unless every call is checked."""
    found: list[object] = [None, None]
    dist.all_gather_object(found, told(call))
    assert not EVERY or "nothing" not in found
    return max(map(str, found), key=len)


def different(mesh: weft.DeviceMesh) -> None:
    """Each way of bringing a plain tensor; the error names the processes, the line, and what to do."""
    mine = torch.full((4, 2), float(HERE))
    x = weft.zeros(4, 2, mapping=weft.NamedMapping(mesh, P("a")))
    whole = weft.ones(64, 8, mapping=weft.NamedMapping(mesh, P()))
    ways: dict[str, Callable[[], object]] = {
        "shard": lambda: weft.shard(mine, mesh, P("a")),
        "tensor": lambda: weft.tensor(mine.tolist(), mapping=x.mapping),
        "aten.add.Tensor": lambda: x + mine,
        "aten.mul.Tensor": lambda: mine.to(torch.complex64).conj() * x,
        "copy_": lambda: x.copy_(mine),
        "data": lambda: setattr(x, "data", mine),
        "shard_module": lambda: weft.nn.shard_module(torch.nn.Linear(2, 2), mesh, {"weight": P("a")}),
        "aten.rand_like.default": lambda: torch.rand_like(x),
        "aten.multinomial.default": lambda: torch.multinomial(whole, 2),
        "aten.bernoulli.default": lambda: torch.bernoulli(whole / 2),
        "aten.normal_.default": lambda: whole.clone().normal_(),
    }
    if EVERY:  # else one process would communicate already
        ways["aten.cat.default"] = lambda: torch.cat([x, mine])
    for op, way in ways.items():
        torch.manual_seed(HERE)  # also after what only one of them has drawn
        said = one_is_told(way)
        assert said.startswith("MismatchError: processes bring different tensors to "), (op, said)
        assert op in said, (op, said)
        assert "careless.py:" in said, said
        assert "process 0" in said, said
        assert "process 1" in said, said
        assert "weft.from_local([part], mapping)" in said, said
    sizes = one_is_told(lambda: weft.shard(torch.ones(4 + HERE), mesh, P("a")))
    assert sizes.startswith("MismatchError: processes "), sizes
    assert "float32[4]" in sizes, sizes
    assert "float32[5]" in sizes, sizes
    specs = one_is_told(lambda: weft.shard(torch.ones(4, 4), mesh, P("a") if HERE else P(None, "a")))
    assert specs.startswith("MismatchError: processes "), specs
    assert "float32[4, 4] to (a, –)" in specs, specs
    assert "float32[4, 4] to (–, a)" in specs, specs


def from_two_lines(mesh: weft.DeviceMesh) -> None:
    """What looks like one call may be two, of which each process has left one out: only its lines tell."""
    x = weft.shard(torch.ones(2), mesh, P("a"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if HERE:
            assert x.sum().item() == 2
        else:
            assert x.sum().item() == 2
    assert bool(said) == EVERY
    assert all(str(each.message).startswith("processes make the same call from different lines:") for each in said)


def one_batch_more(mesh: weft.DeviceMesh) -> None:
    """What processes tell each other of kinds that they know is compared too: nobody waits for the timeout."""
    x, loader = weft.shard(torch.ones(2), mesh, P("a")), [torch.ones(2)] * 3
    assert [each.sum().item() for each in weft.data.batches(loader, mesh, P("a"), seed=0)] == [2] * 3
    data = weft.data.batches(loader[HERE:], mesh, P("a"), seed=0)
    said = told(lambda: ([each.sum().item() for each in data], x.sum().item()))
    assert said.startswith("MismatchError: processes make different calls:"), said
    assert "batches of what each process has" in said
    assert x.sum().item() == 2


def replicas(mesh: weft.DeviceMesh) -> None:
    """Shards that are said to be replicas and are not, beyond rounding; those that are to differ may."""
    whole = weft.NamedMapping(mesh, P())

    def bring(x: torch.Tensor, mapping: weft.DeviceMapping = whole) -> object:
        return weft.from_local([x], mapping, shape=(2, 3), dtype=x.dtype)

    one = torch.arange(6.0).reshape(2, 3)
    odd = one.where(one != 4, torch.nan if HERE else 4.0)
    for mine in (one + HERE, one.double().flip(HERE), (one + HERE).long(), odd.half()):  # calls with each dtype compare
        said = one_is_told(lambda mine=mine: bring(mine))
        assert said.startswith("MismatchError: from_local, called at "), said
        assert "device 0 (a=0) of process 0 and device 1 (a=1) of process 1 bring shards of shape (2, 3)" in said, said
        assert "unreduced=['a']" in said, said
    assert told(lambda: weft.from_local([one * (1 + 1e-7 * HERE)], whole)) == "nothing"
    assert told(lambda: bring(one + HERE, weft.NamedMapping(mesh, P(), unreduced=["a"]))) == "nothing"


def allowed(mesh: weft.DeviceMesh) -> None:
    """What is meant to differ, what holds no values, and what belongs to one process."""
    mapping = weft.NamedMapping(mesh, P("a"))
    part = torch.full((2,), float(HERE))
    assert weft.from_local([part], mapping).full_tensor().tolist() == [0, 0, 1, 1]
    first = weft.to_device(part, weft.devices()[0])
    assert weft.shard(first, mesh, P("a")).full_tensor().tolist() == [0, 0]
    weft.empty(1000, mapping=mapping)
    weft.shard(torch.empty(4, device="meta"), mesh, P("a"))
    weft.shard(torch.empty(0), mesh, P())
    weft.shard(torch.ones(()).expand(1), mesh, P())


def later(mesh: weft.DeviceMesh) -> None:
    """Only the first calls from a line compare, unless all have to."""

    def bring(i: int) -> str:
        return told(lambda: weft.shard(torch.full((4,), float(HERE if i == 4 else 0)), mesh, P("a")))

    said = [bring(i) for i in range(5)]
    assert said[:4] == ["nothing"] * 4
    assert said[4].startswith("MismatchError: processes bring" if EVERY else "nothing"), said


def beyond(mesh: weft.DeviceMesh) -> None:
    """An index out of range is refused by the process that has it; by all where every call is checked."""
    table = weft.shard(torch.arange(8.0).reshape(4, 2), mesh, P())
    for wrong in (0, 1):
        index = torch.tensor([[9, 1, 2, 3], [0, 1, 2, 9]][wrong])
        told_of = told(lambda index=index: table[weft.shard(index, mesh, P("a"))])
        said = "IndexError: index 9 is out of bounds for dimension 0 with size 4"
        assert told_of == (said if EVERY or HERE == wrong else "nothing"), told_of
    assert told(lambda: table[weft.shard(torch.tensor([9, 1]), mesh, P())]) == said


def saved(mesh: weft.DeviceMesh, folder: Path) -> None:
    """A tensor is written by a process that has all of it, and is the same wherever it is loaded."""
    value = torch.arange(8.0).reshape(4, 2)
    x = weft.shard(value, mesh, P("a"))
    for spec in (P("a"), P(None, "a")):
        said = told(lambda spec=spec: torch.save(weft.shard(value, mesh, spec), io.BytesIO()))
        assert "RuntimeError: this process holds 1 of the 2 parts of Tensor(f32[4" in said, said
        assert "weft.checkpoint.save in all processes" in said, said
        assert "x.full_tensor() in all processes" in said, said
    pending = weft.from_local([value], weft.NamedMapping(mesh, P(), unreduced=["a"]))
    assert "holds 1 of the 2 parts" in told(lambda: torch.save(pending, io.BytesIO()))
    whole, file = weft.all_gather(x), folder / "whole.pt"
    first = weft.to_device(value, weft.devices()[0])
    assert ("holds 0 of the 1 parts" in told(lambda: torch.save(first, io.BytesIO()))) == (HERE == 1)
    if HERE == 0:
        torch.save([whole, first], file)
    x.sum().item()
    y, z = torch.load(file, weights_only=False)
    assert torch.equal(y.full_tensor(), value)
    assert torch.equal((y + x).full_tensor(), value * 2)
    assert len(z.local_shards) == (HERE == 0)
    assert torch.equal(z.full_tensor(), value)
    said = told(lambda: torch.load(folder / "many.pt", weights_only=False))
    assert "ValueError: CPU(2) belongs to no process: this program has 2 processes" in said, said


def main(folder: str) -> None:
    assert (weft.distributed.process_count(), weft.distributed.process_index()) == (2, HERE)
    assert (len(weft.devices()), len(weft.local_devices()), weft.on_main()) == (2, 1, HERE == 0)
    assert [weft.distributed.process_of(device) for device in weft.devices()] == [0, 1]
    assert not weft.distributed.is_initialized()
    mesh = weft.make_mesh({"a": 2})
    assert weft.distributed.is_initialized()
    replicas(mesh)
    allowed(mesh)
    saved(mesh, Path(folder))
    later(mesh)
    beyond(mesh)
    different(mesh)
    from_two_lines(mesh)
    one_batch_more(mesh)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
