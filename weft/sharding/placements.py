"""Placements: what one mesh axis does to a tensor."""

from __future__ import annotations

from enum import StrEnum
from typing import final

from ..errors import ConversionError
from ..frozen import Frozen, Written

__all__ = ["Partial", "Placement", "ReduceOp", "Replicated", "Sharded"]


class ReduceOp(StrEnum):
    """Reduction operations for partial placements; each is its name.

    >>> ReduceOp("mean") is ReduceOp.AVG, ReduceOp.SUM == "sum"
    (True, True)
    """

    SUM = "sum"
    AVG = "avg"
    MEAN = "avg"
    MIN = "min"
    MAX = "max"
    PROD = "prod"

    @classmethod
    def _missing_(cls, value: object) -> ReduceOp | None:
        return cls.AVG if value == "mean" else None

    @classmethod
    def of(cls, kind: ReduceOp | str) -> ReduceOp:
        """The reduction of that name.

        >>> ReduceOp.of("max")
        ReduceOp.MAX
        """
        if isinstance(kind, ReduceOp):
            return kind
        if isinstance(kind, str):
            try:
                return cls(kind.lower())
            except ValueError:
                pass
        raise ValueError(f"unknown reduction {kind!r}: use one of 'sum', 'mean' (or 'avg'), 'max', 'min', 'prod'")

    def __repr__(self) -> str:
        return f"ReduceOp.{self.name}"

    def __str__(self) -> str:
        return "mean" if self is ReduceOp.AVG else str(self.value)


Written.words["ReduceOp"] = ReduceOp


class Placement(Frozen):
    """Abstract base for all placement types.

    >>> isinstance(Replicated(), Placement)
    True
    """

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        if type(self) is Placement:
            raise TypeError("Placement is abstract: use Replicated(), Sharded(axis) or Partial(reduce_op)")


@final
class Replicated(Placement):
    """Every device on this mesh axis holds the same copy of the data.

    >>> Replicated(), Replicated() is Replicated()
    (Replicated(), True)
    """

    __slots__ = ()

    def __new__(cls) -> Replicated:
        return _replicated or super().__new__(cls)


_replicated: Replicated | None = None
_replicated = Replicated()


@final
class Sharded(Placement):
    """Every device on this mesh axis holds a slice along `axis`, a dim of the tensor (negative counts from the end).

    >>> Sharded(0)
    Sharded(0)
    """

    __slots__ = ("axis",)
    __match_args__ = ("axis",)

    axis: int

    def __init__(self, axis: int) -> None:
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"Sharded takes the tensor dim to split, a whole number, but got {axis!r}: use Sharded(0)")
        self._set(axis=axis)

    def dim(self, rank: int, mesh_axis: str | int) -> int:
        """The dim that is split of a tensor of this rank, counted from the front; the mesh axis is for the error.

        >>> Sharded(-1).dim(3, "tp")
        2
        """
        if not -rank <= self.axis < rank:
            fix = f"use a dim from {-rank} to {rank - 1}" if rank else "a scalar cannot be split, use Replicated()"
            raise ConversionError(
                f"{self!r} on mesh axis {mesh_axis!r} is out of range for a tensor of rank {rank}: {fix}"
            )
        return self.axis % rank


@final
class Partial(Placement):
    """Every device holds a partial result that must be reduced.

    >>> Partial(), Partial("max")
    (Partial(ReduceOp.SUM), Partial(ReduceOp.MAX))
    """

    __slots__ = ("reduce_op",)
    __match_args__ = ("reduce_op",)

    reduce_op: ReduceOp

    def __init__(self, reduce_op: ReduceOp | str = ReduceOp.SUM) -> None:
        self._set(reduce_op=ReduceOp.of(reduce_op))
