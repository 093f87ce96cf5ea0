"""`Index`: what a checkpoint holds, and in which file each shard of it lies."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..sharding.geometry import Box
from .errors import CheckpointError
from .tree import Node

__all__ = ["INDEX", "Index", "SavedShard", "SavedTensor", "dtype_named"]

INDEX = "index.json"
_FORMAT = "weft checkpoint 1"


@dataclass(frozen=True, slots=True)
class SavedShard:
    """One box of a tensor: under which key of which file it lies."""

    file: str
    key: str
    box: Box


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A saved tensor: its shape, its dtype and its shards."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    shards: tuple[SavedShard, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """What a checkpoint holds: the structure of the state, and its tensors by name."""

    structure: Node
    tensors: dict[str, SavedTensor]

    @property
    def files(self) -> set[str]:
        """The files that the tensors lie in."""
        return {shard.file for saved in self.tensors.values() for shard in saved.shards}

    def to_json(self) -> str:
        """The index as text."""
        return json.dumps(
            {
                "format": _FORMAT,
                "structure": self.structure,
                "tensors": {
                    name: {
                        "shape": saved.shape,
                        "dtype": str(saved.dtype).removeprefix("torch."),
                        "shards": [{"file": s.file, "key": s.key, "box": s.box} for s in saved.shards],
                    }
                    for name, saved in self.tensors.items()
                },
            },
            indent=1,
        )

    @classmethod
    def read(cls, path: Path) -> Index:
        """The index of a checkpoint's directory."""
        try:
            content: dict[str, Any] = json.loads(path.read_text())
            if content["format"] != _FORMAT:
                raise CheckpointError(
                    f"{str(path)!r} is of the format {content['format']!r}, but this Weft reads {_FORMAT!r}"
                )
            tensors = {name: _saved_tensor(entry) for name, entry in content["tensors"].items()}
            return cls(content["structure"], tensors)
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"the index {str(path)!r} is damaged ({type(error).__name__}: {error}): use another checkpoint"
            ) from error


def _saved_tensor(entry: dict[str, Any]) -> SavedTensor:
    shards = tuple(
        SavedShard(shard["file"], shard["key"], tuple((start, stop) for start, stop in shard["box"]))
        for shard in entry["shards"]
    )
    saved = SavedTensor(tuple(entry["shape"]), dtype_named(entry["dtype"]), shards)
    covered = sum(math.prod(stop - start for start, stop in shard.box) for shard in shards)
    if covered != math.prod(saved.shape):
        raise TypeError(
            f"shards hold {covered} of {math.prod(saved.shape)} elements of a tensor of shape {saved.shape}"
        )
    return saved


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of this name.

    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"unknown dtype {name!r}")
    return dtype
