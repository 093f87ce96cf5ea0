"""What processes do together with checkpoints; started by `test_several_processes.py`, which looks at what they leave.

Every mode is a function; what it returns must be the same in all processes, and is printed.
"""

from __future__ import annotations

import math
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import weft
from tests.checkpoint.damage import flipped
from weft import NamedMapping, P
from weft.checkpoint import (
    CheckpointError,
    Keeper,
    background,
    exchange,
    from_pretrained,
    load,
    loading,
    plan_load,
    plan_save,
    recover,
    save,
    save_dcp,
    save_pretrained,
    saving,
    saving_plan,
)
from weft.checkpoint.files import blocks
from weft.checkpoint.files.index import Index
from weft.checkpoint.files.opening import index_at
from weft.checkpoint.loading import planned
from weft.checkpoint.reading import Reader
from weft.runtime.processes.agreement.values import gathered
from weft.sharding.geometry import box_shape

WEIGHT = torch.arange(48.0).view(8, 6)


def model(spec: P, value: torch.Tensor = WEIGHT) -> torch.nn.Module:
    """A layer whose weight is split, and whose bias is on every device."""
    mesh = weft.make_mesh({"a": weft.distributed.process_count()})
    layer = torch.nn.Linear(6, 8)
    with torch.no_grad():
        layer.weight.copy_(value)
        layer.bias.fill_(1)
    return weft.nn.shard_module(layer, mesh, {"weight": spec})


def loaded(path: Path, spec: P) -> bool:
    """Whether a checkpoint loads into another layout, with the right values."""
    layer = model(spec, torch.zeros(8, 6))
    load(path, layer)
    return torch.equal(layer.weight.detach().full_tensor(), WEIGHT) and layer.bias.sum().item() == 8


def forms(folder: Path) -> object:
    """Each form is written from one layout and read into another."""
    layer = model(P("a"))
    save(layer, folder / "weft")
    save_dcp({"model": layer, "step": 3}, folder / "dcp")
    save_pretrained(layer, folder / "hf", max_file_bytes=100)
    save(layer, folder / "whole.safetensors")
    state = load(folder / "dcp", {"model": model(P(None, "a"), torch.zeros(8, 6)), "step": None})
    found = [
        loaded(folder / name, spec)
        for name in ("weft", "hf", "whole.safetensors")
        for spec in (P("a"), P(None, "a"), P())
    ]
    found += _as_planned(layer, folder / "weft")
    return [
        *found,
        torch.equal(state["model"].weight.detach().full_tensor(), WEIGHT),
        state["step"],
        *_torch_s_own(folder),
    ]


def _as_planned(layer: torch.nn.Module, path: Path) -> list[bool]:
    """Whether each process has written what was planned, and is about to read what is."""
    written = [0] * weft.distributed.process_count()
    index = index_at(path)
    for saved in index.tensors.values():
        for shard in saved.shards:
            written[int(shard.file.split("-")[2])] += math.prod(box_shape(shard.box)) * saved.dtype.itemsize
    other = model(P(None, "a"), torch.zeros(8, 6))
    reader = Reader(path, index)
    planned(reader, other, strict=True, cast=False)
    reads = plan_load(layer, other).by_process[weft.distributed.process_index()]
    return [plan_save(layer).by_process == tuple(written), reads == reader.nbytes]


def _torch_s_own(folder: Path) -> list[bool]:
    """Whether torch's processes read in their layouts what these wrote, and these in theirs what torch's wrote."""
    mesh = init_device_mesh("cpu", (weft.distributed.process_count(),))
    there = {"model": {"weight": _distributed(torch.zeros(8, 6), mesh, 1), "bias": torch.zeros(8)}, "step": 0}
    dcp.load(there, checkpoint_id=str(folder / "dcp"))
    mine = _distributed(WEIGHT, mesh, 1).to_local()
    dcp.save({"weight": _distributed(WEIGHT, mesh, 1), "bias": torch.ones(8)}, checkpoint_id=str(folder / "torch"))
    return [torch.equal(there["model"]["weight"].to_local(), mine), loaded(folder / "torch", P("a"))]


