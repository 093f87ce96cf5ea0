"""Plain safetensors files of whole tensors, which all processes write together: each writes its shards to their places.

No process holds more of a tensor than its shards. The first makes the files, with heads and empty room; the others fill
it; then the first gives them their names.
"""

from __future__ import annotations

import json
import math
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from ...runtime.processes import world
from ...runtime.processes.agreement.values import gathered
from ...sharding.geometry import Box
from ..errors import CheckpointError
from ..files.head import METADATA, StoredTensor, head_bytes
from ..files.index import INDEX
from ..files.opening import check_is_found
from ..files.writing import replace, sync_folder
from ..memory import host_parts, readable_bytes
from ..shares import Share, identity, shares
from ..tree import State
from .dcp import METADATA as DCP

__all__ = ["save_file", "save_files"]

_LISTING = "model.safetensors.index.json"
_MODEL_FILE = re.compile(r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors")


@dataclass(frozen=True, slots=True)
class _WholeFile:
    """A file to be: its name, its head, and where its tensors lie."""

    name: str
    head: bytes
    kept: Mapping[str, StoredTensor]

    @property
    def nbytes(self) -> int:
        """How many bytes it will have."""
        return len(self.head) + sum(kept.nbytes for kept in self.kept.values())


@dataclass(frozen=True, slots=True)
class _ModelFolder:
    """A folder with all files of a model, and the list of them if there are several."""

    path: Path
    listing: bytes | None

    def settle(self, names: Collection[str], token: str) -> None:
        """Lists the files, and removes the list and the files of what was there before: other libraries look for one before the other."""
        if self.listing is not None:
            replace(self.path / _LISTING, self.listing, token)
        else:
            (self.path / _LISTING).unlink(missing_ok=True)
        for old in self.path.iterdir():
            if _MODEL_FILE.fullmatch(old.name) and old.name not in names:
                old.unlink(missing_ok=True)


def save_file(state: State, tensors: Mapping[str, torch.Tensor], ready: Mapping[str, torch.Tensor], path: Path) -> None:
    """One plain file of whole tensors, which any reader of safetensors understands."""
    if not isinstance(state, (torch.nn.Module, torch.Tensor)) and not _is_flat(state):
        raise CheckpointError(
            f"a single file, {str(path)!r}, holds a module or a dict of tensors by name: save to a directory to keep numbers, lists and nested dicts"
        )
    file = _WholeFile(path.name, *head_bytes((name, x.dtype, tuple(x.shape)) for name, x in ready.items()))
    _write_together(path.parent, [file], tensors, ready)


def save_files(tensors: Mapping[str, torch.Tensor], ready: Mapping[str, torch.Tensor], folder: Path, most: int) -> None:
    """Files of at most so many bytes, with the list that other libraries look for; of tied tensors the first name is kept."""
    once = {name: ready[name] for name, _ in shares(ready, tensors)}
    groups: list[dict[str, torch.Tensor]] = [{}]
    for name, x in once.items():
        size = sum(each.numel() * each.itemsize for each in groups[-1].values())
        if groups[-1] and size + x.numel() * x.itemsize > most:
            groups.append({})
        groups[-1][name] = x
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    names = ["model.safetensors"] if len(groups) == 1 else names
    files = [
        _WholeFile(name, *head_bytes((key, x.dtype, tuple(x.shape)) for key, x in group.items()))
        for name, group in zip(names, groups, strict=True)
    ]
    weights = {key: file.name for file in files for key in file.kept}
    total = sum(x.numel() * x.itemsize for x in once.values())
    listing = {"metadata": {"total_size": total}, "weight_map": weights}
    content = json.dumps(listing, indent=2).encode() if len(files) > 1 else None
    _write_together(folder, files, tensors, once, _ModelFolder(folder, content))


def _write_together(
    folder: Path,
    files: Sequence[_WholeFile],
    tensors: Mapping[str, torch.Tensor],
    ready: Mapping[str, torch.Tensor],
    around: _ModelFolder | None = None,
) -> None:
    if METADATA in ready:
        raise CheckpointError(f"a file of safetensors cannot hold a tensor named {METADATA!r}: rename it")
    first = world.current().process == 0
    token = gathered(uuid.uuid4().hex[:8], "save")[0]
    temporary = {file.name: folder / f".{file.name}.{token}" for file in files}

    def make() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if around is not None:
            check_is_found(folder, [INDEX, DCP])
        for file in files:
            _make(temporary[file.name], file)

    def name() -> None:
        for file in files:
            temporary[file.name].replace(folder / file.name)
        if around is not None:
            around.settle({file.name for file in files}, token)
        sync_folder(folder)

    try:
        _together(folder, make if first else None)
        _together(folder, lambda: _fill(files, temporary, tensors, ready))
        _together(folder, name if first else None)
    finally:
        if first:
            for path in temporary.values():
                path.unlink(missing_ok=True)


def _together(folder: Path, act: Callable[[], None] | None) -> None:
    """Does something, and raises in all processes what goes wrong in one."""
    problem: OSError | CheckpointError | None = None
    try:
        if act is not None:
            act()
    except (OSError, CheckpointError) as error:
        problem = error
    for process, text in enumerate(gathered(problem and str(problem), "save")):
        if text is not None:
            raise CheckpointError(f"cannot save to {str(folder)!r}, in process {process}: {text}") from problem


def _make(path: Path, file: _WholeFile) -> None:
    mode = path.parent.stat().st_mode & 0o666
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        _write_at(made, 0, memoryview(file.head))
        os.truncate(made, file.nbytes)
    finally:
        os.close(made)


def _fill(
    files: Sequence[_WholeFile],
    temporary: Mapping[str, Path],
    tensors: Mapping[str, torch.Tensor],
    ready: Mapping[str, torch.Tensor],
) -> None:
    """Writes the shards of this process into all files, under each of their names."""
    own = {
        name: [share for share in found if share.shard is not None and share.process == world.current().process]
        for name, found in shares(ready, tensors)
    }
    by_value = {identity(tensors[name]): found for name, found in own.items()}
    for file in files:
        mine = [(kept, share) for name, kept in file.kept.items() for share in by_value[identity(tensors[name])]]
        if mine:
            opened = os.open(temporary[file.name], os.O_WRONLY)
            try:
                for kept, share in mine:
                    _write_share(opened, kept, share)
                os.fsync(opened)
            finally:
                os.close(opened)


def _write_share(file: int, kept: StoredTensor, share: Share) -> None:
    """Writes a shard to its places in the whole tensor: runs of bytes, all of the same length."""
    length, starts = _runs(kept.shape, share.box)
    size, left = length * kept.dtype.itemsize, 0
    at = 0
    for part in host_parts(share.own):
        data = readable_bytes(part)
        while data:
            if not left:
                at, left = kept.start + next(starts) * kept.dtype.itemsize, size
            run = data[:left]
            _write_at(file, at, run)
            data, at, left = data[len(run) :], at + len(run), left - len(run)


def _runs(shape: Sequence[int], box: Box) -> tuple[int, Iterator[int]]:
    """How many elements of a box lie together in the whole tensor, and where each such run begins.

    >>> length, starts = _runs((4, 6), ((1, 3), (2, 5)))
    >>> length, list(starts)
    (3, [8, 14])
    """
    dim = len(shape)
    while dim and box[dim - 1] == (0, shape[dim - 1]):
        dim -= 1
    dim = max(0, dim - 1)  # up to here every index begins a run; from here on a run goes
    length = math.prod(stop - start for start, stop in box[dim:])
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    base = box[dim][0] * strides[dim] if shape else 0
    outer = product(*(range(start, stop) for start, stop in box[:dim]))
    return length, (base + sum(i * stride for i, stride in zip(index, strides, strict=False)) for index in outer)


def _write_at(file: int, start: int, data: memoryview) -> None:
    while data:
        wrote = os.pwrite(file, data, start)
        data, start = data[wrote:], start + wrote


def _is_flat(state: State) -> bool:
    return isinstance(state, dict) and all(
        isinstance(key, str) and isinstance(x, torch.Tensor) for key, x in state.items()
    )
