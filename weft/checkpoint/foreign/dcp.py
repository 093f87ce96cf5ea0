"""Folders of `torch.distributed.checkpoint` as checkpoints: its metadata is read without running anything it names.

The tensors are records of zip files, which are read in place; where they are, the folder's metadata says.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import BinaryIO

import torch

from ...sharding.geometry import Box
from ..errors import CheckpointError
from ..files.access import open_file
from ..files.boxes import can_be, tiling_fault
from ..files.index import Index, SavedFile, SavedShard, SavedTensor, check_file_name
from ..tree import DEEPEST, Node
from .dcp_metadata import Word, read_metadata

__all__ = ["METADATA", "dcp_index"]

METADATA = ".metadata"
_OF_A_KIND = ("/data.pkl", "/byteorder", "/version")
"""The records of a stored tensor that say what it is."""
_SMALL = 1 << 16
"""Items of so many bytes are read at once."""
_LEFT_OUT = 1024
"""A list that a folder holds has at most so many places that it says nothing of."""
_EXPANDED = 64
"""A value that a file holds has at most so many parts for each of its bytes: what is there once may be in it several times."""


def dcp_index(path: Path) -> Index:
    """What a folder of DCP holds, in the form of a checkpoint's index."""
    found = read_metadata(path / METADATA)
    try:
        return _Folder(path, found).index()
    except CheckpointError:
        raise
    except Exception as error:  # of what is damaged, readers of pickles and zips say many things
        raise CheckpointError(
            f"the folder {str(path)!r} of torch.distributed.checkpoint is damaged, or holds what is not read here ({type(error).__name__}: {error}): use another checkpoint"
        ) from error


