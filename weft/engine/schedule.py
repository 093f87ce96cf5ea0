"""Where an op runs and what it reads there, worked out once for all calls with such inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from ..rules.registry import Region, Spec
from ..runtime.holding import holding, slices
from ..sharding.geometry import box_at
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .strides.result_strides import ResultStrides

__all__ = ["Place", "Read", "Schedule", "scheduled"]

Read = tuple[int, tuple[slice, ...] | None]
"""Which piece of an input an op reads at a place, and which part of it (None: all)."""


@dataclass(frozen=True, slots=True)
class Place:
    """One run of the op: what it reads of each input, and which piece of each output it makes."""

    reads: tuple[Read, ...]
    makes: tuple[int, ...]
    out_shapes: tuple[tuple[int, ...], ...]
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]
    """Which part of the whole each input and output is there."""
    parts: tuple[tuple[slice, ...] | None, ...]
    """Which part of its piece each output is, where other runs make the rest of it; else None."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """All runs of the op in this process, and the whole results."""

    places: tuple[Place, ...]
    outputs: tuple[Layout, ...]
    specs: tuple[Spec | None, ...]
    """The whole outputs; None where the op gives none."""
    strides: ResultStrides
    """Those of the outputs, for inputs of any."""


def scheduled(
    inputs: Sequence[Layout],
    shapes: Sequence[tuple[int, ...]],
    outputs: tuple[Layout, ...] | None,
    specs: Sequence[Spec | None],
    mesh: DeviceMesh,
) -> Schedule:
    """One memory: one run per coordinate of the pending axes. Else: one run per distinct shard that this process owns."""
    if outputs is None:
        outputs = tuple(Layout.replicated(mesh, 0 if spec is None else spec.ndim) for spec in specs)
    layouts = [*inputs, *outputs]
    where = holding(Layout.replicated(mesh, 0))
    if where.unified:
        axes = {axis for layout in layouts for axis in layout.pending_axes}
        ranges = [
            range(n) if axis in axes else range(1) for axis, n in zip(mesh.axis_names, mesh.mesh_shape, strict=True)
        ]
        spots = [(coords, mesh.slot(coords)) for coords in product(*ranges)]
    else:
        axes = set(mesh.axis_names)
        spots = [(mesh.coords(slot), slot) for slot in where.residence.owned]
    narrowed = {layout: _narrowed(layout, axes) for layout in layouts}
    places: dict[tuple[object, ...], Place] = {}
    for coords, slot in spots:
        reads = tuple(
            _read(layout, narrowed[layout], shape, coords, slot) for layout, shape in zip(inputs, shapes, strict=True)
        )
        makes = tuple(holding(layout).piece_of[slot] for layout in outputs)
        given = tuple(
            Region(box_at(narrowed[layout], shape, coords), shape) for layout, shape in zip(inputs, shapes, strict=True)
        )
        made = tuple(
            Region((), ()) if spec is None else Region(box_at(narrowed[layout], spec.shape, coords), spec.shape)
            for layout, spec in zip(outputs, specs, strict=True)
        )
        parts = tuple(
            slices(region.box) if where.unified and narrowed[layout].split_axes else None
            for layout, region in zip(outputs, made, strict=True)
        )
        key = (tuple((piece, str(part)) for piece, part in reads), makes)
        places.setdefault(key, Place(reads, makes, tuple(region.shape for region in made), given, made, parts))
    return Schedule(tuple(places.values()), outputs, tuple(specs), ResultStrides(outputs))


def _narrowed(layout: Layout, axes: set[str]) -> Layout:
    """The layout with only the splits that separate one run from another."""
    return Layout(layout.mesh, [tuple(axis for axis in names if axis in axes) for names in layout.splits])


def _read(layout: Layout, narrowed: Layout, shape: tuple[int, ...], coords: tuple[int, ...], slot: int) -> Read:
    here = holding(layout)
    piece = here.piece_of[slot]
    if not here.unified or not narrowed.split_axes:
        return piece, None
    return piece, slices(box_at(narrowed, shape, coords))
