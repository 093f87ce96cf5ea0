"""Folders of `torch.distributed.checkpoint` as checkpoints: its metadata is read without running anything it names.

DCP pickles what the folder holds into one file. A pickle may name any function; here it may name only the words of that
list, and everything else is refused. The tensors are records of zip files, which are read in place.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...sharding.geometry import Box
from ..errors import CheckpointError
from ..files.boxes import can_be, tiling_fault
from ..files.index import Index, SavedFile, SavedShard, SavedTensor, check_file_name
from ..tree import Node

__all__ = ["METADATA", "dcp_index"]

METADATA = ".metadata"
_MOST = 1 << 30
_WORDS = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed._shard.sharded_tensor.metadata": {"TensorProperties", "MEM_FORMAT_ENCODING"},  # before torch 2.3
    "torch.serialization": {"_get_layout"},
    "pathlib": {"Path", "PosixPath", "WindowsPath"},
    "pathlib._local": {"Path", "PosixPath", "WindowsPath"},
}
_CONTAINERS = {("torch", "Size"): tuple, ("collections", "OrderedDict"): dict}


class _Word:
    """What stands for an object of DCP's: its attributes, and none of its code."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def has(self, name: str) -> bool:
        """Whether it stands for an object of the class of this name."""
        return type(self).__name__ == name

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            vars(self).update(state)
        else:
            self.state = state

    def __getattr__(self, name: str) -> object:  # it has what the pickle gives it
        raise AttributeError(f"a {type(self).__name__} of it has no {name!r}")


class _Metadata(pickle.Unpickler):
    """Reads a pickle that may name the words of DCP's metadata and dtypes; nothing that it names is imported or run."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._words: dict[tuple[str, str], type[_Word]] = {}

    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _CONTAINERS:
            return _CONTAINERS[module, name]
        if name not in _WORDS.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no word of a list of tensors")
        return self._words.setdefault((module, name), type(name, (_Word,), {}))


def dcp_index(path: Path) -> Index:
    """What a folder of DCP holds, in the form of a checkpoint's index."""
    found = _read_metadata(path / METADATA)
    try:
        return _Folder(path, found).index()
    except CheckpointError:
        raise
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        OSError,
        RecursionError,
        zipfile.BadZipFile,
        EOFError,
    ) as error:
        raise CheckpointError(
            f"the folder {str(path)!r} of torch.distributed.checkpoint is damaged ({type(error).__name__}: {error}): use another checkpoint"
        ) from error


def _read_metadata(path: Path) -> _Word:
    try:
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        found: object = _Metadata(path.read_bytes()).load()
    except Exception as error:
        raise CheckpointError(
            f"the metadata {str(path)!r} is damaged or not from torch.distributed.checkpoint ({error}): use another checkpoint"
        ) from error
    if not isinstance(found, _Word) or not found.has("Metadata"):
        raise CheckpointError(f"{str(path)!r} is no metadata of torch.distributed.checkpoint: use another checkpoint")
    return found


