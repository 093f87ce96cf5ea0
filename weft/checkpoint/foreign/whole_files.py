"""Plain safetensors files of whole tensors, which all processes write together: each writes its shards to their places.

No process holds more of a tensor than its shards. The first makes the files, with heads and empty room; the others fill
it; then the first gives them their names.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from ..files.lock import FolderLock
from ..files.opening import check_is_found
from ..files.writing import sync_folder, write_whole
from ..memory import host_parts, readable_bytes
from ..shares import Share, identity, shares
from ..tree import Node, State, children
from .dcp import METADATA as DCP

__all__ = ["check_fits_file", "check_names", "config_folder", "save_file", "save_files"]

_ALONE = "model.safetensors"
_LISTING = "model.safetensors.index.json"
_MODEL_FILE = re.compile(r"model(-[0-9a-f]{8})?(-[0-9]{5}-of-[0-9]{5})?\.safetensors")
_LEFT = re.compile(r"\.(config|model(-[0-9]{5}-of-[0-9]{5})?\.safetensors(\.index\.json)?)\.[0-9a-f]{8}")
"""What a save that was stopped has left."""
_WAS = "was"
"""Where, beside the new config, the old one is kept until the weights have taken their place."""
_OLD = 60.0
"""Seconds after which a save has locked what it has made."""


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


class _ModelFolder:
    """A folder with all files of a model, the list of them if there are several, and what else belongs to it.

    One file of a model is found before a list, by other libraries too, and a list before the files that it does not name. So
    one rename or removal makes a folder that of the new model, and whatever stops a save leaves the old one or the new one.
    """

    def __init__(self, path: Path, beside: Callable[[Path], None]) -> None:
        self.path, self._beside = path, beside
        self._lock: FolderLock | None = None

    def begin(self, token: str) -> None:
        """Keeps other savers out, removes what one has left that was stopped, and writes what belongs to the model beside its place."""
        self._lock = FolderLock(self.path)
        check_is_found(self.path, [INDEX, DCP])
        was = config_folder(self.path)
        if was != self.path:
            for name in sorted(path.name for path in was.iterdir() if path.name != _ALONE):
                (was / name).replace(self.path / name)
        for old in self.path.iterdir():
            if _LEFT.fullmatch(old.name):
                shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
        (self.path / f".config.{token}").mkdir()
        self._beside(self.path / f".config.{token}")

    def settle(self, files: Sequence[_WholeFile], temporary: Mapping[str, Path], token: str) -> None:
        """Gives the files their names, and makes them the model of this folder."""
        names = self._names([file.name for file in files], token)
        if len(files) > 1:
            for file in files:
                temporary[file.name].replace(self.path / names[file.name])
            sync_folder(self.path)
            weights = {key: names[file.name] for file in files for key in file.kept}
            total = sum(kept.nbytes for file in files for kept in file.kept.values())
            listing = {"metadata": {"total_size": total}, "weight_map": weights}
            write_whole(self.path / f".{_LISTING}.{token}", json.dumps(listing, indent=2).encode())
        restore = self._replace_configs(token, several=len(files) > 1)
        try:
            if len(files) > 1:
                (self.path / f".{_LISTING}.{token}").replace(self.path / _LISTING)
                (self.path / _ALONE).unlink(missing_ok=True)
            else:
                temporary[_ALONE].replace(self.path / _ALONE)
        except OSError:
            restore()
            raise
        sync_folder(self.path)
        kept = {*names.values(), _LISTING} if len(files) > 1 else {_ALONE}
        for old in self.path.iterdir():
            if _MODEL_FILE.fullmatch(old.name.removesuffix(".index.json")) and old.name not in kept:
                with suppress(OSError):  # the new model is found whatever is beside it
                    old.unlink(missing_ok=True)

    def _replace_configs(self, token: str, *, several: bool) -> Callable[[], None]:
        """Gives the new config its place, which the weights take right after it; what takes that back. The old one is kept for as long."""
        beside = self.path / f".config.{token}"
        new, was = sorted(path.name for path in beside.iterdir()), beside / _WAS
        was.mkdir()
        for name in new:
            if (self.path / name).is_file():
                write_whole(was / name, (self.path / name).read_bytes())
        if several:
            (was / _ALONE).touch()  # while that stands there, it is the model
        sync_folder(was)

        def restore() -> None:
            for name in new:
                with suppress(OSError):  # why the save failed is said
                    (was / name).replace(self.path / name)

        try:
            for name in new:
                (beside / name).replace(self.path / name)
        except OSError:
            restore()
            raise
        return restore

    def end(self, token: str) -> None:
        """Removes what is left over, and lets others save."""
        if self._lock is not None:  # else it has not begun
            try:
                shutil.rmtree(self.path / f".config.{token}", ignore_errors=True)
                with suppress(OSError):  # what is left goes with the next save; why this one failed is said
                    (self.path / f".{_LISTING}.{token}").unlink(missing_ok=True)
            finally:
                self._lock.release()

    def _names(self, names: Sequence[str], token: str) -> dict[str, str]:
        """The names that files get: of several, not those of files that are there, or what a crash leaves would be some of both."""
        if len(names) > 1 and any((self.path / name).exists() for name in names):
            return {name: name.replace("model-", f"model-{token}-") for name in names}
        return {name: name for name in names}


def config_folder(path: Path) -> Path:
    """Where the config lies that the weights in a folder belong to: aside, if a save was stopped when it had renamed the one and not yet the other."""
    for beside in path.glob(".config.*"):
        was, token = beside / _WAS, beside.name.removeprefix(".config.")
        waits = any((path / f".{name}.{token}").exists() for name in (_ALONE, _LISTING))
        waits = waits or ((was / _ALONE).exists() and (path / _ALONE).exists())
        if waits and (was / "config.json").exists() and not (beside / "config.json").exists():
            return was
    return path


def check_fits_file(state: State, structure: Node, tensors: Mapping[str, torch.Tensor], path: Path, wait: bool) -> None:
    """Raises for a state that one plain file cannot hold, or not in this way."""
    if not isinstance(state, (torch.nn.Module, torch.Tensor)) and not _is_flat(state):
        raise CheckpointError(
            f"a single file, {str(path)!r}, holds a module or a dict of tensors by name: save to a directory to keep numbers, lists and nested dicts"
        )
    if not wait:
        raise CheckpointError(
            f"a single file, {str(path)!r}, is written by all processes together: save to a directory to use wait=False"
        )
    check_names(structure, tensors)


def check_names(structure: Node, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises for a name that a plain file has another use for, or that is no tensor's, as a module's extra state may be."""
    for name, node in children(structure).items():
        if "tensor" not in node:
            raise CheckpointError(
                f"{name!r} of the module's state is no tensor, and a file of safetensors holds nothing else: save to a directory "
                "with weft.checkpoint.save"
            )
    if METADATA in tensors:
        raise CheckpointError(f"a file of safetensors cannot hold a tensor named {METADATA!r}: rename it")


