"""`Index`: what a checkpoint holds, in which bytes of which file each shard of it lies, and their checksums."""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ...sharding.geometry import Box, box_shape
from ..errors import CheckpointError
from ..tree import Node, structure_fault
from .access import FileStamp
from .boxes import can_be, tiling_fault
from .checksums import DIGITS, block_count, checksum

__all__ = ["INDEX", "Index", "SavedFile", "SavedShard", "SavedTensor", "check_file_name", "dtype_named", "read_json"]

INDEX = "index.json"
_FORMAT = "weft checkpoint 2"
_FIRST_LINE = re.compile(rb'\{"format": "weft checkpoint 2", "checksum": "([0-9a-f]{16})",\n')
_OTHER_FORMAT = re.compile(rb'\s*\{\s*"format": "(weft checkpoint [0-9]{1,4})"')
_MOST = 1 << 30
"""An index has fewer bytes than this."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of shards: its size, how much of it is the head, and the head's checksum; files of others have a stamp for that."""

    nbytes: int
    head: int = 0
    checksum: str | None = None
    stamp: FileStamp | None = None


@dataclass(frozen=True, slots=True)
class SavedShard:
    """One box of a tensor: under which key of which file it lies, from which byte on, and the checksums of its blocks."""

    file: str
    key: str
    box: Box
    start: int
    checksums: str | None = None
    order: tuple[int, ...] = ()
    """Its dims as they lie in the file, the slowest first, if not in their own order; files of others may have columns first."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape that it has in the file, where it lies row by row."""
        shape = box_shape(self.box)
        return tuple(shape[dim] for dim in self.order) or shape


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A saved tensor: its shape, its dtype and its shards."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    shards: tuple[SavedShard, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes the whole of it has."""
        return math.prod(self.shape) * self.dtype.itemsize

    def shard_nbytes(self, shard: SavedShard) -> int:
        """How many bytes a shard of it has."""
        return math.prod(box_shape(shard.box)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Index:
    """What a checkpoint holds: the structure of the state, its tensors by name, and the files they lie in."""

    structure: Node
    tensors: Mapping[str, SavedTensor]
    files: Mapping[str, SavedFile]
    checksum: str = ""
    """Of the index itself; two checkpoints have the same only if they are one. Files of others have none."""

    def to_bytes(self) -> bytes:
        """The index as a file: JSON with a line for each file and tensor, whose first line has the checksum of all that follows."""
        files = {name: {"bytes": f.nbytes, "head": f.head, "checksum": f.checksum} for name, f in self.files.items()}
        tensors = {name: _entry(saved) for name, saved in self.tensors.items()}
        structure = json.dumps(self.structure)
        rest = f'"structure": {structure},\n"files": {_lines(files)},\n"tensors": {_lines(tensors)}}}\n'.encode()
        return f'{{"format": "{_FORMAT}", "checksum": "{checksum(rest)}",\n'.encode() + rest

    @classmethod
    def read(cls, path: Path) -> Index:
        """The index of a checkpoint's directory; one that is damaged, or says what cannot be, is refused."""
        raw = _content(path)
        first = _FIRST_LINE.match(raw)
        if first is None:
            other = _OTHER_FORMAT.match(raw)
            if other is not None and other[1].decode() != _FORMAT:
                raise CheckpointError(
                    f"{str(path)!r} is of the format {other[1].decode()!r}, but this Weft reads {_FORMAT!r}"
                )
            raise _damaged(path, "its first line is not that of an index")
        rest = raw[first.end() :]
        if checksum(rest) != first[1].decode():
            raise _damaged(path, f"its checksum is {checksum(rest)}, but {first[1].decode()} was saved")
        try:
            return _parsed(json.loads(b"{" + rest, object_pairs_hook=_unique), first[1].decode())
        except (ValueError, RecursionError) as error:  # ValueError: also what is no JSON
            raise _damaged(path, str(error)) from error


def read_json(path: Path) -> object:
    """What a JSON file of another library says; one that is none is refused."""
    try:
        return json.loads(_content(path), object_pairs_hook=_unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error


def check_file_name(name: object) -> str:
    """The name of a file in the checkpoint's own folder; one that leads elsewhere is refused.

    >>> check_file_name("model.safetensors")
    'model.safetensors'
    >>> check_file_name("../model.safetensors")
    Traceback (most recent call last):
    ValueError: '../model.safetensors' is no name of a file in the checkpoint's folder
    """
    if isinstance(name, str) and re.fullmatch(r"[^/\\\0:]{1,255}", name) and name not in (".", ".."):
        return name
    raise ValueError(f"{str(name)[:300]!r} is no name of a file in the checkpoint's folder")


def dtype_named(name: object) -> torch.dtype:
    """The torch dtype of this name.

    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {str(name)[:80]!r}")
    return dtype


def _lines(entries: Mapping[str, object]) -> str:
    """A JSON object with a line for each entry."""
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()) + "}"


def _entry(saved: SavedTensor) -> dict[str, object]:
    return {
        "shape": saved.shape,
        "dtype": str(saved.dtype).removeprefix("torch."),
        "shards": [
            {"file": s.file, "key": s.key, "box": s.box, "start": s.start, "checksums": s.checksums}
            for s in saved.shards
        ],
    }


def _content(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _damaged(path, "it is no plain file")
        if status.st_size > _MOST:
            raise _damaged(path, f"it has {status.st_size} bytes")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"the index {str(path)!r} cannot be read: {error}") from error


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"the index {str(path)!r} is damaged ({why[:300]}): use another checkpoint")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} is there twice")
        found[key] = value
    return found


def _parsed(content: object, own: str) -> Index:
    match content:
        case {"structure": structure, "files": dict(files), "tensors": dict(tensors)}:
            pass
        case _:
            raise ValueError("it has no structure, files and tensors")
    known = {check_file_name(name): _saved_file(name, entry) for name, entry in files.items()}
    found = {name: _saved_tensor(name, entry, known) for name, entry in tensors.items()}
    fault = structure_fault(structure, found) or _places_fault(found.values())
    if fault:
        raise ValueError(fault)
    return Index(structure, found, known, own)


def _is_count(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < 1 << 62 for value in values)


def _saved_file(name: str, entry: object) -> SavedFile:
    match entry:
        case {"bytes": int(size), "head": int(head), "checksum": str(sum_)} if (
            _is_count(size, head) and 8 <= head <= size
        ):
            return SavedFile(size, head, sum_)
    raise ValueError(f"what it says of the file {name!r} is no size, head and checksum")


def _saved_tensor(name: str, entry: object, files: Mapping[str, SavedFile]) -> SavedTensor:
    match entry:
        case {"shape": list(shape), "dtype": dtype, "shards": list(shards)} if _is_count(*shape) and can_be(shape):
            saved = SavedTensor(tuple(shape), dtype_named(dtype), tuple(_saved_shard(name, shard) for shard in shards))
        case _:
            raise ValueError(f"what it says of {name!r} is no shape, dtype and shards")
    boxes = [shard.box for shard in saved.shards]
    fault = tiling_fault(saved.shape, boxes) if saved.nbytes else (boxes and "it is empty, but has shards")
    if fault:
        raise ValueError(f"of {name!r}, {fault}")
    for shard in saved.shards:
        size = saved.shard_nbytes(shard)
        if shard.file not in files:
            raise ValueError(f"{name!r} lies in {shard.file!r}, which is no file of the checkpoint")
        file = files[shard.file]
        if shard.start < file.head or shard.start + size > file.nbytes:
            raise ValueError(f"{shard.key!r} with its {size} bytes leaves the file {shard.file!r}")
        if len(shard.checksums or "") != DIGITS * block_count(size):
            raise ValueError(f"{shard.key!r} has not one checksum for each of its {block_count(size)} blocks")
    return saved


def _saved_shard(name: str, entry: object) -> SavedShard:
    match entry:
        case {"file": str(file), "key": str(key), "box": list(box), "start": int(start), "checksums": str(sums)}:
            intervals = [tuple(each) for each in box if isinstance(each, list) and len(each) == 2 and _is_count(*each)]
            if len(intervals) == len(box) and _is_count(start):
                return SavedShard(file, key, tuple(intervals), start, sums)
    raise ValueError(f"what it says of a shard of {name!r} is no file, key, box, start and checksums")


def _places_fault(tensors: Iterable[SavedTensor]) -> str | None:
    """What is wrong with where shards lie: two in the same bytes, unless they are one shard of tied tensors."""
    places: dict[str, set[tuple[int, int, str, torch.dtype, tuple[int, ...]]]] = {}
    for saved in tensors:
        for shard in saved.shards:
            size = saved.shard_nbytes(shard)
            places.setdefault(shard.file, set()).add((shard.start, size, shard.key, saved.dtype, box_shape(shard.box)))
    for file, found in places.items():
        at, before = 0, ""
        for start, size, key, *_ in sorted(found, key=lambda place: place[:3]):
            if start < at:
                return f"{before!r} and {key!r} lie in the same bytes of {file!r}"
            at, before = start + size, key
    return None
