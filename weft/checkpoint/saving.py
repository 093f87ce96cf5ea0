"""`save`: the processes share the shards among them and write each once; the index, written last, makes them a checkpoint."""

from __future__ import annotations

import math
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ..engine.moves.movement import moved
from ..engine.views.copy_views import current
from ..runtime.holding import holding
from ..runtime.machine import residence
from ..runtime.processes import world
from ..runtime.processes.agreement.values import gathered
from ..sharding.geometry import Box, box_at, box_shape, holders
from ..sharding.layout import Layout
from ..tensor.tensor import Tensor
from .errors import CheckpointError
from .index import INDEX, Index, SavedShard, SavedTensor
from .tree import State, flattened

__all__ = ["save", "settled"]

_FILE_BYTES = 2 << 30
"""Shards go to a next file above this, which bounds the memory that writing takes."""


def save(state: State, path: str | os.PathLike[str]) -> None:
    """Saves a module, an optimizer, a state dict, or dicts, lists and tuples of these, numbers and strings.

    `path` is a directory; a checkpoint that is there already is replaced at once, when the new one is complete. A path
    that ends in `.safetensors` is one plain file of whole tensors instead. Every process calls this.

    >>> import torch, weft
    >>> model = torch.nn.Linear(4, 4)
    >>> weft.checkpoint.save({"model": model, "epoch": 2}, "checkpoint")
    >>> weft.checkpoint.load("checkpoint")["epoch"]
    2
    """
    where = Path(path)
    structure, tensors = flattened(state)
    ready = {name: settled(x) for name, x in tensors.items()}
    if where.suffix == ".safetensors":
        _save_file(state, ready, where)
        return
    if where.is_file():
        raise CheckpointError(
            f"{str(where)!r} is a file: a checkpoint is a directory, or a path that ends in '.safetensors'"
        )
    where.mkdir(parents=True, exist_ok=True)
    token = _agreed_token()
    shards = _Shards(token)
    saved = {name: shards.of(name, x, _identity(tensors[name])) for name, x in ready.items()}
    _write_own(shards, where)
    _wait_for_all()
    if world.current().process == 0:
        index = Index(structure, saved)
        _replace(where / INDEX, index.to_json())
        _remove_others(where, index)
    _wait_for_all()


def settled(x: torch.Tensor) -> torch.Tensor:
    """The tensor without a graph, and with nothing pending."""
    x = x.detach()
    if x.is_meta:
        raise CheckpointError(
            "a tensor on the meta device has no value to save: initialise the module first (weft.nn.shard_module)"
        )
    return moved(x, x._layout.resolved, "checkpoint") if isinstance(x, Tensor) and x._layout.pending else x


