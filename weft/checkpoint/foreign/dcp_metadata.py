"""The list of what a folder of DCP holds: a pickle, of which only words are read; none of the code that it names runs.

A pickle may name any function; here it may name only the words of that list, and everything else is refused. It may also be
made so that little of it takes much time or memory: by keys that are tuples of tuples, each there twice, or by numbers for
things that it does not have. So it is read by Python's reader that is written in Python, without what such lists do not have.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch

from ..errors import CheckpointError

__all__ = ["Word", "read_metadata"]

_MOST = 1 << 30
"""A list has at most so many bytes."""
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


class Word:
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


def read_metadata(path: Path) -> Word:
    """What the list of a folder says."""
    try:
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        found: object = _Metadata(path.read_bytes()).load()
    except Exception as error:
        raise CheckpointError(
            f"the metadata {str(path)!r} is damaged or not from torch.distributed.checkpoint ({type(error).__name__}: {error}): use another checkpoint"
        ) from error
    if not isinstance(found, Word) or not found.has("Metadata"):
        raise CheckpointError(f"{str(path)!r} is no metadata of torch.distributed.checkpoint: use another checkpoint")
    return found


def _new_dict() -> dict[object, object]:
    """An ordered dict of the list; what is in it comes later, key by key."""
    return {}


_CONTAINERS: dict[tuple[str, str], Callable[..., object]] = {
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): _new_dict,
}


class _Metadata(pickle._Unpickler):
    """Reads a pickle that may name the words of DCP's metadata and dtypes; nothing that it names is imported or run."""

    stack: list[object]
    pop_mark: Callable[[], list[object]]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._words: dict[tuple[str, str], type[Word]] = {}

    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _CONTAINERS:
            return _CONTAINERS[module, name]
        if name not in _WORDS.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no word of a list of tensors")
        return self._words.setdefault((module, name), type(name, (Word,), {}))

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill([key, value])

    def _set_items(self) -> None:
        self._fill(self.pop_mark())

    def _fill(self, items: list[object]) -> None:
        """Puts keys and values that take turns into the dict that comes before them."""
        there = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(there) is not dict or not isinstance(key, (str, int, Word)):
                raise pickle.UnpicklingError(f"it has a {type(key).__name__} as a key of a {type(there).__name__}")
            there[key] = value

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it has what lists of tensors do not have")

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        **pickle._Unpickler.dispatch,
        **dict.fromkeys(
            (code[0] for code in (pickle.DICT, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.BYTEARRAY8)),
            _refuse,
        ),
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
    }