def save_file(tensors: Mapping[str, torch.Tensor], ready: Mapping[str, torch.Tensor], path: Path, token: str) -> None:
    """One plain file of whole tensors, which any reader of safetensors understands; `token` is the word that all have agreed upon."""
    _write_together(path.parent, [(path.name, ready)], tensors, ready, token)


def save_files(
    tensors: Mapping[str, torch.Tensor],
    ready: Mapping[str, torch.Tensor],
    folder: Path,
    most: int,
    token: str,
    beside: Callable[[Path], None],
) -> None:
    """Files of at most so many bytes, with the list that other libraries look for; of tied tensors the first name is kept.

    `beside` writes into a folder what else belongs to the model; `token` is the word that all have agreed upon.
    """
    once = {name: ready[name] for name, _ in shares(ready, tensors)}
    groups: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, x in once.items():
        if groups[-1] and size + x.numel() * x.itemsize > most:
            groups.append({})
            size = 0
        groups[-1][name] = x
        size += x.numel() * x.itemsize
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    names = [_ALONE] if len(groups) == 1 else names
    _write_together(folder, list(zip(names, groups, strict=True)), tensors, once, token, _ModelFolder(folder, beside))


def _write_together(
    folder: Path,
    groups: Sequence[tuple[str, Mapping[str, torch.Tensor]]],
    tensors: Mapping[str, torch.Tensor],
    ready: Mapping[str, torch.Tensor],
    token: str,
    around: _ModelFolder | None = None,
) -> None:
    """Writes files by their names, and what goes into each."""
    files = [
        _WholeFile(name, *head_bytes((key, x.dtype, tuple(x.shape)) for key, x in group.items()))
        for name, group in groups
    ]
    first = world.current().process == 0
    temporary = {file.name: folder / f".{file.name}.{token}" for file in files}

    locks: list[FolderLock] = []

    def make() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if around is not None:
            around.begin(token)
        for file in files:
            _make(temporary[file.name], file)
            locks.append(FolderLock(temporary[file.name]))
            if around is None:
                _sweep(temporary[file.name], file.name)

    def name() -> None:
        if around is not None:
            around.settle(files, temporary, token)
            return
        for file in files:
            temporary[file.name].replace(folder / file.name)
        sync_folder(folder)

    try:
        _together(folder, make if first else None)
        _together(folder, lambda: _fill(files, temporary, tensors, ready))
        _together(folder, name if first else None)
    finally:
        if first:
            if around is not None:
                around.end(token)
            for path in temporary.values():
                with suppress(OSError, ValueError):  # there is no folder
                    path.unlink(missing_ok=True)
            for lock in locks:
                lock.release()


def _sweep(own: Path, name: str) -> None:
    """Removes what saves to a file have left that were stopped; what others write right now is locked, or has just been made."""
    left, now = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{8}}"), own.stat().st_mtime
    for path in own.parent.iterdir():
        with suppress(CheckpointError, OSError):
            if left.fullmatch(path.name) and path.is_file() and now - path.stat().st_mtime > _OLD:
                lock = FolderLock(path)
                path.unlink(missing_ok=True)
                lock.release()


def _together(folder: Path, act: Callable[[], None] | None) -> None:
    """Does something, and raises in all processes what goes wrong in one."""
    problem: Exception | None = None
    try:
        if act is not None:
            act()
    except Exception as error:  # noqa: BLE001 - raised in all processes: a model's config says what it likes
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
