"""A program in which one process alone fails, at what only it has or does; all raise it, and go on together."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation has it
from torch.utils.data import DataLoader, Dataset

import weft
from weft import P

HERE, COUNT = weft.distributed.process_index(), weft.distributed.process_count()
Calls = Iterator[tuple[str, Callable[[], object], str]]
"""What is called, by name, and what it raises."""


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - every kind is compared
        return f"{type(error).__name__}: {error}"
    return "nothing"


def on_devices(mesh: weft.DeviceMesh) -> Calls:
    """Code of the program's own, which fails on the last device: before it communicates, after it has, and where nobody does."""
    x = weft.shard(torch.arange(2.0 * len(mesh.devices)), mesh, P("a"))

    def fail() -> None:
        if weft.axis_index("a") == len(mesh.devices) - 1:
            raise kind("no such sample")

    def before(part: torch.Tensor) -> torch.Tensor:
        fail()
        return weft.all_reduce(part)

    def after(part: torch.Tensor) -> torch.Tensor:
        part = weft.all_reduce(part)
        fail()
        return weft.all_reduce(part)

    def alone(part: torch.Tensor) -> torch.Tensor:
        fail()
        return part * 2

    for fn, spec, kind in ((before, P(), ValueError), (after, P(), AssertionError), (alone, P("a"), PermissionError)):
        call = weft.local_map(fn, P("a"), spec, mesh=mesh)
        yield fn.__name__, lambda call=call: call(x).sum().item(), f"{kind.__name__}: no such sample"


def uneven(mesh: weft.DeviceMesh) -> Calls:
    """What the last device holds has another shape."""
    last = len(mesh.devices) - 1
    x = weft.shard(torch.arange(2.0 * last + 1), mesh, P("a"))
    held = f"a device holds (2,) of torch.float32, but device {last} (a={last}) holds (1,) of torch.float32"
    ops = {"all_reduce": weft.all_reduce, "ppermute": lambda part: weft.ppermute(part, [(0, 1)])}
    for name, op in ops.items():
        call = weft.local_map(op, P("a"), P("a"), mesh=mesh)
        yield name, lambda call=call: call(x).sum().item(), f"MismatchError: {name} at a line: {held}"
    if len(weft.local_devices()) > 1:  # else they are different calls of processes
        early = weft.local_map(
            lambda x: x if weft.axis_index("a") == last else weft.all_gather(x, 0), P("a"), P("a"), mesh=mesh
        )
        yield "early", lambda: early(x).sum().item(), "MismatchError: device"


def parts(mesh: weft.DeviceMesh) -> Calls:
    """Shards and parts of other sizes, or too many, which the last process brings."""
    mapping, each = weft.NamedMapping(mesh, P("a")), len(mesh.devices) // COUNT
    size, is_last = 2 * len(mesh.devices), HERE == COUNT - 1
    longer = [torch.ones(2)] * (each - 1) + [torch.ones(3 if is_last else 2)]
    yield (
        "shard",
        lambda: weft.from_local(longer, mapping, shape=(size,)).sum().item(),
        "ValueError: from_local: the shard",
    )
    more = [torch.ones(2)] * (each + is_last)
    yield (
        "more",
        lambda: weft.from_local(more, mapping, shape=(size,)).sum().item(),
        "ValueError: from_local needs one shard",
    )
    part = torch.ones(2 * each + is_last)
    whole = lambda: weft.from_process_local(part, mapping, shape=(size,)).sum().item()  # noqa: E731 - a name for it
    yield "part", whole, "ValueError: from_process_local: the devices of process"


class Broken(Dataset[torch.Tensor]):
    """Samples of which the last cannot be read."""

    def __len__(self) -> int:
        return 4 * COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == len(self) - 1:
            raise OSError("the disk is gone")
        return torch.tensor([float(index)])


def batches(mesh: weft.DeviceMesh) -> Calls:
    """Rows that the last process cannot load."""
    data = weft.data.batches(DataLoader(Broken(), batch_size=4 * COUNT), mesh, P("a"))
    yield "batches", lambda: [x.sum().item() for x in data], "OSError: the disk is gone"


def stages() -> Calls:
    """A loss of the program's own, which only processes of the last stage compute; the pipeline is none any more in all of them."""
    devices = weft.devices()
    meshes = [weft.DeviceMesh([device], (1,), ("a",)) for device in (devices[0], devices[-1])]
    is_wrong = True

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if is_wrong:
            raise KeyError("no such class")
        return F.mse_loss(x, y)

    def step(number: int) -> object:
        return pipes[number].step(torch.ones(4, 2), torch.ones(4, 2)).item()

    pipes = [
        weft.nn.pipeline([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)], meshes, microbatches=2, loss=loss)
        for _ in range(2)
    ]
    if COUNT > 1:
        yield "stage", lambda: step(0), "RuntimeError: 'no such class'" if HERE < COUNT - 1 else "KeyError: 'no such"
        yield "after", lambda: step(0), "RuntimeError: a step of this pipeline has failed"
    is_wrong = False
    yield "anew", lambda: step(1), "nothing"
    mesh = weft.make_mesh({"a": len(devices)})
    one = weft.shard(torch.arange(len(devices)), mesh, P("a"))  # 0 is the first
    yield "gone on", lambda: (told(lambda: (1 // one).sum().item()), step(1)), "nothing"


def different(mesh: weft.DeviceMesh) -> Calls:
    """Calls that differ leave all in step, and what one refuses afterwards is told as before."""
    x = weft.shard(torch.arange(2.0 * len(mesh.devices)), mesh, P("a"))
    one = weft.shard(torch.arange(2 * len(mesh.devices)).flip(0), mesh, P("a"))  # 0 is the last
    if COUNT > 1:
        call = weft.all_gather if HERE else weft.all_reduce
        yield "calls", lambda: call(x).sum().item(), "MismatchError: processes make different calls"
    yield "zero", lambda: (1 // one).sum().item(), "RuntimeError: ZeroDivisionError"


def guests() -> Calls:
    """What only processes with devices of a mesh see that torch has no kernel for."""
    mesh = weft.make_mesh({"b": 1}, devices=weft.devices()[:1])
    x, lengths = (weft.shard(torch.tensor(each), mesh, P("b")) for each in ([1, 2, 3], [2, 1]))
    call = lambda: torch.segment_reduce(x, "sum", lengths=lengths).sum().item()  # noqa: E731 - a name for it
    yield "kernel", call, "NotImplementedError: \"_segment_reduce_cpu\" not implemented for 'Long'"


def main() -> None:
    weft.distributed.init(timeout=30)
    mesh = weft.make_mesh({"a": 2 if COUNT == 1 else len(weft.devices())})
    y = weft.shard(torch.arange(4.0 * COUNT), mesh, P("a"))
    for listed in (on_devices(mesh), uneven(mesh), parts(mesh), batches(mesh), stages(), different(mesh), guests()):
        for name, call, said in listed:
            found = re.sub(r" at \S+:\d+: device \d \(a=\d\)", " at a line: a device", told(call))
            assert found.startswith(said), (name, found)
            assert (y * 2).sum().item() == 2 * torch.arange(4.0 * COUNT).sum(), name
    print("done")


if __name__ == "__main__":
    sys.exit(main())