class _Shards:
    """Which shards are saved, by which process, in which file; every process comes to the same answer."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.own: dict[str, dict[str, torch.Tensor]] = {}
        """The files of this process, and what goes into each."""
        self._written: Counter[int] = Counter()
        self._current: dict[int, tuple[int, int]] = {}
        """For each process, the number of its current file and the bytes in it."""
        self._known: dict[object, SavedTensor] = {}

    def of(self, name: str, x: torch.Tensor, same: object) -> SavedTensor:
        """Decides where a tensor goes; one that is the same as an earlier one is not saved again."""
        if same not in self._known:
            shards = tuple(self._place(name, x, box, held) for box, held in _distinct(x))
            self._known[same] = SavedTensor(tuple(x.shape), x.dtype, shards)
        return self._known[same]

    def _place(self, name: str, x: torch.Tensor, box: Box, held: dict[int, torch.Tensor | None]) -> SavedShard:
        """The holder that writes least so far writes it."""
        process = min(held, key=lambda process: (self._written[process], process))
        size = math.prod(box_shape(box)) * x.dtype.itemsize
        self._written[process] += size
        number, filled = self._current.get(process, (0, 0))
        if filled and filled + size > _FILE_BYTES:
            number, filled = number + 1, 0
        self._current[process] = number, filled + size
        file = f"tensors-{self.token}-{process:05d}-{number:05d}.safetensors"
        whole = box_shape(box) == tuple(x.shape)
        key = name if whole else f"{name}[{', '.join(f'{start}:{stop}' for start, stop in box)}]"
        if process == world.current().process:
            shard = held[process]
            assert shard is not None
            self.own.setdefault(file, {})[key] = shard
        return SavedShard(file, key, box)


def _identity(x: torch.Tensor) -> object:
    """Equal for tensors that are one value, such as tied parameters, and in all processes for the same ones.

    Memory tells more, but only of the tensors that this process has some of.
    """
    pieces = x._value.pieces if isinstance(x, Tensor) else (x,)
    if world.current().count > 1 or not x.numel() or not pieces:
        return id(x)
    layout = x._layout if isinstance(x, Tensor) else None
    return layout, *((p.untyped_storage()._cdata, p.storage_offset(), p.shape, p.stride()) for p in pieces)


def _distinct(x: torch.Tensor) -> Iterator[tuple[Box, dict[int, torch.Tensor | None]]]:
    """Each shard once: its box, and the processes that hold it, with what it is where that is this process."""
    whole = tuple((0, size) for size in x.shape)
    if not isinstance(x, Tensor):
        yield whole, {0: x}
        return
    layout, here = x._layout, holding(x._layout)
    owners, memories = residence(layout.mesh).owners, residence(layout.mesh).memories
    if len(set(memories)) == 1:  # stored whole, so saved whole
        yield whole, {owners[0]: current(x)[0] if x._value.pieces else None}
        return
    for slot, box in _first_holders(layout, tuple(x.shape)):
        if all(box_shape(box)):
            held: dict[int, torch.Tensor | None] = {}
            for other in holders(layout, slot):
                held.setdefault(
                    owners[other], here.shard(current(x), x.shape, other) if other in here.piece_of else None
                )
            yield box, held


def _first_holders(layout: Layout, shape: tuple[int, ...]) -> Iterator[tuple[int, Box]]:
    """For each distinct shard, the first slot that holds it; the coordinates of other axes are 0."""
    sizes = layout.mesh.mesh_shape
    axes = [
        range(size) if axis in layout.dim_of else range(1)
        for axis, size in zip(layout.mesh.axis_names, sizes, strict=True)
    ]
    for coords in product(*axes):
        yield layout.mesh.slot(coords), box_at(layout, shape, coords)


def _write_own(shards: _Shards, where: Path) -> None:
    written: list[Path] = []
    try:
        for file, content in shards.own.items():
            written.append(where / file)
            _write(content, where / file)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _write(content: dict[str, torch.Tensor], path: Path) -> None:
    host: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for key, x in content.items():
        host[key] = _own_host_copy(x, storages)
    try:
        save_file(host, path, metadata={"format": "pt"})
    except (SafetensorError, KeyError) as error:
        kinds = sorted({str(x.dtype) for x in host.values()})
        raise CheckpointError(f"cannot write {str(path)!r} with tensors of {', '.join(kinds)}: {error}") from error
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors lets only the owner read
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _own_host_copy(x: torch.Tensor, taken: set[int]) -> torch.Tensor:
    """A shard in host memory, contiguous, with a storage of its own; `taken` are those of the shards before."""
    host = x.detach().cpu().contiguous()
    if host.untyped_storage().nbytes() != host.numel() * host.itemsize or host.untyped_storage()._cdata in taken:
        host = host.clone()
    taken.add(host.untyped_storage()._cdata)
    return host


def _save_file(state: State, tensors: dict[str, torch.Tensor], path: Path) -> None:
    """One plain file of whole tensors, which any reader of safetensors understands."""
    if not isinstance(state, (torch.nn.Module, torch.Tensor)) and not _is_flat(state):
        raise CheckpointError(
            f"a single file, {str(path)!r}, holds a module or a dict of tensors by name: save to a directory to keep numbers, lists and nested dicts"
        )
    whole = {name: x.full_tensor() if isinstance(x, Tensor) else x for name, x in tensors.items()}
    if world.current().process == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            _write(whole, temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    _wait_for_all()


def _is_flat(state: State) -> bool:
    return isinstance(state, dict) and all(
        isinstance(key, str) and isinstance(x, torch.Tensor) for key, x in state.items()
    )


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_others(where: Path, index: Index) -> None:
    """Removes what the checkpoint that stood here before has left, or a save that did not finish."""
    for path in where.glob("tensors-*.safetensors"):
        if path.name not in index.files:
            path.unlink(missing_ok=True)


def _agreed_token() -> str:
    """A word that no earlier save has used; the first process chooses it."""
    return str(gathered(uuid.uuid4().hex[:8], "save")[0])


def _wait_for_all() -> None:
    gathered(None, "save")
