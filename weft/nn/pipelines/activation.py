"""`Activation`: what goes from stage to stage, without its values; and where a process that has no part of it stands for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, final

import torch

from ...engine.moves.movement import layout_of, move
from ...engine.sharded import wrap
from ...sharding.dtype import DType
from ...sharding.layout import Layout, Splits
from ...sharding.mesh import DeviceMesh
from ...tensor.tensor import Tensor, public

__all__ = ["Activation", "StageOutputs", "absent", "settled"]


@final
@dataclass(frozen=True, slots=True)
class Activation:
    """One tensor that a stage gives: its shape, dtype, how it is split, and whether a gradient comes back for it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    splits: Splits
    requires_grad: bool

    @classmethod
    def of(cls, x: Tensor) -> Activation:
        """That of a tensor in which nothing is pending."""
        return cls(tuple(x.shape), x.dtype, x._layout.resolved.splits, x.requires_grad)

    def layout(self, mesh: DeviceMesh) -> Layout:
        """The layout on a mesh: split as it is, along the axes that the mesh has."""
        names = set(mesh.axis_names)
        return Layout(mesh, [[axis for axis in axes if axis in names] for axes in self.splits])

    def absent(self, mesh: DeviceMesh) -> Tensor:
        """What stands for it in a process without a device of the mesh."""
        return absent(self.layout(mesh), self.shape, self.dtype)

    def to_json(self) -> dict[str, object]:
        """In words that JSON has."""
        return {
            "shape": list(self.shape),
            "dtype": DType.of(self.dtype).name,
            "splits": [list(axes) for axes in self.splits],
            "requires_grad": self.requires_grad,
        }

    @classmethod
    def from_json(cls, words: object) -> Activation:
        """What another process wrote down."""
        found = cast("dict[str, object]", words)
        splits = cast("list[list[str]]", found["splits"])
        return cls(
            tuple(cast("list[int]", found["shape"])),
            getattr(torch, str(found["dtype"])),
            tuple(map(tuple, splits)),
            bool(found["requires_grad"]),
        )

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)} split by {self.splits}"


@final
@dataclass(frozen=True, slots=True)
class StageOutputs:
    """All that a stage gives: one tensor, or a tuple of several."""

    tensors: tuple[Activation, ...]
    is_tuple: bool

    def to_json(self) -> dict[str, object]:
        """In words that JSON has."""
        return {"tensors": [each.to_json() for each in self.tensors], "is_tuple": self.is_tuple}

    @classmethod
    def from_json(cls, words: object) -> StageOutputs:
        """What another process wrote down."""
        found = cast("dict[str, object]", words)
        tensors = cast("list[object]", found["tensors"])
        return cls(tuple(map(Activation.from_json, tensors)), bool(found["is_tuple"]))

    def __str__(self) -> str:
        return ", ".join(map(str, self.tensors))


def absent(layout: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor on a mesh of which this process owns no device."""
    return public(wrap((), layout, shape, dtype=dtype))


def settled(x: torch.Tensor, mesh: DeviceMesh, op: str) -> Tensor:
    """A tensor on a mesh with nothing pending; a plain one is whole on every device."""
    layout = layout_of(x)
    target = Layout.replicated(mesh, x.dim()) if layout is None else layout.resolved
    return public(x if layout is target else move(x, target, op=op))