def _distributed(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> DTensor:
    return DTensor.from_local(
        x.chunk(mesh.size(), dim)[mesh.get_rank()].contiguous(), mesh, [Shard(dim)], shape=x.shape, stride=x.stride()
    )


def in_the_background(folder: Path) -> object:
    """A save in the background goes on beside the program's own communication."""
    layer = model(P(None, "a"))
    handle = save(layer, folder / "weft", wait=False)
    with torch.no_grad():
        for _ in range(20):
            layer.weight.add_(layer.weight.sum())
    handle.wait()
    second = save(layer, folder / "second", wait=False)
    save(layer, folder / "third")
    return [
        loaded(folder / "weft", P("a")),
        second.done(),
        sorted(path.name[0] for path in (folder / "weft").iterdir()),
    ]


def left(folder: Path) -> object:
    """The program leaves the other processes, in one way and in the other, while a save goes on in the background."""
    handle = save(model(P("a")), folder / "weft", wait=False)
    dist.destroy_process_group() if weft.on_main() else weft.distributed.shutdown()
    handle.wait()
    return sorted(path.name[0] for path in (folder / "weft").iterdir() if not path.name.startswith("."))


def keeping(folder: Path) -> object:
    """A keeper's checkpoints, of which a new program finds the last; each process goes on with its own random numbers."""
    layer, keeper = model(P("a")), Keeper(folder / "run", keep=2, every=2)
    random.seed(weft.distributed.process_index())
    drawn = []
    for step in range(1, 8):
        drawn.append(random.random())
        keeper.step(step, {"layer": layer})
    keeper.wait()
    again = model(P(None, "a"), torch.zeros(8, 6))
    found = Keeper(folder / "run").resume({"layer": again})
    goes_on = random.random() == drawn[6]
    return [found, keeper.steps(), torch.equal(again.weight.detach().full_tensor(), WEIGHT), goes_on]


def fewer(folder: Path) -> object:
    """Another number of processes goes on with what a keeper of three has left."""
    again = model(P(None, "a"), torch.zeros(8, 6))
    found = Keeper(folder / "run").resume({"layer": again})
    return [found, torch.equal(again.weight.detach().full_tensor(), WEIGHT)]


def elsewhere_first(folder: Path) -> object:
    """The first process looks for checkpoints where there are none: the training does not begin anew."""
    layer = model(P("a"))
    keeper = Keeper(folder / "run", wait=True)
    keeper.save(3, {"layer": layer})
    said = refused(lambda: Keeper(folder / ("nowhere" if weft.on_main() else "run")).resume({"layer": layer}))
    return [
        ["process 1 finds checkpoints in" in said, "of the steps [3], but process 0 finds none in its folder" in said],
        Keeper(folder / "nowhere").resume({"layer": layer}),
        Keeper(folder / "run").resume({"layer": layer}),
    ]


def silent(folder: Path) -> object:
    """What is planned needs no word from the others: no process waits for one that comes late."""
    layer = model(P("a"))
    save(layer, folder / "first")  # the processes agree on what their saves are called
    late = weft.distributed.process_index() == 1
    if late:
        while not (folder / "0 has returned").exists():
            time.sleep(0.01)
    handle = save(layer, folder / "weft", wait=False)
    reader = Reader(folder / "first", index_at(folder / "first"))
    planned(reader, model(P(None, "a"), torch.zeros(8, 6)), strict=True, cast=False)
    with reader.opened() as read:
        read(lambda _: None)
    if not late:
        (folder / "0 has returned").touch()
    handle.wait()
    return loaded(folder / "weft", P(None, "a"))


def first_is_late(folder: Path) -> object:
    """The others have written before the first process begins: what they tell it is not taken for what an old save has left."""
    layer = model(P("a"))
    for name in ("new", "replaced", "replaced"):
        late = weft.distributed.process_index() == 0
        while late and name == "replaced" and not list((folder / name).glob(".saving-*/1")):
            time.sleep(0.01)
        save(layer, folder / name, wait=False).wait(30)
    return loaded(folder / "replaced", P(None, "a"))


def refused(act: Callable[[], object]) -> str:
    try:
        act()
    except CheckpointError as error:
        return str(error)
    return "nothing was wrong"


def failing(folder: Path) -> object:
    """One process cannot write: all of them are told, and the old checkpoint stays."""
    layer = model(P("a"))
    save(layer, folder / "weft")
    write = saving.write_file

    def full(*arguments: object) -> object:
        raise OSError(28, "No space left on device")

    if weft.distributed.process_index() == 1:
        saving.write_file = full
    said = [
        refused(lambda: save(layer, folder / "weft")),
        refused(lambda: save(layer, folder / "weft", wait=False).wait()),
    ]
    saving.write_file = write
    more = weft.shard(torch.ones(4), layer.weight.mesh, P("a"))
    for process in range(2):
        state = {"layer": layer, "more": more} if weft.distributed.process_index() == process else {"layer": layer}
        said.append(refused(lambda state=state: save(state, folder / "weft")))
    # A process has what the first has not; what only the first has is saved, and its lists are.
    second = weft.distributed.process_index() == 1
    for what in (torch.ones(2), 3):
        state = {"layer": layer, "here": {"it": what}} if second else {"layer": layer}
        said.append(refused(lambda state=state: save(state, folder / "weft")))
        said.append(refused(lambda state=state: save(state, folder / "weft", wait=False).wait()))
    save({"log": [1], "best": 2} if not second else {"log": [1, 2]}, folder / "first")
    said.append(str(load(folder / "first")))
    # What processes tell each other of a save is put away by the last that has read it, its own files by each process.
    more.full_tensor()  # when all have come here
    files = sorted(path.name[0] for path in (folder / "weft").iterdir() if not path.name.startswith("."))
    return [said, loaded(folder / "weft", P(None, "a")), files]


def damaged(folder: Path) -> object:
    """What one process finds damaged, all raise."""
    layer = model(P("a"))
    save(layer, folder / "weft")
    if weft.on_main():
        file = next((folder / "weft").glob("tensors-*-00001-*"))
        flipped(file, 8 * file.stat().st_size - 1)
    save({}, folder / "meeting")
    said = refused(lambda: load(folder / "weft", layer))
    return [
        "is damaged in the file" in said,
        weft.distributed.process_index() == 1 or said.startswith("process 1 could not load"),
    ]


def checking(folder: Path) -> object:
    """How many blocks are checked by each process and by all, in several layouts; each of three blocks' damage is found by all."""
    mesh = weft.make_mesh({"a": weft.distributed.process_count()})
    x = torch.arange(3.0 * (1 << 18)).view(6, 1 << 17)  # three blocks, one for each process that saves
    save({"x": weft.shard(x, mesh, P("a"))}, folder / "weft")
    first = weft.distributed.process_index() == 0
    mine: list[int] = []
    found: list[object] = []
    take = blocks.checksum
    blocks.checksum = lambda part: (mine.append(len(part)), take(part))[1]

    def counted(spec: P, **options: bool) -> list[int]:
        mine.clear()
        load(folder / "weft", {"x": NamedMapping(mesh, spec)}, **options)
        return gathered(len(mine))

    found += [counted(P("a")), counted(P(None, "a")), sum(counted(P())), counted(P(), verify=first)]
    for file in sorted((folder / "weft").glob("tensors-*")):
        for spec in (P(), P(None, "a")):
            if first:
                flipped(file, 8 * file.stat().st_size - 1)
            gathered(None)
            found.append("is damaged in the file" in refused(lambda spec=spec: counted(spec)))
            gathered(None)
            if first:
                flipped(file, 8 * file.stat().st_size - 1)
    return found


def replaced(folder: Path) -> object:
    """Loads while another program saves: every process finds the same one of the checkpoints."""
    mesh = weft.make_mesh({"a": weft.distributed.process_count()})
    x = weft.shard(torch.zeros(8, 6), mesh, P("a"))
    save({"x": x}, folder / "weft")
    stop = threading.Event()
    thread = threading.Thread(target=_save_alone, args=(folder / "weft", stop))
    if weft.on_main():
        thread.start()
    seen = []
    while len(seen) < 20 or (seen[0] == seen[-1] and len(seen) < 2000):
        found = load(folder / "weft", {"x": NamedMapping(mesh, P(None, "a"))})["x"]
        seen.append(found.full_tensor().unique().tolist())
    stop.set()
    if weft.on_main():
        thread.join()
    return [all(len(values) == 1 for values in seen), seen == sorted(seen), seen[0] != seen[-1]]


def overtaken(folder: Path) -> object:
    """One process has opened a file of others, which is replaced before another looks at it: both load the new one."""
    path, mesh = folder / "f.safetensors", weft.make_mesh({"a": weft.distributed.process_count()})
    save({"x": torch.zeros(8, 6)}, path)
    first, look, opened = weft.on_main(), loading.index_at, Reader.opened
    flag = folder / "opened"

    @contextmanager
    def opened_first(reader: Reader) -> Iterator[object]:
        with opened(reader) as read:
            flag.touch()
            yield read

    def looked_later(where: Path) -> Index:
        loading.index_at = look
        while not flag.exists():
            time.sleep(0.005)
        save_file({"x": torch.ones(8, 6)}, folder / "new.safetensors")
        (folder / "new.safetensors").replace(path)
        return look(where)

    if first:
        Reader.opened = opened_first
    else:
        loading.index_at = looked_later
    found = load(path, {"x": NamedMapping(mesh, P("a"))})["x"].full_tensor().unique().tolist()
    Reader.opened = opened
    return found


def failed_before(folder: Path) -> object:
    """The save after one that has failed says so, once, and is made all the same, as are those that follow."""
    layer, keeper, write = model(P("a")), Keeper(folder / "run", keep=5), saving.write_file

    def full(*arguments: object) -> object:
        raise OSError(28, "No space left on device")

    said = []
    for step in range(1, 5):
        saving.write_file = full if step == 2 and weft.distributed.process_index() == 1 else write
        said.append(refused(lambda step=step: keeper.step(step, {"layer": layer})))
        while not background._running.done():
            time.sleep(0.01)
    keeper.wait()
    return [["the save before this one failed: cannot save to" in text for text in said], keeper.steps()]


def differing(folder: Path) -> object:
    """What one process cannot save, find or use, all raise, and go on together."""
    first = weft.on_main()
    layer = model(P("a"))
    save({"layer": layer, "n": 1}, folder / "weft")
    other = model(P("a"), torch.zeros(8, 6))
    found = [
        refused(lambda: save({"layer": layer, "n": {2} if first else 2}, folder / "weft")),
        refused(lambda: save({"layer": layer, "n": 2 if first else {2}}, folder / "weft", wait=False).wait()),
        refused(lambda: load(folder / ("nowhere" if first else "weft"), {"layer": other, "n": None})),
        refused(lambda: load(folder / "weft", {"layer": other, "n" if first else "m": None})),
    ]
    found += [refused(lambda it=it: save(layer, "a\0b" if first is it else folder / "other")) for it in (True, False)]
    elsewhere = Path("/dev/null/weft")
    found += [
        refused(lambda it=it: save(layer, elsewhere if first is it else folder / "other", wait=False).wait(30))
        for it in (True, False)
    ]
    return [
        ["cannot save to '/dev/null/weft'" in found.pop() for _ in range(2)],
        ["embedded null byte" in found.pop() for _ in range(2)],
        *(("a set" in text, "no checkpoint at" in text, "no 'm'" in text) for text in found),
        other.weight.detach().full_tensor().any().item(),
        load(folder / "weft", {"layer": other, "n": None})["n"],
    ]


def unfit(folder: Path) -> object:
    """What one process has against a save in which all wait for each other, all raise, and the next save goes on."""
    second = weft.distributed.process_index() == 1
    layer = model(P("a"))
    odd = torch.ones(2, dtype=torch.complex128 if second else torch.float32)
    empty = torch.ones(2, device="meta" if second else "cpu")
    other = {"x" if second else "y": torch.ones(2)}
    misfit = torch.nn.Linear(2, 2)
    misfit.register_buffer("odd", odd)
    said = [
        refused(lambda: save({"x": odd}, folder / "one.safetensors")),
        refused(lambda: save({"x": empty}, folder / "one.safetensors")),
        refused(lambda: save({"x": {} if second else odd}, folder / "one.safetensors")),
        refused(lambda: save({"x": empty}, folder / "weft")),
        refused(lambda: save_pretrained(misfit, folder / "hf")),
        refused(lambda: save_dcp({"x": empty}, folder / "dcp")),
        refused(lambda: save_dcp([1] if second else {"x": odd.real}, folder / "dcp")),
    ]
    differ = [
        refused(lambda: save(other, folder / "one.safetensors")),
        refused(lambda: save_dcp(other, folder / "dcp")),
    ]
    save(layer, folder / "one.safetensors")
    return [
        [text.startswith("process 1 cannot save its state: ") for text in said],
        ["process 1 has tensors of other names, shapes or dtypes than process 0" in text for text in differ],
        loaded(folder / "one.safetensors", P(None, "a")),
    ]


class Config:
    """A model's config, which may refuse to be saved."""

    @classmethod
    def from_pretrained(cls, path: str) -> Config:
        return cls()

    def save_pretrained(self, path: str) -> None:
        raise RuntimeError("this config is not saved")


class Model(torch.nn.Linear):
    """A model as other libraries have them."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(6, 8)


def against(folder: Path) -> object:
    """What one process alone has against a call, all raise, and go on: its path, its options, its layouts, its state."""
    second = weft.distributed.process_index() == 1
    layer, misfit = model(P("a")), model(P("a"))
    misfit.config = Config()
    mesh, whole = layer.weight.mesh, model(P())
    save(layer, folder / "weft")
    save_pretrained(layer, folder / "hf")
    pending = weft.shard(torch.ones(4, 4), mesh, P("a")).sum(0)
    nowhere = None if second else folder / "new"
    keeper = Keeper(folder / "run")
    acts: dict[str, Callable[[], object]] = {
        "path": lambda: save(layer, nowhere),
        "path, in the background": lambda: save(layer, nowhere, wait=False).wait(30),
        "path of a file": lambda: save(layer, nowhere and folder / "new.safetensors"),
        "path of a model": lambda: save_pretrained(layer, nowhere),
        "path of torch's": lambda: save_dcp({"layer": layer}, nowhere),
        "path to load": lambda: load(nowhere and folder / "weft", layer),
        "file or folder": lambda: save(layer, folder / ("new" if second else "new.safetensors")),
        "size of files": lambda: save_pretrained(layer, folder / "hf", max_file_bytes=0 if second else 100),
        "config": lambda: save_pretrained(misfit, folder / "hf"),
        "step": lambda: (keeper.save(-1 if second else 1, layer), keeper.wait()),
        "beside what is pending": lambda: save({"x": pending, "n": {2} if second else 2}, folder / "new"),
        "layout": lambda: load(folder / "weft", NamedMapping(mesh, P(None, None, "a") if second else P("a"))),
        "pattern": lambda: load(
            folder / "weft", {"no" if second else "weight": NamedMapping(mesh, P("a"))}, strict=False
        ),
        "folder of a model": lambda: from_pretrained(Model, folder / ("no" if second else "hf"), mesh, {}),
        "pattern of a model": lambda: from_pretrained(Model, folder / "hf", mesh, {"no": P()} if second else {}),
        "state to tell": lambda: recover({"layer": whole, "n": {1} if second else 1}, lost=False),
        "state to recover": lambda: recover({"n" if second else "layer": whole}, lost=second),
    }
    said = {}
    for what, act in acts.items():
        try:
            act()
        except (CheckpointError, TypeError, ValueError) as error:
            said[what] = "raised" if second or isinstance(error, CheckpointError) else repr(error)
    left = sorted(path.name for path in folder.iterdir())
    return [
        acts.keys() - said.keys(),
        set(said.values()),
        "new.safetensors" in left,
        loaded(folder / "weft", P(None, "a")),
    ]


def unnoted(folder: Path) -> object:
    """The first process cannot leave a note of how a save ended, or that it has read that: the save is complete all the same."""
    layer, leave = model(P("a")), Path.write_bytes
    found = []
    for name in (".outcome", ".seen-0"):

        def refusing(path: Path, content: bytes, name: str = name) -> int:
            if path.name == name:
                raise OSError(30, "Read-only file system")
            return leave(path, content)

        Path.write_bytes = refusing
        found.append(refused(lambda name=name: save(layer, folder / name[1:], wait=False).wait(30)))
        Path.write_bytes = leave
        found.append(loaded(folder / name[1:], P(None, "a")))
    return found


def elsewhere(folder: Path) -> object:
    """Processes that save to folders of their own, in the background, are told, and go on."""
    exchange._SEEN = 0.2
    layer = model(P("a"))
    said = refused(lambda: save(layer, folder / str(weft.distributed.process_index()), wait=False).wait(30))
    save(layer, folder / "weft", wait=False).wait(30)
    return [
        "process 1 does not see there what process 0 has written" in said,
        loaded(folder / "weft", P(None, "a")),
        *_unlike(folder / "unlike", layer),
    ]


def _unlike(folder: Path, layer: torch.nn.Module) -> list[bool]:
    """One process removes what others still save, or waits for a save that others make in the background: all are told soon."""
    first, outcome = weft.on_main(), exchange.FolderNotes._outcome

    def late(notes: exchange.FolderNotes) -> str | None:
        while (folder / "removed").exists():
            time.sleep(0.005)
        return outcome(notes)

    exchange.FolderNotes._outcome = late
    handle = save(layer, folder / "removed", wait=False)
    said = [refused(handle.wait)]
    if first:
        shutil.rmtree(folder / "removed")
    exchange.FolderNotes._outcome = outcome
    gathered(None)
    for waits in (first, not first):
        try:
            handle = save(layer, folder / "weft", wait=waits)
            said.append(refused(lambda handle=handle: handle.wait(15)))
        except CheckpointError as error:
            said.append(str(error))
    options = "process {} saves with wait=True, but process {} with wait=False: give all processes the same options"
    return [
        ("was removed before all processes had finished" in said[0]) is not first,
        *(options.format(i, 1 - i) in text for i, text in enumerate(said[1:])),
    ]


def recovered(folder: Path) -> object:
    """The last of four processes has lost its state, and gets it from a replica; what had no replica is named."""
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    lost = weft.distributed.process_index() == 3

    def made(spec: P, seed: int) -> dict[str, object]:
        torch.manual_seed(seed)
        layer = weft.nn.shard_module(torch.nn.Linear(6, 8), mesh, {"weight": spec, "bias": P("tp")})
        return {"layer": layer, "optimizer": torch.optim.AdamW(layer.parameters(), lr=0.1), "step": seed}

    def step(parts: dict[str, object]) -> torch.Tensor:
        parts["optimizer"].zero_grad()
        parts["layer"](torch.ones(4, 6)).square().sum().backward()
        parts["optimizer"].step()
        return parts["layer"].weight.detach().full_tensor()

    expected = made(P("tp"), 3)
    step(expected)
    kept = made(P("tp"), 3)
    step(kept)
    state = recover(made(P("tp"), 9) if lost else kept, lost=lost)
    found = [state["step"], torch.equal(step(state), step(expected))]
    alone = made(P(("dp", "tp")), 3)
    found.append(refused(lambda: recover(alone, lost=lost)))
    found.append(refused(lambda: recover({"step": min(1, weft.distributed.process_index())}, lost=lost)))
    found.append(refused(lambda: recover({"step": 1}, lost=True)))
    return [*found, recover({"step": 1}, lost=False)]


def _save_alone(path: Path, stop: threading.Event) -> None:
    """Replaces a checkpoint again and again, as a program of one process does."""
    value = 0
    while not stop.is_set():
        value += 1
        plan = saving_plan.planned_save(*_flat({"x": torch.full((8, 6), float(value))}), f"{value:08x}")
        list(saving._Save(path, f"{value:08x}", plan, None, None, _Alone(), lambda: None).steps())


def _flat(state: dict[str, torch.Tensor]) -> tuple[object, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    structure, tensors = saving.flattened(state)
    return structure, tensors, tensors


class _Alone:
    def begin(self) -> None:
        pass

    def reports(self, mine: object) -> list[object]:
        return [mine]

    def outcome(self, mine: str | None) -> str | None:
        return mine


if __name__ == "__main__":
    print("found", globals()[sys.argv[1]](Path(sys.argv[2])))
