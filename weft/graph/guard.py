"""`Guard`: what a model is given must be what the graph was written for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsFloat, TypeAlias, final

import torch
from torch.utils.dlpack import from_dlpack

from weft.graph.sizes import value_of
from weft.graph.types import BufferType
from weft.graph.values import DLPackArray, Value
from weft.runtime.machine import torch_device
from weft.sharding.dims import Dim

if TYPE_CHECKING:
    from weft.graph.graph import Graph

__all__ = ["Guard", "ModelInput"]

ModelInput: TypeAlias = torch.Tensor | DLPackArray | int | float | bool
"""What a model can be given: torch tensors, arrays that speak DLPack, numbers for tensors of rank 0."""

_KEPT_SHAPES = 1024


@final
class Guard:
    """Checks the inputs of a run: how many, of which kind, dtype, device and shape; sizes of one name must agree."""

    __slots__ = ("_accepted", "_devices", "_dtypes", "_graph", "_names", "_types")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._types = graph.input_types
        self._names = tuple(value.name for value in graph.inputs)
        self._dtypes = tuple(kind.dtype for kind in self._types)
        self._devices = tuple(torch_device(kind.device.to_device()) for kind in self._types)
        self._accepted: set[tuple[torch.Size, ...]] = set()

    def check(self, inputs: Sequence[ModelInput]) -> list[torch.Tensor]:
        """The inputs as torch tensors, or an error that names the one that does not fit."""
        if len(inputs) != len(self._types):
            raise ValueError(
                f"graph {self._graph.name!r} takes {len(self._types)} inputs ({', '.join(self._names)}), but got {len(inputs)}"
            )
        tensors: list[torch.Tensor] = []
        for i, given in enumerate(inputs):
            tensor = given if isinstance(given, torch.Tensor) else self._converted(i, given)
            if tensor.dtype is not self._dtypes[i] or tensor.device != self._devices[i]:
                self._refuse(i, tensor)
            tensors.append(tensor)
        shapes = tuple([tensor.shape for tensor in tensors])
        if shapes not in self._accepted:
            self._check_shapes(shapes)
            if len(self._accepted) >= _KEPT_SHAPES:
                self._accepted.clear()
            self._accepted.add(shapes)
        return tensors

    def _what(self, i: int) -> str:
        return f"{self._names[i]} of graph {self._graph.name!r}"

    def _converted(self, i: int, given: ModelInput) -> torch.Tensor:
        kind = self._types[i]
        if isinstance(given, Value):
            raise TypeError(f"{self._what(i)} is given {given!r}, a value of a graph: give it a tensor")
        if isinstance(given, SupportsFloat) and kind.rank == 0 and not isinstance(kind, BufferType):
            return torch.tensor(given, dtype=kind.dtype, device=self._devices[i])
        if isinstance(given, DLPackArray):
            return from_dlpack(given)
        raise TypeError(f"{self._what(i)} needs a tensor {kind}, but got {type(given).__name__}: {given!r}")

    def _refuse(self, i: int, tensor: torch.Tensor) -> None:
        kind = self._types[i]
        if tensor.dtype != kind.dtype:
            raise ValueError(f"{self._what(i)} needs {kind}, but got {tensor.dtype}: cast it with .to({kind.dtype})")
        raise ValueError(
            f"{self._what(i)} needs {kind}, which is torch's {self._devices[i]}, but got a tensor on {tensor.device}: "
            f"move it with .to({str(self._devices[i])!r})"
        )

    def _check_shapes(self, shapes: tuple[torch.Size, ...]) -> None:
        sizes: dict[str, int] = {}
        said_by: dict[str, str] = {}
        later: list[tuple[int, int, Dim, int]] = []
        for i, (kind, shape) in enumerate(zip(self._types, shapes, strict=True)):
            if len(shape) != kind.rank:
                raise ValueError(f"{self._what(i)} needs {kind} of rank {kind.rank}, but got the shape {tuple(shape)}")
            for axis, (dim, size) in enumerate(zip(kind.shape, shape, strict=True)):
                name = str(dim)
                if dim.is_static:
                    if dim != size:
                        raise ValueError(
                            f"{self._what(i)} needs {kind}, but got the shape {tuple(shape)}: dim {axis} is {size}, not {dim}"
                        )
                elif dim.symbols == {name} and name not in sizes:
                    sizes[name], said_by[name] = size, f"dim {axis} of {self._names[i]}"
                else:
                    later.append((i, axis, dim, size))
        for i, axis, dim, size in later:
            if value_of(dim, sizes) != size:
                first = "; ".join(f"{name} is {sizes[name]} by {said_by[name]}" for name in sorted(dim.symbols))
                raise ValueError(
                    f"graph {self._graph.name!r}: dim {axis} of {self._names[i]} is {dim}, which should be {value_of(dim, sizes)}, "
                    f"but got {size} ({first})"
                )
        for constraint in self._graph.constraints:
            if not constraint.holds(sizes):
                raise ValueError(f"graph {self._graph.name!r}: {constraint.explained(sizes)}")
