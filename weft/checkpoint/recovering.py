"""`recover`: processes that lost their state get it from the memory of those that hold the same shards; no file is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import torch
import torch.distributed as dist

from ..engine.views.copy_views import current
from ..runtime.holding import holding, slices
from ..runtime.processes import world
from ..sharding.geometry import Box, box_shape, whole_box, within
from ..tensor.tensor import Tensor
from .errors import CheckpointError
from .exchange import of_all
from .files.boxes import tiling_fault
from .files.index import Index, SavedShard, SavedTensor, dtype_named
from .loading import planned
from .reading import Reader
from .shares import check_has_values
from .tree import Node, State, flattened

__all__ = ["recover"]

_Ask = tuple[int, str, Box]
"""Who is asked, for which tensor, and for which box of it."""


class _ToldState(TypedDict):
    """What a process has of a state: its structure, and of each tensor the shape, the dtype and the boxes."""

    structure: Node
    tensors: Mapping[str, tuple[Sequence[int], str, list[Box]]]


def recover(state: State, *, lost: bool) -> State:
    """Fills the state of the processes that have lost theirs from the memory of replicas, without a checkpoint.

    After a host was lost and another has taken its place, every process calls this: those that have kept their state with
    `lost=False`, the new ones with `lost=True` and a state that is made alike, with any values. What a new process
    holds is what others hold too if it is replicated over an axis of the mesh, such as that of data parallelism. Raises
    `CheckpointError` if a shard was nowhere else; then the last checkpoint has to be loaded. The result is the state, with
    modules and optimizers filled in place as `load` does.

    >>> import torch, weft
    >>> weft.checkpoint.recover({"model": torch.nn.Linear(2, 2), "step": 3}, lost=False)["step"]
    3
    """
    told = of_all(lambda: None if lost else _told(state), "recover")
    sound = {process: each for process, each in enumerate(told) if each is not None}
    if len(sound) == len(told):
        return state
    if not sound:
        raise CheckpointError("every process has lost its state: load the last checkpoint instead")
    reader = Reader(Path("memory"), _index(sound))
    found = state
    wanted: list[tuple[_Ask, torch.Tensor]] = []

    def ask() -> list[_Ask]:
        nonlocal found
        if lost:
            found = planned(reader, state, strict=True, cast=False)
            wanted.extend(_asked(reader))
        return [each for each, _ in wanted]

    asked = of_all(ask, "recover")
    kept = {} if lost else flattened(state)[1]
    _exchange(asked, [target for _, target in wanted], kept)
    reader.finish()
    return found


def _told(state: State) -> _ToldState:
    structure, tensors = flattened(state)
    check_has_values(tensors)
    held = {
        name: (tuple(x.shape), str(x.dtype).removeprefix("torch."), sorted(set(_boxes(name, x))))
        for name, x in tensors.items()
    }
    return {"structure": structure, "tensors": held}


def _boxes(name: str, x: torch.Tensor) -> Iterator[Box]:
    if not isinstance(x, Tensor):
        yield whole_box(x.shape)
        return
    if x._layout.pending:
        raise CheckpointError(
            f"{name!r} has a pending reduction, of which every process has its own part: all_reduce it first"
        )
    here = holding(x._layout)
    for piece in range(here.count):
        yield here.box(piece, x.shape)


def _index(sound: dict[int, _ToldState]) -> Index:
    """What the processes hold together, in the form of a checkpoint: each shard at the holder that is asked least so far."""
    first, *others = sound
    for other in others:
        if sound[other]["structure"] != sound[first]["structure"]:
            raise CheckpointError(
                f"processes {first} and {other} have kept different states: they are not of the same step. Load the last checkpoint instead"
            )
    asked: Counter[int] = Counter()
    tensors: dict[str, SavedTensor] = {}
    for name, (shape, dtype, _) in sound[first]["tensors"].items():
        size, holders = tuple(shape), _holders(name, sound)
        shards: list[SavedShard] = []
        for box, processes in holders.items():
            if all(box_shape(box)):
                process = min(processes, key=lambda each: (asked[each], each))
                asked[process] += 1
                shards.append(SavedShard(str(process), name, box, 0))
        saved = SavedTensor(size, dtype_named(dtype), tuple(shards))
        if saved.nbytes and tiling_fault(size, [shard.box for shard in shards]):
            raise CheckpointError(
                f"a part of {name!r} was only in processes that have lost it: load the last checkpoint instead"
            )
        tensors[name] = saved
    return Index(sound[first]["structure"], tensors, {})


def _holders(name: str, sound: dict[int, _ToldState]) -> dict[Box, list[int]]:
    found: dict[Box, list[int]] = {}
    for process, told in sound.items():
        for box in told["tensors"][name][2]:
            found.setdefault(tuple((start, stop) for start, stop in box), []).append(process)
    return found


def _asked(reader: Reader) -> Iterator[tuple[_Ask, torch.Tensor]]:
    """What is to be asked for, and where it goes."""
    for shard, inner, target in reader.wanted():
        box = tuple((base + start, base + stop) for (start, stop), (base, _) in zip(inner, shard.box, strict=True))
        yield (int(shard.file), shard.key, box), target


def _exchange(asked: list[list[_Ask]], targets: list[torch.Tensor], kept: dict[str, torch.Tensor]) -> None:
    """Every process sends what it is asked for, and receives what it has asked for, in one order that all know."""
    here = world.current()
    wire = torch.device("cpu" if here.backend("cpu") else "cuda")
    for receiver, asks in enumerate(asked):
        for number, (sender, name, box) in enumerate(asks):
            if sender == here.process:
                part = _part(kept[name], tuple((start, stop) for start, stop in box)).contiguous()
                dist.send(part.view(-1).view(torch.uint8).to(wire), receiver)
            elif receiver == here.process:
                target = targets[number]
                arrived = torch.empty(target.numel() * target.itemsize, dtype=torch.uint8, device=wire)
                dist.recv(arrived, sender)
                with torch.no_grad():
                    target.copy_(arrived.view(target.dtype).view(target.shape))


def _part(x: torch.Tensor, box: Box) -> torch.Tensor:
    """A box of a tensor that this process holds."""
    if not isinstance(x, Tensor):
        return x.detach()[slices(box)]
    here = holding(x._layout)
    for i, piece in enumerate(current(x)):
        whole = here.box(i, x.shape)
        if all(a <= start and stop <= b for (start, stop), (a, b) in zip(box, whole, strict=True)):
            return piece.detach()[slices(within(box, whole))]
    raise AssertionError(f"{box} of {x.shape} was said to be here")
