"""`Wanted`: what a new tensor is to be, as mappings say or as the one that is written to already is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping, NamedMapping
from .leaves import Leaf

__all__ = ["GivenMappings", "Wanted", "wanted_tensor"]


@final
@dataclass(frozen=True, slots=True)
class Wanted:
    """What a new tensor is to be."""

    layout: Layout
    mapping: DeviceMapping | None
    dtype: torch.dtype


@final
class GivenMappings:
    """Which mapping the new tensor of a name gets; a scalar is the same everywhere."""

    def __init__(self, mappings: Callable[[str], DeviceMapping]) -> None:
        if not callable(mappings):
            raise TypeError(
                f"mappings are one mapping, a dict of name patterns, or a function of a name, but got {mappings!r}: "
                "use NamedMapping(mesh, P(...))"
            )
        self._mappings = mappings

    def __call__(self, name: str, shape: tuple[int, ...]) -> DeviceMapping:
        mapping = self._mappings(name)
        if not isinstance(mapping, DeviceMapping):
            raise TypeError(f"{name!r} needs a mapping, but got {mapping!r}: use NamedMapping(mesh, P(...))")
        return mapping if shape else NamedMapping(mapping.mesh, ())


def wanted_tensor(
    name: str,
    shape: tuple[int, ...],
    old: torch.dtype,
    dtype: torch.dtype | None,
    given: GivenMappings | None,
    into: Leaf | None,
) -> Wanted:
    """What a new tensor is to be, of which what it is made of has the dtype `old`."""
    if into is not None:
        return _existing(name, shape, old, dtype, given, into)
    assert given is not None
    mapping = given(name, shape)
    try:
        layout = mapping.layout(len(shape))
    except ValueError as error:
        raise ValueError(f"the mapping of {name!r} does not fit its shape {shape}: {error}") from error
    return Wanted(layout, mapping, dtype if dtype is not None and old.is_floating_point else old)


def _existing(
    name: str,
    shape: tuple[int, ...],
    old: torch.dtype,
    dtype: torch.dtype | None,
    given: GivenMappings | None,
    into: Leaf,
) -> Wanted:
    """A tensor that is there is written to as it is."""
    layout = into.layout
    if layout is None:
        raise TypeError(
            f"only sharded tensors are written to, but {name!r} of into is a plain one: weft.shard it first"
        )
    if into.shape != shape:
        raise ValueError(f"{name!r} has the shape {shape}, but into has {into.shape} there: give one of that shape")
    if into.dtype is not old and not (into.dtype.is_floating_point and old.is_floating_point):
        raise TypeError(
            f"{name!r} is {old}, but into has {into.dtype} there, and only floating-point dtypes are cast: give one of that dtype"
        )
    if dtype is not None and old.is_floating_point and into.dtype is not dtype:
        raise TypeError(f"{dtype} was asked for, but {name!r} of into is {into.dtype}: leave dtype out")
    if given is not None and given(name, shape).layout(len(shape)) is not layout:
        raise ValueError(f"another layout was given for {name!r} than into has, {layout}: leave mappings out")
    return Wanted(layout, None, into.dtype)
