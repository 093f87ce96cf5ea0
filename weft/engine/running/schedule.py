"""Where an op runs and what it reads there, worked out once for all calls with such inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import final

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

__all__ = ["OpSchedule", "Place", "Read", "of_rank", "schedule_for"]

Lying = tuple[Layout, tuple[int, ...] | None]
"""How a tensor lies, and its shape; None for what is no tensor."""
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


@final
class OpSchedule:
    """All runs of the op in this process, and the whole results."""

    def __init__(
        self, outputs: tuple[Layout, ...], specs: tuple[Spec | None, ...], places: Callable[[], tuple[Place, ...]]
    ) -> None:
        self.outputs, self._places = outputs, places
        self.specs = specs
        """The whole outputs; None where the op gives none."""
        self.strided = tuple(
            None if spec is None or spec.strides is None else Strided(layout, spec.shape, spec.strides)
            for layout, spec in zip(outputs, specs, strict=True)
        )
        """How the outputs lie; None for what is no tensor."""

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The runs; worked out when they are asked for: an op that runs once, on whole values, has no need of them."""
        return self._places()

    @property
    def has_elements(self) -> bool:
        """Whether some run reads something of every input."""
        return any(all(0 not in region.shape for region in place.inputs) for place in self.places)


def schedule_for(
    call: BoundCall, inputs: Sequence[Layout], outputs: tuple[Layout, ...] | None, mesh: DeviceMesh
) -> OpSchedule:
    """Where an op runs. `outputs`: None for replicated ones."""
    shapes, specs = [tuple(x.shape) for x in call.tensors], whole_results(call)
    if outputs is None:
        outputs = tuple(Layout.replicated(mesh, 0 if spec is None else spec.ndim) for spec in specs)
    else:
        outputs = tuple(
            layout if spec is None else of_rank(layout, spec.ndim, mesh)
            for layout, spec in zip(outputs, specs, strict=True)
        )
    given = list(zip(inputs, shapes, strict=True))
    made = [(layout, None if spec is None else spec.shape) for layout, spec in zip(outputs, specs, strict=True)]
    return OpSchedule(outputs, specs, partial(_places, given, made, mesh))


def _places(given: Sequence[Lying], made: Sequence[Lying], mesh: DeviceMesh) -> tuple[Place, ...]:
    """One run for all spots that read the same and make the same."""
    memory, layouts = memory_on(mesh), [layout for layout, _ in (*given, *made)]
    spots = memory.spots(mesh, layouts)
    narrowed = {layout: _narrowed(layout, spots.axes) for layout in layouts}
    inputs, outputs = (
        [(holding(layout).piece_of, narrowed[layout], shape) for layout, shape in side] for side in (given, made)
    )
    places: dict[tuple[object, ...], Place] = {}
    for coords, slot in spots.places:
        reads = tuple([(of[slot], memory.part(layout, shape or (), coords)) for of, layout, shape in inputs])
        makes = tuple([of[slot] for of, _, _ in outputs])
        key = (tuple([(piece, str(part)) for piece, part in reads]), makes)
        if key not in places:
            read = tuple([_region(layout, shape, coords) for _, layout, shape in inputs])
            wrote = tuple([_region(layout, shape, coords) for _, layout, shape in outputs])
            parts = tuple([memory.part(layout, shape, coords) if shape else None for _, layout, shape in outputs])
            places[key] = Place(reads, makes, tuple([region.shape for region in wrote]), read, wrote, parts)
    return tuple(places.values())


def _region(layout: Layout, shape: tuple[int, ...] | None, coords: tuple[int, ...]) -> Region:
    return Region((), ()) if shape is None else Region(box_at(layout, shape, coords), shape)


def _narrowed(layout: Layout, axes: frozenset[str]) -> Layout:
    """The layout with only the splits that separate one run from another."""
    return Layout(layout.mesh, [tuple(axis for axis in names if axis in axes) for names in layout.splits])


def of_rank(layout: Layout | None, rank: int, mesh: DeviceMesh) -> Layout:
    """A layout, or the replicated one for results that a rule knows nothing of, such as the state of a generator."""
    return layout if layout is not None and layout.rank == rank else Layout.replicated(mesh, rank)
