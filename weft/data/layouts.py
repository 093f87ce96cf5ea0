"""`Layouts`: how the tensors of a batch lie, which rows of it this process has to load, and how parts become the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

import torch

from ..runtime.machine import residence
from ..runtime.processes import world
from ..sharding.geometry import Interval, box, box_shape
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping, NamedMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.named import P
from ..sharding.placements import Sharded
from ..sharding.spec import entries_of
from ..tensor.creation import of_shards
from ..tensor.process_local import from_process_local, process_box
from .agreeing import agreed
from .describing import described, parts_told, row_count
from .structure import closed, has_tensors, opened

__all__ = ["Layouts", "Spec"]

Spec = object
"""A `P`, an axis name or a mapping for all tensors of a batch, or a dict, tuple, list or dataclass of these like the batch."""


@final
class Layouts:
    """The mapping of each tensor of a batch."""

    def __init__(self, mesh: DeviceMesh, spec: Spec) -> None:
        self._mesh, self._spec = mesh, spec
        self._mappings = list(_mappings(spec, mesh))

    def rows(self, count: int) -> Interval:
        """The rows of a batch of so many that this process loads: from the first to the last that its devices hold."""
        held = [process_box(_rows_layout(mapping), (count,)) for mapping in self._mappings]
        found = [interval for each in held if each is not None for interval in each if interval[0] < interval[1]]
        return (min(low for low, _ in found), max(high for _, high in found)) if found else (0, 0)

    def whole(self, part: object, size: tuple[int, Interval] | None, *, is_local: bool, compares: bool) -> object:
        """The batch of which this process has a part: `size` says of how many rows which; None: all, or its own part.

        `compares`: the values of rows that several processes have are compared.
        """
        if is_local:
            return _mapped(from_process_local, part, self._spec, self._mesh)
        words = described(part, size)
        held = None if size is None else size[1]
        told = agreed(words, part, held, compares=compares) if world.current().count > 1 else words
        count = row_count(part) if size is None else None
        return self._made(part, told, held, self._spec, None if count is None else (count, self.rows(count)))

    def _made(
        self, part: object, told: object, held: Interval | None, spec: Spec, own: tuple[int, Interval] | None
    ) -> object:
        """What was described, made of what is here of it. `own`: of a batch that is here whole, its rows, and which are ours."""
        match told:
            case {"tensor": shape, "dtype": dtype}:
                x = part if isinstance(part, torch.Tensor) else None
                return _placed(x, tuple(shape), getattr(torch, dtype), held, _mapping(spec, self._mesh))
            case {"own": kind}:
                return _own_rows(part, own) if isinstance(part, (list, tuple)) else closed(str(kind), (), ())
        found = parts_told(told)
        if found is None:
            return told
        kind, items = found
        here = opened(part)
        parts = [(name, None) for name, _ in items] if here is None else here.parts
        made = [
            self._made(each, words, held, _spec_of(spec, name, number) if _is_laid(words) else None, own)
            for number, ((name, each), (_, words)) in enumerate(zip(parts, items, strict=True))
        ]
        return closed(kind, [name for name, _ in parts], made, part)


def _own_rows(column: Sequence[object], own: tuple[int, Interval] | None) -> object:
    """What this process has of a list with something for each row; of other lists all."""
    if own is None or len(column) != own[0]:
        return column
    return column[slice(*own[1])]


def _is_laid(told: object) -> bool:
    """Whether there are tensors in what was described, which need a spec."""
    if isinstance(told, dict) and "tensor" in told:
        return True
    found = parts_told(told)
    return found is not None and any(_is_laid(words) for _, words in found[1])


def _placed(
    x: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, held: Interval | None, mapping: DeviceMapping
) -> torch.Tensor:
    """A tensor of which this process has the rows `held`."""
    layout = mapping.layout(len(shape))
    first = 0 if held is None else held[0]
    shards = []
    for slot in residence(layout.mesh).owned:
        where = box(layout, shape, slot)
        if x is None:  # none of the rows are here
            shards.append(torch.empty(box_shape(where), dtype=dtype))
            continue
        rows = [slice(low - first, high - first) for low, high in where[:1]]
        shards.append(x[(*rows, *(slice(*each) for each in where[1:]))])
    return of_shards(shards, mapping, shape=shape, dtype=dtype)


def _rows_layout(mapping: DeviceMapping) -> Layout:
    """How a mapping splits the rows alone."""
    spec = mapping.layout(_rank(mapping))
    return Layout(mapping.mesh, spec.splits[:1] or ((),))


def _rank(mapping: DeviceMapping) -> int:
    """The least rank that a mapping can be for, from 1 on."""
    if isinstance(mapping, NamedMapping):
        return max(1, len(mapping.spec))
    dims = [each.axis for each in mapping.to_placements() if isinstance(each, Sharded)]
    return max((dim + 1 for dim in dims), default=1)


def _is_leaf(spec: Spec) -> bool:
    return isinstance(spec, (P, str, DeviceMapping)) or spec is None


def _mapping(spec: Spec, mesh: DeviceMesh) -> DeviceMapping:
    """The mapping that a spec says."""
    if isinstance(spec, DeviceMapping):
        return spec
    if spec is None or isinstance(spec, (P, str)):
        return NamedMapping(mesh, entries_of(spec))
    raise TypeError(
        f"the spec of a batch's tensor is P('dp'), an axis name or a mapping, but got {spec!r}: "
        "give a dict, tuple or list of specs only where the batch is one"
    )


def _mappings(spec: Spec, mesh: DeviceMesh) -> Iterator[DeviceMapping]:
    """Every mapping that a spec names."""
    if _is_leaf(spec):
        yield _mapping(spec, mesh)
        return
    found = opened(spec)
    if found is None:
        yield _mapping(spec, mesh)
        return
    for _, each in found.parts:
        yield from _mappings(each, mesh)


def _spec_of(spec: Spec, name: object, number: int) -> Spec:
    """The spec of one part of a batch, by its name or its number."""
    if _is_leaf(spec):
        return spec
    found = opened(spec)
    specs = [] if found is None else found.parts
    if found is not None and found.kind in ("tuple", "list", "named tuple") and number < len(specs):
        return specs[number][1]
    if name in dict(specs):
        return dict(specs)[name]
    known = [each for each, _ in specs] if isinstance(spec, Mapping) else f"{len(specs)} specs"
    raise ValueError(f"the batch has a part {name!r}, but there is no spec for it: there are {known}")


def _mapped(
    function: Callable[[torch.Tensor, DeviceMapping], torch.Tensor], part: object, spec: Spec, mesh: DeviceMesh
) -> object:
    """Every tensor of a batch, put through a function with its mapping."""
    if isinstance(part, torch.Tensor):
        return function(part, _mapping(spec, mesh))
    found = opened(part)
    if found is None or not has_tensors(part):
        return part
    made = [
        _mapped(function, each, _spec_of(spec, name, number) if has_tensors(each) else None, mesh)
        for number, (name, each) in enumerate(found.parts)
    ]
    return closed(found.kind, [name for name, _ in found.parts], made, part)
