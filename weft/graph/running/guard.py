"""`Guard`: what a model is given must be what the graph was written for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, SupportsFloat, TypeAlias, final

import torch
from torch.utils.dlpack import from_dlpack

from ...engine.moves.movement import from_plain, moved
from ...engine.views.copy_views import current, refresh
from ...runtime.holding import holding
from ...runtime.machine import torch_device
from ...sharding.dims import Dim
from ...sharding.layout import Layout
from ...sharding.types import DistributedBufferType
from ...tensor import Tensor
from ...tensor.creation import from_local
from ...tensor.tensor import public
from ..recording.distributed_value import DistributedKind, layout_of
from ..recording.sizes import value_of
from ..recording.types import BufferType, TensorType, torch_dtype
from ..recording.values import DLPackArray, GraphValue

if TYPE_CHECKING:
    from ..recording.graph import Graph

__all__ = ["Guard", "ModelInput"]

ModelInput: TypeAlias = torch.Tensor | DLPackArray | SupportsFloat | Sequence[torch.Tensor]
"""What a model can be given: tensors, arrays that speak DLPack, numbers for rank 0, shards for a value on a mesh."""

_KEPT_SHAPES = 1024


class _Expected:
    """One input: its name, its type, and how to make plain tensors of what is given for it."""

    __slots__ = ("device", "dtype", "kind", "layout", "what")

    def __init__(self, what: str, kind: TensorType | BufferType | DistributedKind) -> None:
        self.what = what
        self.kind = kind
        self.dtype = torch_dtype(kind.dtype)
        self.layout: Layout | None = None
        self.device: torch.device | None = None
        if isinstance(kind, (TensorType, BufferType)):
            self.device = torch_device(kind.device.to_device())
        else:
            self.layout = layout_of(kind)

    def plain(self, given: ModelInput) -> torch.Tensor:
        """The tensor on one device that something stands for."""
        if isinstance(given, Tensor):
            refresh((given,))
            # A tensor on a mesh stands for its value; only one that lies whole on one device can be written to.
            given = (
                given._value.pieces[0] if given.mesh.is_single and not given._layout.pending else given.full_tensor()
            )
        if isinstance(given, torch.Tensor):
            return given
        if isinstance(given, GraphValue):
            raise TypeError(f"{self.what} is given {given!r}, a value of a graph: give it a tensor")
        if isinstance(given, SupportsFloat) and self.kind.rank == 0 and isinstance(self.kind, TensorType):
            return torch.tensor(given, dtype=self.dtype, device=self.device)
        if isinstance(given, DLPackArray):
            return from_dlpack(given)
        raise TypeError(f"{self.what} needs a tensor {self.kind}, but got {type(given).__name__}: {given!r}")

    def laid_out(self, given: ModelInput) -> Tensor:
        """The tensor on the mesh that something stands for."""
        assert self.layout is not None
        assert not isinstance(self.kind, (TensorType, BufferType))
        writes = isinstance(self.kind, DistributedBufferType)
        if isinstance(given, Tensor) and given.dim() == self.kind.rank:
            refresh((given,))
            if given._layout is self.layout and not (writes and given._value.shown is not None):
                return given
            if not writes:
                return public(moved(given, self.layout, "graph input"))
        if writes:
            raise ValueError(
                f"{self.what} is written to, so it needs a weft.Tensor that lies as {self.kind}, but got {given!r}"
            )
        if isinstance(given, (list, tuple)):
            return from_local(given, self.kind.mapping)
        whole = self.plain(given)
        if whole.dim() != self.kind.rank:
            raise ValueError(
                f"{self.what} needs {self.kind} of rank {self.kind.rank}, but got the shape {tuple(whole.shape)}"
            )
        return public(from_plain(whole, self.layout, brought_to="a graph"))

    def refuse(self, tensor: torch.Tensor) -> None:
        """Say why a tensor does not fit."""
        if tensor.dtype != self.dtype:
            raise ValueError(f"{self.what} needs {self.kind}, but got {tensor.dtype}: cast it with .to({self.dtype})")
        raise ValueError(
            f"{self.what} needs {self.kind}, which is torch's {self.device}, but got a tensor on {tensor.device}: "
            f"move it with .to({str(self.device)!r})"
        )


@final
class Guard:
    """Checks the inputs of a run: how many, of which kind, dtype, device and shape; sizes of one name must agree."""

    __slots__ = ("_accepted", "_expected", "_graph", "_names", "_types")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._types = graph.input_types
        self._names = tuple(value.name for value in graph.inputs)
        self._expected = [
            _Expected(f"{name} of graph {graph.name!r}", kind)
            for name, kind in zip(self._names, self._types, strict=True)
        ]
        self._accepted: dict[tuple[torch.Size, ...], Mapping[str, int]] = {}

    def check(self, inputs: Sequence[ModelInput]) -> tuple[list[torch.Tensor], Mapping[str, int]]:
        """The inputs as plain tensors in one row, and the sizes they say; or an error that names what does not fit."""
        if len(inputs) != len(self._expected):
            raise ValueError(
                f"graph {self._graph.name!r} takes {len(self._expected)} inputs ({', '.join(self._names)}), but got {len(inputs)}"
            )
        tensors: list[torch.Tensor] = []
        shapes: list[torch.Size] = []
        for expected, given in zip(self._expected, inputs, strict=True):
            if expected.layout is None:
                tensor = given if type(given) is torch.Tensor else expected.plain(given)
                if tensor.dtype is not expected.dtype or tensor.device != expected.device:
                    expected.refuse(tensor)
                tensors.append(tensor)
            else:
                tensor = expected.laid_out(given)
                if tensor.dtype is not expected.dtype:
                    expected.refuse(tensor)
                tensors.extend(
                    holding(tensor._layout).shards(current(tensor), tensor.shape)
                    if isinstance(expected.kind, DistributedBufferType)
                    else tensor._value.pieces
                )
            shapes.append(tensor.shape)
        key = tuple(shapes)
        sizes = self._accepted.get(key)
        return tensors, self._sizes(key) if sizes is None else sizes

    def _sizes(self, shapes: tuple[torch.Size, ...]) -> Mapping[str, int]:
        """What the names stand for, after checking that all dims and rules agree with it."""
        sizes: dict[str, int] = {}
        said_by: dict[str, str] = {}
        later: list[tuple[int, int, Dim, int]] = []
        for i, (kind, shape) in enumerate(zip(self._types, shapes, strict=True)):
            what = self._expected[i].what
            if len(shape) != kind.rank:
                raise ValueError(f"{what} needs {kind} of rank {kind.rank}, but got the shape {tuple(shape)}")
            for axis, (dim, size) in enumerate(zip(kind.shape, shape, strict=True)):
                name = str(dim)
                if dim.is_static:
                    if dim != size:
                        raise ValueError(
                            f"{what} needs {kind}, but got the shape {tuple(shape)}: dim {axis} is {size}, not {dim}"
                        )
                elif dim.symbols == {name} and name not in sizes:
                    sizes[name], said_by[name] = size, f"dim {axis} of {self._names[i]}"
                else:
                    later.append((i, axis, dim, size))
        self._check_agreement(sizes, said_by, later)
        if len(self._accepted) >= _KEPT_SHAPES:
            self._accepted.clear()
        self._accepted[shapes] = sizes
        return sizes

    def _check_agreement(
        self, sizes: Mapping[str, int], said_by: Mapping[str, str], later: Sequence[tuple[int, int, Dim, int]]
    ) -> None:
        for i, axis, dim, size in later:
            if value_of(dim, sizes) != size:
                first = "; ".join(f"{name} is {sizes[name]} by {said_by[name]}" for name in sorted(dim.symbols))
                raise ValueError(
                    f"graph {self._graph.name!r}: dim {axis} of {self._names[i]} is {dim}, which should be "
                    f"{value_of(dim, sizes)}, but got {size} ({first})"
                )
        for constraint in self._graph.constraints:
            if not constraint.holds(sizes):
                raise ValueError(f"graph {self._graph.name!r}: {constraint.explained(sizes)}")
