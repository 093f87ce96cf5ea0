"""The head of a safetensors file: which bytes hold which tensor.

Eight bytes say how long the JSON is that follows; the bytes of the tensors come after it, without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from reprlib import repr as shortened

import torch

from .boxes import can_be

__all__ = [
    "DTYPES",
    "METADATA",
    "HeadError",
    "StoredTensor",
    "has_form",
    "head_bytes",
    "head_length",
    "kept_in",
    "storable",
    "written_as",
]

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "C64": torch.complex64,
}  # fmt: skip
_OTHERS: Mapping[torch.dtype, tuple[torch.dtype, tuple[int, ...]]] = {
    torch.complex128: (torch.float64, (2,)), torch.complex32: (torch.float16, (2,)),
    torch.float4_e2m1fn_x2: (torch.uint8, ()), torch.bits8: (torch.uint8, ()), torch.bits1x8: (torch.uint8, ()),
    torch.bits2x4: (torch.uint8, ()), torch.bits4x2: (torch.uint8, ()), torch.bits16: (torch.uint16, ()),
}  # fmt: skip
"""Dtypes that safetensors has no word for, and numbers of which sort and shape the bytes of an element are."""
METADATA = "__metadata__"
"""What is no tensor in a head, so that no tensor can have this name there."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LINE = 64
"""Bytes that a processor takes from its memory at once; torch's tensors begin at a multiple of it."""
_MOST = 100_000_000
"""The longest head that safetensors allows."""


class HeadError(ValueError):
    """A head that says what cannot be."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its dtype and shape, and where its bytes begin in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * self.dtype.itemsize


def storable(dtype: torch.dtype) -> bool:
    """Whether safetensors has a word for a dtype.

    >>> storable(torch.bfloat16), storable(torch.complex128)
    (True, False)
    """
    return dtype in _NAMES


def has_form(dtype: torch.dtype) -> bool:
    """Whether files beside an index, which says the dtype, have a form for it.

    >>> has_form(torch.complex128), has_form(torch.qint8)
    (True, False)
    """
    return dtype in _NAMES or dtype in _OTHERS


def written_as(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[torch.dtype, tuple[int, ...]]:
    """What a head says of a tensor: its dtype and shape, or those of the numbers that its bytes are to who has no word for it.

    >>> written_as(torch.complex128, (3,)), written_as(torch.int8, (3,))
    ((torch.float64, (3, 2)), (torch.int8, (3,)))
    """
    other, more = _OTHERS.get(dtype, (dtype, ()))
    return other, (*shape, *more)


def head_bytes(tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]]) -> tuple[bytes, dict[str, StoredTensor]]:
    """The head of a file of these tensors, and where each lies: first those that fill lines of the processor, then the widest dtypes.

    So all begin at a multiple of their itemsize, and large ones at the beginning of a line, as they do in memory: a system
    copies bytes a third faster that lie alike in both.

    >>> head, kept = head_bytes([("x", torch.int8, (3,)), ("y", torch.float64, (2,)), ("z", torch.float32, (4, 16))])
    >>> len(head) % 64, {key: place.start - len(head) for key, place in kept.items()}
    (0, {'z': 0, 'y': 256, 'x': 272})
    """
    entries: dict[str, object] = {METADATA: {"format": "pt"}}
    placed: dict[str, StoredTensor] = {}
    at = 0
    for key, each in sorted(((key, StoredTensor(dtype, shape, 0)) for key, dtype, shape in tensors), key=_order):
        kept = placed[key] = replace(each, start=at)
        entries[key] = {"dtype": _NAMES[kept.dtype], "shape": kept.shape, "data_offsets": [at, at + kept.nbytes]}
        at += kept.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _LINE)
    head = len(text).to_bytes(8, "little") + text
    return head, {key: replace(kept, start=kept.start + len(head)) for key, kept in placed.items()}


def _order(item: tuple[str, StoredTensor]) -> tuple[bool, int]:
    """Whether a tensor leaves the last line unfilled; the widest first."""
    _, kept = item
    return kept.nbytes % _LINE != 0, -kept.dtype.itemsize


def kept_in(head: bytes, size: int) -> dict[str, StoredTensor]:
    """What a file of so many bytes holds, as its head says; a head that says what cannot be is refused.

    >>> head, kept = head_bytes([("x", torch.int8, (3,))])
    >>> kept_in(head, len(head) + 3) == kept
    True
    """
    try:
        entries = json.loads(head[8:], object_pairs_hook=_unique)
    except HeadError:
        raise
    except (ValueError, RecursionError) as error:
        raise HeadError(f"its head is no JSON ({error})") from error
    if not isinstance(entries, dict):
        raise HeadError("its head is no JSON object")
    entries.pop(METADATA, None)
    found = {key: _kept(key, entry, len(head)) for key, entry in entries.items()}
    at = len(head)
    for key, kept in sorted(found.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if kept.start != at:
            raise HeadError(f"{key!r} begins at byte {kept.start}, but what is before it ends at {at}")
        at += kept.nbytes
    if at != size:
        raise HeadError(f"its tensors end at byte {at}, but it has {size}")
    return found


def head_length(first: bytes, size: int) -> int:
    """How many bytes the head of a file has, of which these are the first eight."""
    length = int.from_bytes(first, "little") + 8
    if len(first) < 8 or length > min(size, _MOST):
        raise HeadError(f"its first bytes say that its head has {length} bytes, but it has {size}")
    return length


def _kept(key: str, entry: object, data: int) -> StoredTensor:
    match entry:
        case {"dtype": str(name), "shape": list(shape), "data_offsets": [int(start), int(stop)]} if name in DTYPES:
            pass
        case {"dtype": str(name)} if name not in DTYPES:
            raise HeadError(f"{key!r} is of the dtype {shortened(name)}, which is not read here")
        case _:
            raise HeadError(f"what it says of {key!r} is no dtype, shape and place: {shortened(entry)}")
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
        raise HeadError(f"{key!r} has a size below 0: {shortened(entry)}")
    if not can_be(shape):
        raise HeadError(f"{key!r} has the shape {shortened(shape)}, which no tensor can have")
    kept = StoredTensor(DTYPES[name], tuple(shape), start + data)
    if stop - start != kept.nbytes:
        raise HeadError(f"{key!r} has {kept.nbytes} bytes by its shape, but {stop - start} by its place")
    return kept


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise HeadError(f"its head names {key!r} twice")
        found[key] = value
    return found
