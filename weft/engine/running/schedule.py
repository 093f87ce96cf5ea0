"""Where an op runs and what it reads there, worked out once for all calls with such inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...rules.call import BoundCall
from ...rules.registry import Region, Spec
from ...runtime.holding import holding
from ...sharding.geometry import box_at
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ..memory import memory_on
from ..memory.memory import Part
from ..strides.result_strides import Strided
from ..strides.whole_results import whole_results

__all__ = ["Place", "Read", "Schedule", "of_rank", "schedule_for"]

Read = tuple[int, Part | None]
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
    parts: tuple[Part | None, ...]
    """Which part of its piece each output is, where other runs make the rest of it; else None."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """All runs of the op in this process, and the whole results."""

    places: tuple[Place, ...]
    outputs: tuple[Layout, ...]
    specs: tuple[Spec | None, ...]
    """The whole outputs; None where the op gives none."""
    strided: tuple[Strided | None, ...]
    """How the outputs lie; None for what is no tensor."""

    @property
    def has_elements(self) -> bool:
        """Whether some run reads something of every input."""
        return any(all(0 not in region.shape for region in place.inputs) for place in self.places)


def schedule_for(
    call: BoundCall, inputs: Sequence[Layout], outputs: tuple[Layout, ...] | None, mesh: DeviceMesh
) -> Schedule:
    """Where an op runs: once for all spots that read the same and make the same. `outputs`: None for replicated ones."""
    shapes, specs = [tuple(x.shape) for x in call.tensors], whole_results(call)
    if outputs is None:
        outputs = tuple(Layout.replicated(mesh, 0 if spec is None else spec.ndim) for spec in specs)
    else:
        outputs = tuple(
            layout if spec is None else of_rank(layout, spec.ndim, mesh)
            for layout, spec in zip(outputs, specs, strict=True)
        )
    layouts = [*inputs, *outputs]
    memory = memory_on(mesh)
    spots = memory.spots(mesh, layouts)
    narrowed = {layout: _narrowed(layout, spots.axes) for layout in layouts}
    places: dict[tuple[object, ...], Place] = {}
    for coords, slot in spots.places:
        reads = tuple(
            (holding(layout).piece_of[slot], memory.part(narrowed[layout], shape, coords))
            for layout, shape in zip(inputs, shapes, strict=True)
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
            memory.part(narrowed[layout], region.whole, coords) if region.whole else None
            for layout, region in zip(outputs, made, strict=True)
        )
        key = (tuple((piece, str(part)) for piece, part in reads), makes)
        places.setdefault(key, Place(reads, makes, tuple(region.shape for region in made), given, made, parts))
    strided = tuple(
        None if spec is None or spec.strides is None else Strided(layout, spec.shape, spec.strides)
        for layout, spec in zip(outputs, specs, strict=True)
    )
    return Schedule(tuple(places.values()), outputs, specs, strided)


def _narrowed(layout: Layout, axes: frozenset[str]) -> Layout:
    """The layout with only the splits that separate one run from another."""
    return Layout(layout.mesh, [tuple(axis for axis in names if axis in axes) for names in layout.splits])


def of_rank(layout: Layout | None, rank: int, mesh: DeviceMesh) -> Layout:
    """A layout, or the replicated one for results that a rule knows nothing of, such as the state of a generator."""
    return layout if layout is not None and layout.rank == rank else Layout.replicated(mesh, rank)
