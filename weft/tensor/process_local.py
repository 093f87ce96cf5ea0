"""`from_process_local`: a tensor of which each process brings the part that its own devices hold."""

from __future__ import annotations

from collections.abc import Sequence

from ..runtime.machine import residence
from ..runtime.processes import world
from ..runtime.processes.agreement.own_faults import of_one_process
from ..runtime.processes.agreement.values import gathered
from ..sharding.geometry import Box, box, box_text
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from .conversion import TensorLike, as_tensor
from .creation import from_local
from .tensor import Tensor

__all__ = ["from_process_local", "process_box"]

Pieces = tuple[int, int]
"""Which pieces of a dim a process holds: the first, and how many."""


def from_process_local(tensor: TensorLike, mapping: DeviceMapping, *, shape: Sequence[int] | None = None) -> Tensor:
    """The tensor whose part that lies on this process's devices is `tensor`: every process brings its own.

    `shape` is that of the whole; without it, processes tell each other the sizes of their parts. In one process, the part
    is the whole.

    >>> import torch, weft
    >>> mapping = weft.NamedMapping(weft.make_mesh({"dp": 4}), weft.P("dp"))
    >>> weft.from_process_local(torch.arange(8), mapping).local_shards[1]
    tensor([2, 3])
    """
    with of_one_process():
        part = as_tensor(tensor, "from_process_local")
        if not isinstance(mapping, DeviceMapping):
            raise TypeError(f"from_process_local takes a mapping, but got {mapping!r}: use NamedMapping(mesh, P('dp'))")
        layout = mapping.layout(part.dim())
        if layout.pending:
            raise ValueError(
                f"from_process_local puts parts of one value together, but {mapping!r} leaves a reduction pending: "
                "use from_local, with what each device contributes"
            )
        pieces = _pieces(layout)
        whole = tuple(shape) if shape is not None else _whole_shape(tuple(part.shape), pieces)
        held = process_box(layout, whole)
        if held is None:
            return from_local([], mapping, shape=whole, dtype=part.dtype)
        expected = tuple(high - low for low, high in held)
        if expected != tuple(part.shape):
            raise ValueError(
                f"from_process_local: the devices of process {world.current().process} hold {box_text(held)} of a tensor of shape "
                f"{whole} in the layout {layout}, a part of shape {expected}, but it brings one of shape {tuple(part.shape)}"
            )
        shards = [part[_within(box(layout, whole, slot), held)] for slot in residence(layout.mesh).owned]
        return from_local(shards, mapping, shape=whole, dtype=part.dtype)


def process_box(layout: Layout, shape: Sequence[int]) -> Box | None:
    """The box that the devices of this process hold together; None if it owns no device of the mesh.

    >>> from weft.sharding import make_mesh
    >>> process_box(Layout(make_mesh({"dp": 4}), (("dp",),)), (8,))
    ((0, 8),)
    """
    boxes = [box(layout, shape, slot) for slot in residence(layout.mesh).owned]
    if not boxes:
        return None
    return tuple((min(low for low, _ in each), max(high for _, high in each)) for each in zip(*boxes, strict=True))


def _pieces(layout: Layout) -> list[Pieces] | None:
    """Which pieces of each dim this process holds; raises unless these make up one box."""
    counts = [layout.split_count(dim) for dim in range(layout.rank)]
    held = process_box(layout, counts)
    if held is None:
        return None
    owned = {box(layout, counts, slot) for slot in residence(layout.mesh).owned}
    sizes = [high - low for low, high in held]
    whole = 1
    for size in sizes:
        whole *= size
    if len(owned) != whole:
        raise ValueError(
            f"the devices of process {world.current().process} hold {len(owned)} parts in the layout {layout} on {layout.mesh} that "
            "are no box together: use from_local, with one shard for each device"
        )
    return [(low, high - low) for low, high in held]


def _whole_shape(part: tuple[int, ...], pieces: list[Pieces] | None) -> tuple[int, ...]:
    """The shape that the parts of all processes make up."""
    if world.current().count == 1:
        return part
    told = gathered((part, pieces), "from_process_local")
    shapes = ", ".join(str(tuple(theirs)) for theirs, _ in told)
    sizes = []
    for dim in range(len(part)):
        found: dict[int, tuple[int, int]] = {}
        for theirs, held in told:
            if held is None:
                continue
            if len(theirs) != len(part):
                raise ValueError(f"from_process_local: processes bring parts of different ranks, {shapes}")
            first, count = held[dim]
            if found.setdefault(first, (count, theirs[dim])) != (count, theirs[dim]):
                raise ValueError(
                    f"from_process_local: processes bring different sizes of dim {dim} where they hold the same of it; their parts "
                    f"are {shapes}: bring parts of one shape, or pad them"
                )
        sizes.append(sum(size for _, size in found.values()))
    return tuple(sizes)


def _within(inner: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(inner, outer, strict=True))