class _Folder:
    """A folder, its metadata, and the files that have been opened."""

    def __init__(self, path: Path, metadata: _Word) -> None:
        self.path = path
        self.entries = _dict(metadata.state_dict_metadata)
        self.paths = _dict(vars(metadata).get("planner_data") or {})
        self.places: dict[tuple[object, object], _Place] = {}
        for index, info in _dict(metadata.storage_data).items():
            offset = vars(index).get("offset")
            self.places[vars(index)["fqn"], offset and _sizes(offset)] = _place(info)
        self.sizes: dict[str, SavedFile] = {}

    def index(self) -> Index:
        """The index of the folder."""
        tensors: dict[str, SavedTensor] = {}
        values: dict[str, object] = {}
        for name, entry in self.entries.items():
            if not isinstance(name, str) or not isinstance(entry, _Word):
                raise TypeError(f"{name!r} is no name of a tensor or a value")
            if entry.has("TensorStorageMetadata"):
                tensors[name] = self._tensor(name, entry)
            else:
                values[name] = self._value(self.places[name, None])
        return Index(self._structure(tensors, values), tensors, self.sizes)

    def _tensor(self, name: str, entry: _Word) -> SavedTensor:
        shape, dtype = _sizes(entry.size), _dtype(entry)
        boxes: list[Box] = []
        shards: list[SavedShard] = []
        for chunk in _words(entry.chunks):
            offsets, sizes = _sizes(chunk.offsets), _sizes(chunk.sizes)
            if not math.prod(sizes):
                continue
            boxes.append(tuple((start, start + size) for start, size in zip(offsets, sizes, strict=True)))
            place = self.places.get((name, offsets)) or self.places[name, None]
            file, start = self._record(place, dtype, sizes)
            shards.append(SavedShard(file, name, boxes[-1], start))
        fault = (
            tiling_fault(shape, boxes) if math.prod(shape) else None if can_be(shape) else "no tensor can be so large"
        )
        if fault:
            raise ValueError(f"of {name!r}, {fault}")
        return SavedTensor(shape, dtype, tuple(shards))

    def _record(self, place: _Place, dtype: torch.dtype, sizes: Sequence[int]) -> tuple[str, int]:
        """The file of a chunk, and where its elements begin: the one record of data of a zip inside the file."""
        with self._item(place) as item:
            stored = torch.load(item, map_location="meta", weights_only=True)
            if not isinstance(stored, torch.Tensor) or stored.dtype != dtype or tuple(stored.shape) != tuple(sizes):
                raise ValueError(f"the file {place.file!r} holds something else at byte {place.start}")
            if not stored.is_contiguous() or stored.storage_offset():
                raise ValueError(
                    f"the file {place.file!r} holds a tensor with the strides {stored.stride()} at byte {place.start}, which is not supported: "
                    "save x.contiguous()"
                )
            item.seek(0)
            with zipfile.ZipFile(item) as archive:
                (record,) = (entry for entry in archive.infolist() if entry.filename.split("/")[1:2] == ["data"])
                size = math.prod(sizes) * dtype.itemsize
                if record.compress_type != zipfile.ZIP_STORED or record.file_size < size:
                    raise ValueError(f"the file {place.file!r} holds too little at byte {place.start}")
                item.seek(record.header_offset + 26)
                name, extra = (int.from_bytes(item.read(2), "little") for _ in range(2))
                return place.file, place.start + record.header_offset + 30 + name + extra

    def _value(self, place: _Place) -> object:
        with self._item(place) as item:
            return torch.load(item, map_location="cpu", weights_only=True)

    def _item(self, place: _Place) -> io.BufferedReader:
        name = place.file
        if name not in self.sizes:
            self.sizes[name] = SavedFile((self.path / name).stat().st_size)
        if place.start + place.length > self.sizes[name].nbytes:
            raise ValueError(f"the file {name!r} is shorter than the metadata says")
        return io.BufferedReader(_Part((self.path / name).open("rb"), place.start, place.length))

    def _structure(self, tensors: dict[str, SavedTensor], values: dict[str, object]) -> Node:
        """The nested state, as DCP's planner flattened it."""
        root = _Level()
        for name in (*tensors, *values):
            leaf: Node = {"tensor": name} if name in tensors else _value_node(values[name])
            path: object = self.paths.get(name, (name,))
            if not isinstance(path, tuple) or not path or not all(type(key) in (str, int) for key in path):
                raise ValueError(f"{name!r} has no path of keys, but {path!r}")
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


def _value_node(value: object) -> Node:
    """What DCP keeps as one value may be a list of them, which a checkpoint has as a list."""
    match value:
        case list():
            return {"list": [_value_node(item) for item in value]}
        case tuple():
            return {"tuple": [_value_node(item) for item in value]}
        case dict():
            return {"dict": [[key, _value_node(item)] for key, item in value.items()]}
    return {"value": value}


def _level_node(level: _Level) -> Node:
    nodes = {key: _level_node(below) if isinstance(below, _Level) else below for key, below in level.items()}
    if level and list(level) == list(range(len(level))):
        return {"list": list(nodes.values())}
    return {"dict": [[key, node] for key, node in nodes.items()]}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an item lies: a part of a file."""

    file: str
    start: int
    length: int


def _place(info: _Word) -> _Place:
    said = vars(info)
    if said.get("transform_descriptors"):
        raise ValueError(f"the file {said['relative_path']!r} is compressed or transformed, which is not supported")
    start, length = _sizes((said["offset"], said["length"]))
    return _Place(check_file_name(said["relative_path"]), start, length)


def _dict(value: object) -> dict[object, _Word]:
    if not isinstance(value, dict):
        raise TypeError(f"a dict is expected, but there is a {type(value).__name__}")
    return value


def _words(value: object) -> list[_Word]:
    if not isinstance(value, list) or not all(isinstance(each, _Word) for each in value):
        raise TypeError(f"a list of objects is expected, but there is {value!r}")
    return value


def _dtype(entry: _Word) -> torch.dtype:
    """The dtype of a tensor, which its properties begin with."""
    match entry.properties:
        case _Word(state=(torch.dtype() as dtype, *_)):
            return dtype
    raise TypeError("a tensor has no dtype")


def _sizes(sizes: object) -> tuple[int, ...]:
    if not isinstance(sizes, tuple) or not all(type(n) is int and 0 <= n < 1 << 62 for n in sizes):
        raise ValueError(f"{sizes!r} are no sizes")
    return sizes


class _Part(io.RawIOBase):
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