class _Folder:
    """A folder, its metadata, and the files that have been opened."""

    def __init__(self, path: Path, metadata: Word) -> None:
        self.path = path
        self.entries = _dict(metadata.state_dict_metadata)
        self.paths = _dict(vars(metadata).get("planner_data") or {})
        self.places: dict[tuple[object, object], _FilePlace] = {}
        for index, info in _dict(metadata.storage_data).items():
            name, offset = vars(index)["fqn"], vars(index).get("offset")
            if not isinstance(name, str):
                raise TypeError(f"a {type(name).__name__} is no name of a tensor or a value")
            self.places[name, offset and _sizes(offset)] = _place(info)
        self.sizes: dict[str, SavedFile] = {}
        self.kinds: dict[tuple[bytes, ...], _Stored] = {}

    def index(self) -> Index:
        """The index of the folder."""
        tensors: dict[str, SavedTensor] = {}
        values: dict[str, Node] = {}
        for name, entry in self.entries.items():
            if not isinstance(name, str) or not isinstance(entry, Word):
                raise TypeError(f"{name!r} is no name of a tensor or a value")
            if entry.has("TensorStorageMetadata"):
                tensors[name] = self._tensor(name, entry)
            else:
                values[name] = self._value(name, self.places[name, None])
        return Index(self._structure(tensors, values), tensors, self.sizes)

    def _tensor(self, name: str, entry: Word) -> SavedTensor:
        shape, dtype = _sizes(entry.size), _dtype(entry)
        boxes: list[Box] = []
        shards: list[SavedShard] = []
        for chunk in _words(entry.chunks):
            offsets, sizes = _sizes(chunk.offsets), _sizes(chunk.sizes)
            if not math.prod(sizes):
                continue
            boxes.append(tuple((start, start + size) for start, size in zip(offsets, sizes, strict=True)))
            place = self.places.get((name, offsets)) or self.places[name, None]
            stored, start = self._record(place, dtype, sizes)
            shards.append(SavedShard(place.file, name, boxes[-1], start, order=stored.order))
        fault = (
            tiling_fault(shape, boxes) if math.prod(shape) else None if can_be(shape) else "no tensor can be so large"
        )
        if fault:
            raise ValueError(f"of {name!r}, {fault}")
        return SavedTensor(shape, dtype, tuple(shards))

    def _record(self, place: _FilePlace, dtype: torch.dtype, sizes: Sequence[int]) -> tuple[_Stored, int]:
        """What a chunk is, and where its elements begin in the file: the one record of data of a zip inside it."""
        with self._item(place) as item:
            records = _records(item, place)
            stored = self._stored(item, records)
            if stored.dtype != dtype or stored.shape != tuple(sizes):
                raise ValueError(f"the file {place.file!r} holds something else at byte {place.start}")
            (record,) = (entry for entry in records if entry.filename.split("/")[1:2] == ["data"])
            if record.file_size < math.prod(sizes) * dtype.itemsize:
                raise ValueError(f"the file {place.file!r} holds too little at byte {place.start}")
            return stored, place.start + _begin(item, record)

    def _stored(self, item: BinaryIO, records: list[zipfile.ZipInfo]) -> _Stored:
        """What torch says of a tensor in a zip; what is pickled there of one is the same for all of its kind, and is read once."""
        said = tuple(_content(item, record) for record in records if record.filename.endswith(_OF_A_KIND))
        if said not in self.kinds:
            if (b"big" if sys.byteorder == "little" else b"little") in said:
                raise ValueError("a tensor is stored with the bytes of its elements in the other order")
            item.seek(0)
            self.kinds[said] = _Stored.of(torch.load(item, map_location="meta", weights_only=True))
        return self.kinds[said]

    def _value(self, name: str, place: _FilePlace) -> Node:
        with self._item(place) as item:
            _records(item, place)
            try:
                value = torch.load(item, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                made = re.search(r"GLOBAL ([\w.]+)", str(error))
                if made is None:
                    raise
                return {"unread": f"{name!r} is a pickle that calls {made[1]}, and none of its code is run"}
        return _ValueNodes(name, _EXPANDED * place.length).node(value)

    def _item(self, place: _FilePlace) -> BinaryIO:
        name = place.file
        if name not in self.sizes:
            with open_file(self.path / name, self.path) as (_, stamp):
                self.sizes[name] = SavedFile(stamp.nbytes, stamp=stamp)
        if place.start + place.length > self.sizes[name].nbytes:
            raise ValueError(f"the file {name!r} is shorter than the metadata says")
        file = (self.path / name).open("rb")
        if place.length > _SMALL:
            return io.BufferedReader(_FilePart(file, place.start, place.length))
        with file:
            file.seek(place.start)
            return io.BytesIO(file.read(place.length))

    def _structure(self, tensors: dict[str, SavedTensor], values: dict[str, Node]) -> Node:
        """The nested state, as DCP's planner flattened it."""
        root = _Level()
        for name in (*tensors, *values):
            leaf: Node = {"tensor": name} if name in tensors else values[name]
            path: object = self.paths.get(name, (name,))
            if not isinstance(path, tuple) or not path or not all(type(key) in (str, int) for key in path):
                raise ValueError(f"{name!r} has no path of keys, but {shortened(path)}")
            if len(path) > DEEPEST:
                raise ValueError(f"{name!r} lies inside of more than {DEEPEST} dicts and lists")
            at = root
            for key in path[:-1]:
                below = at.setdefault(key, _Level())
                if not isinstance(below, _Level):
                    raise ValueError(f"{name!r} lies inside of what is no dict")
                at = below
            at[path[-1]] = leaf
        return _level_node(root)


class _Level(dict["str | int", "_Level | Node"]):
    """One level of the nested state."""


class _ValueNodes:
    """Makes nodes of one value of a folder, of which there can be so many."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._left = name, most

    def node(self, value: object, depth: int = 0) -> Node:
        """What DCP keeps as one value may be a list of them, which a checkpoint has as a list."""
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            raise ValueError(f"{self._name!r} is a value of too many parts, or of lists that are too deep")
        match value:
            case list():
                return {"list": [self.node(item, depth + 1) for item in value]}
            case tuple():
                return {"tuple": [self.node(item, depth + 1) for item in value]}
            case dict():
                return {"dict": [[key, self.node(item, depth + 1)] for key, item in value.items()]}
        return {"value": value}


def _level_node(level: _Level) -> Node:
    """A level as a dict, or as a list where torch has numbers for keys; of a list, it leaves out what is an empty dict."""
    nodes = {key: _level_node(below) if isinstance(below, _Level) else below for key, below in level.items()}
    places = [key for key in level if isinstance(key, int)]
    if level and len(places) == len(level) and min(places) >= 0 and max(places) < len(places) + _LEFT_OUT:
        return {"list": [nodes.get(place, {"dict": []}) for place in range(max(places) + 1)]}
    return {"dict": [[key, node] for key, node in nodes.items()]}


@dataclass(frozen=True, slots=True)
class _FilePlace:
    """Where an item lies: a part of a file."""

    file: str
    start: int
    length: int


def _place(info: Word) -> _FilePlace:
    said = vars(info)
    file = said["relative_path"]
    if not isinstance(file, str):
        raise TypeError(f"a {type(file).__name__} is no name of a file")
    if said.get("transform_descriptors"):
        raise ValueError(f"the file {file!r} is compressed or transformed, which is not supported")
    start, length = _sizes((said["offset"], said["length"]))
    return _FilePlace(check_file_name(file), start, length)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor as torch has stored it: its dtype and shape, and its dims as they lie, if not in their own order."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, x: object) -> _Stored:
        """What is known of a tensor without memory.

        >>> _Stored.of(torch.empty(2, 3, device="meta").mT).order
        (1, 0)
        """
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"a {type(x).__name__} is stored in the place of a tensor")
        strides = x.stride()
        order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
        if x.storage_offset() or not x.permute(order).is_contiguous():
            raise ValueError(f"a tensor is stored with the strides {strides}, of which not all elements are there")
        return cls(x.dtype, tuple(x.shape), () if x.is_contiguous() else tuple(order))


def _begin(item: BinaryIO, record: zipfile.ZipInfo) -> int:
    """Where the content of a record begins."""
    item.seek(record.header_offset + 26)
    name, extra = (int.from_bytes(item.read(2), "little") for _ in range(2))
    return record.header_offset + 30 + name + extra


def _content(item: BinaryIO, record: zipfile.ZipInfo) -> bytes:
    item.seek(_begin(item, record))
    return item.read(record.file_size)


def _records(item: BinaryIO, place: _FilePlace) -> list[zipfile.ZipInfo]:
    """The records of a zip in a file, none of which is more than the bytes that are there."""
    with zipfile.ZipFile(item) as archive:
        records = archive.infolist()
    if any(record.compress_type != zipfile.ZIP_STORED or record.file_size > place.length for record in records):
        raise ValueError(f"the file {place.file!r} holds what is compressed, or says so, at byte {place.start}")
    item.seek(0)
    return records


def _dict(value: object) -> dict[object, Word]:
    if not isinstance(value, dict):
        raise TypeError(f"a dict is expected, but there is a {type(value).__name__}")
    return value


def _words(value: object) -> list[Word]:
    if not isinstance(value, list) or not all(isinstance(each, Word) for each in value):
        raise TypeError(f"a list of objects is expected, but there is {shortened(value)}")
    return value


def _dtype(entry: Word) -> torch.dtype:
    """The dtype of a tensor, which its properties begin with."""
    match entry.properties:
        case Word(state=(torch.dtype() as dtype, *_)):
            return dtype
    raise TypeError("a tensor has no dtype")


def _sizes(sizes: object) -> tuple[int, ...]:
    if not isinstance(sizes, tuple) or not all(type(n) is int and 0 <= n < 1 << 62 for n in sizes):
        raise ValueError(f"{shortened(sizes)} are no sizes")
    return sizes


class _FilePart(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: io.BufferedReader, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._file.seek(self._start + self._at)
        content = self._file.read(min(len(buffer), max(0, self._length - self._at)))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()
