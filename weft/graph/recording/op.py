"""`Op`: one kind of thing that a graph can do, and `RecordedCall`: one time it is done."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, final

import torch

from .types import TensorType

__all__ = [
    "CHAINED",
    "CONSTANT",
    "PART",
    "REBIND",
    "RESHAPE",
    "SIZE",
    "SIZES",
    "Argument",
    "Kernel",
    "Kind",
    "Op",
    "RecordedCall",
]

Kernel: TypeAlias = Callable[..., object]
"""A function of plain torch tensors, numbers and dtypes that gives plain torch tensors."""

Argument: TypeAlias = object
"""What an op is called with: values, dims, numbers, dtypes, devices, and tuples of them."""


class Kind(Enum):
    """What an op does to memory and to the world.

    >>> Kind.COLLECTIVE in CHAINED, Kind.COMPUTE in CHAINED
    (True, False)
    """

    COMPUTE = "compute"  # new memory from old
    VIEW = "view"  # a new look at the same memory
    CONSTANT = "constant"  # a value known before the run
    MOVEMENT = "movement"  # the same value on another device
    COLLECTIVE = "collective"  # several devices together
    BUFFER = "buffer"  # reads or writes memory that can change


CHAINED = frozenset({Kind.MOVEMENT, Kind.COLLECTIVE, Kind.BUFFER})
"""The kinds whose order a device must keep."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One kind of operation: its name, what it does, and the torch function that does it on one device.

    What moves data or writes it (`CHAINED`) has a rule in place of a kernel: `kernel(emitter, *arguments)` writes the
    op in plain torch calls, since these depend on which devices share memory.

    >>> import torch
    >>> Op("exp", torch.exp).kind
    <Kind.COMPUTE: 'compute'>
    """

    name: str
    kernel: Kernel
    kind: Kind = Kind.COMPUTE
    pure: bool = True
    """Whether the same arguments always give the same result."""
    opaque: bool = False
    """Whether torch is asked for the gradient when the graph runs, since a trace cannot tell it."""

    def __repr__(self) -> str:
        return f"<op {self.name}>"


@final
@dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """One use of an op, as it was written: the arguments as symbolic values, and what comes out."""

    op: Op
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument] = field(default_factory=dict)
    types: tuple[TensorType, ...] = ()
    many: bool = False
    """Whether the kernel gives a tuple, even of one."""
    where: str = ""
    """The user's file and line."""


def _same(data: object) -> object:
    return data


PART = Op("part", operator.getitem, Kind.VIEW)
"""One result of an op that gives several."""

CONSTANT = Op("constant", _same, Kind.CONSTANT)
"""A tensor that is known before the run, and moved to its device when the model is loaded."""

REBIND = Op("rebind", _same, Kind.VIEW)
"""The same value, its dims called otherwise."""

RESHAPE = Op("reshape", torch.reshape, Kind.VIEW)
"""The same elements in another shape."""


def _as_tensor(sizes: int | tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(sizes, dtype=torch.int64, device=device)


SIZES = Op("shape_to_tensor", _as_tensor)
"""A shape as a tensor of whole numbers."""

SIZE = Op("dim_to_tensor", _as_tensor)
"""One size as a tensor of rank 0."""
