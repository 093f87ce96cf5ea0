"""`Layouts`: how the tensors of a batch lie, which rows of it this process has to load, and how parts become the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast, final

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
from ..tensor.creation import from_local
from ..tensor.process_local import from_process_local, process_box
from .agreeing import agreed

__all__ = ["Layouts", "Spec"]

Spec = object
"""A `P`, an axis name or a mapping for all tensors of a batch, or a dict, tuple or list of these like the batch."""


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
        words = _described(part, size)
        held = None if size is None else size[1]
        told = agreed(words, part, held, compares=compares) if world.current().count > 1 else words
        return self._made(part, told, held, self._spec)

    def _made(self, part: object, told: object, held: Interval | None, spec: Spec) -> object:
        """What was described, made of what is here of it."""
        match told:
            case {"tensor": shape, "dtype": dtype}:
                x = part if isinstance(part, torch.Tensor) else None
                return _placed(x, tuple(shape), getattr(torch, dtype), held, _mapping(spec, self._mesh))
            case {"dict": items}:
                return {key: self._made(_item(part, key), each, held, _spec_of(spec, key)) for key, each in items}
            case {"list": items}:
                return self._each(part, items, held, spec)
            case {"tuple": items}:
                return tuple(self._each(part, items, held, spec))
        return told

    def _each(self, part: object, items: Sequence[object], held: Interval | None, spec: Spec) -> list[object]:
        return [
            self._made(_item(part, number), each, held, _spec_of(spec, number)) for number, each in enumerate(items)
        ]


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
    return from_local(shards, mapping, shape=shape, dtype=dtype)


def _described(part: object, size: tuple[int, Interval] | None) -> object:
    """A batch in words that JSON has: the whole one, of which this process may have some rows, or none."""
    match part:
        case torch.Tensor():
            return {"tensor": _whole_shape(part, size), "dtype": str(part.dtype).removeprefix("torch.")}
        case Mapping():
            return {"dict": [[key, _described(each, size)] for key, each in part.items()]}
        case tuple() | list():
            kind = "tuple" if isinstance(part, tuple) else "list"
            return {kind: [_described(each, size) for each in part]}
        case None | bool() | int() | float() | str():
            return part
    raise TypeError(
        f"a batch has tensors, numbers and texts, in dicts, tuples and lists, but one has a {type(part).__name__}: "
        "give the loader a collate_fn that makes tensors of it"
    )


def _whole_shape(part: torch.Tensor, size: tuple[int, Interval] | None) -> list[int]:
    """The shape of a tensor of which some rows are here; one without dims is the same for all rows."""
    if size is None or not part.dim():
        return list(part.shape)
    count, (low, high) = size
    if part.shape[0] != high - low:
        raise ValueError(
            f"the first dim of a batch's tensors is the batch, but of {high - low} samples the loader made a tensor of shape "
            f"{tuple(part.shape)}: give it a collate_fn that stacks them along dim 0"
        )
    return [count, *part.shape[1:]]


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
    elif isinstance(spec, Mapping):
        for each in spec.values():
            yield from _mappings(each, mesh)
    elif isinstance(spec, (tuple, list)):
        for each in spec:
            yield from _mappings(each, mesh)
    else:
        yield _mapping(spec, mesh)


def _spec_of(spec: Spec, key: object) -> Spec:
    """The spec of one part of a batch."""
    if _is_leaf(spec):
        return spec
    try:
        return cast("Mapping[object, Spec]", spec)[key]
    except (KeyError, IndexError, TypeError):
        known = list(spec) if isinstance(spec, Mapping) else f"{len(cast('Sequence[Spec]', spec))} specs"
        raise ValueError(f"the batch has a part {key!r}, but there is no spec for it: there are {known}") from None


def _item(part: object, key: object) -> object:
    return None if part is None else cast("Mapping[object, object]", part)[key]


def _mapped(
    function: Callable[[torch.Tensor, DeviceMapping], torch.Tensor], part: object, spec: Spec, mesh: DeviceMesh
) -> object:
    """Every tensor of a batch, put through a function with its mapping."""
    match part:
        case torch.Tensor():
            return function(part, _mapping(spec, mesh))
        case Mapping():
            return {key: _mapped(function, each, _spec_of(spec, key), mesh) for key, each in part.items()}
        case tuple() | list():
            made = [_mapped(function, each, _spec_of(spec, number), mesh) for number, each in enumerate(part)]
            return tuple(made) if isinstance(part, tuple) else made
    return part
