"""`Reader`: reads any box of any saved tensor, and only that, from the files it lies in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from ..engine.sharded import wrap
from ..runtime.holding import holding, slices
from ..sharding.geometry import Box, box_shape, within
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from ..tensor.tensor import Tensor, public
from .errors import CheckpointError
from .index import INDEX, Index, SavedShard, SavedTensor
from .tree import flat_dict

__all__ = ["Reader"]

_PUBLIC_INDEX = "*.safetensors.index.json"
"""How other libraries list the files of a model that does not fit into one."""

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
}  # fmt: skip


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...
    def __getitem__(self, where: tuple[slice, ...]) -> torch.Tensor: ...


class _File(Protocol):
    def keys(self) -> list[str]: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...
    def get_slice(self, name: str) -> _Slice: ...


class Reader:
    """An open checkpoint: a directory that `save` wrote, or plain safetensors files from anywhere."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, _File] = {}
        self.index = self._index()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    def read(self, name: str, box: Box | None = None) -> torch.Tensor:
        """A box of a tensor, or the whole of it, in host memory."""
        saved = self.index.tensors[name]
        box = tuple((0, size) for size in saved.shape) if box is None else box
        for shard in saved.shards:
            if all(a <= start and stop <= b for (start, stop), (a, b) in zip(box, shard.box, strict=True)):
                return self._slice(shard, box).clone()  # what a file gives may be memory that several slices share
        result = torch.empty(box_shape(box), dtype=saved.dtype)
        for shard in saved.shards:
            common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, shard.box, strict=True))
            if all(start < stop for start, stop in common):
                result[slices(within(common, box))] = self._slice(shard, common)
        return result

    def read_laid(self, name: str, mapping: DeviceMapping, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor in a layout, and in another dtype if one is given; this process reads what its devices hold, once."""
        saved = self.index.tensors[name]
        layout, dtype = mapping.layout(len(saved.shape)), dtype or saved.dtype
        return public(wrap(self._pieces(name, saved, layout, dtype), layout, saved.shape, asked=mapping, dtype=dtype))

    def _pieces(self, name: str, saved: SavedTensor, layout: Layout, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        here = holding(layout)
        return tuple(
            self.read(name, here.box(i, saved.shape)).to(device, dtype) for i, device in enumerate(here.devices)
        )

    def _slice(self, shard: SavedShard, box: Box) -> torch.Tensor:
        file = self._open(shard.file)
        try:
            if not box:
                return file.get_tensor(shard.key)
            part = file.get_slice(shard.key)[slices(within(box, shard.box))]
        except SafetensorError as error:
            raise CheckpointError(f"cannot read {shard.key!r} from {str(self.path / shard.file)!r}: {error}") from error
        if tuple(part.shape) != box_shape(box):
            raise CheckpointError(
                f"{shard.key!r} in {str(self.path / shard.file)!r} has not the shape that the index says: the checkpoint is damaged"
            )
        return part

    def _open(self, name: str) -> _File:
        if name not in self._files:
            path = self.path / name if self.path.is_dir() else self.path
            if not path.is_file():
                raise CheckpointError(
                    f"the checkpoint {str(self.path)!r} is incomplete, its file {name!r} is missing: copy the whole directory, or use another checkpoint"
                )
            try:
                self._files[name] = cast(_File, safe_open(path, framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"the file {str(path)!r} is damaged or no safetensors file ({error}): use another checkpoint"
                ) from error
        return self._files[name]

    def _index(self) -> Index:
        path = self.path
        if path.is_file():
            return self._index_of([path.name])
        if (path / INDEX).is_file():
            return Index.read(path / INDEX)
        listed = sorted(path.glob(_PUBLIC_INDEX)) if path.is_dir() else []
        if listed:
            return self._index_of(sorted(set(_weight_map(listed[0]).values())))
        plain = sorted(path.glob("*.safetensors")) if path.is_dir() else []
        if plain and not any(file.name.startswith("tensors-") for file in plain):
            return self._index_of([file.name for file in plain])
        if plain:
            raise CheckpointError(
                f"the checkpoint {str(path)!r} has no {INDEX}: it was not completed, use another checkpoint"
            )
        raise CheckpointError(
            f"there is no checkpoint at {str(path)!r}: give a directory that weft.checkpoint.save wrote, or a safetensors file"
        )

    def _index_of(self, files: list[str]) -> Index:
        """The index of plain files, in which every tensor is whole."""
        tensors: dict[str, SavedTensor] = {}
        for name in files:
            file = self._open(name)
            for key in file.keys():  # noqa: SIM118 - an open file, not a dict
                part = file.get_slice(key)
                shape = tuple(part.get_shape())
                shard = SavedShard(name, key, tuple((0, size) for size in shape))
                tensors[key] = SavedTensor(shape, _DTYPES[part.get_dtype()], (shard,))
        return Index(flat_dict(list(tensors)), tensors)


def _weight_map(path: Path) -> Mapping[str, str]:
    try:
        weights: dict[str, str] = json.loads(path.read_text())["weight_map"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the index {str(path)!r} is damaged ({type(error).__name__}: {error}): use another checkpoint"
        ) from error
    return weights
