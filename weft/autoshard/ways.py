"""`OpWay`: one way to split an op over the mesh: each axis splits one factor of the op, or none.

    m k, k n -> m n     m over dp, n over tp:  x (dp, –), w (–, tp) -> (dp, tp)
                        gradients:             x (dp, –) sum@tp, w (–, tp) sum@dp

The gradient of an input lies as the input does, and is pending over the axes of factors that the input lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from ..rules.factors import Dims, Factors
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from ..sharding.placements import ReduceOp
from .layouts import is_nearly_even
from .special_ops import SpecialFactors
from .trial import Tried

__all__ = ["OpWay", "ways_of"]

_PENDING = "pending"
"""Stands for a factor: the axis holds contributions to a sum, before and after."""


@dataclass(frozen=True, slots=True)
class OpWay:
    """In which layouts an op takes its inputs, gives its outputs, and gives the gradients of its inputs."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    gradients: tuple[Layout, ...]
    parallel: int
    """Over how many devices its work is split."""
    passed: tuple[str, ...] = ()
    """The axes along which parts are passed from device to device."""
    tried: Tried | None = None
    """What the op did in this way, where it was tried."""

    def found(self, tried: Tried) -> OpWay:
        """The way as it has turned out."""
        gradients = (known or said for known, said in zip(tried.gradients, self.gradients, strict=True))
        count = min(len(self.outputs), len(tried.outputs))
        outputs = (*tried.outputs[:count], *self.outputs[count:])
        return replace(self, outputs=outputs, gradients=tuple(gradients), tried=tried)


def ways_of(
    mesh: DeviceMesh, known: SpecialFactors | None, ranks: tuple[tuple[int, ...], tuple[int, ...]]
) -> list[OpWay]:
    """The ways to split an op; ops without factors run on replicas. `ranks` are those of inputs and outputs.

    >>> from weft.rules.factors import parse
    >>> from weft.sharding.mesh import make_mesh
    >>> product = SpecialFactors(parse("m k, k n -> m n").meet([(4, 6), (6, 8)]))
    >>> for way in ways_of(make_mesh({"tp": 2}), product, ((2, 2), (2,))):
    ...     print(*way.inputs, "->", *way.outputs)
    (–, –) (–, –) -> (–, –)
    (tp, –) (–, –) -> (tp, –)
    (–, tp) (tp, –) -> (–, –) sum@tp
    (–, –) (–, tp) -> (–, tp)
    """
    if known is None:
        inputs, outputs = (tuple(Layout.replicated(mesh, rank) for rank in side) for side in ranks)
        return [OpWay(inputs, outputs, inputs, 1)]
    found: dict[tuple[tuple[Layout, ...], tuple[Layout, ...]], OpWay] = {}
    axes = [axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1]
    for chosen in product((None, *_choices(known)), repeat=len(axes)):
        split: dict[str, tuple[str, ...]] = {}
        for axis, factor in zip(axes, chosen, strict=True):
            if factor is not None:
                split[factor] = (*split.get(factor, ()), axis)
        if _may_be(known.factors, split, mesh):
            way = _way(known, split, mesh)
            found.setdefault((way.inputs, way.outputs), way)
    return list(found.values())


def _choices(known: SpecialFactors) -> Iterator[str]:
    factors = known.factors
    for factor, size in factors.sizes.items():
        if size > 1 and (factor not in factors.whole or factor in known.added_up):
            lacking = factors.lacking(factor)
            reduced = factors.reduces is ReduceOp.SUM or factors.reduces is ReduceOp.AVG
            partial = factors.partial_outputs is None or lacking <= factors.partial_outputs
            if not lacking or (reduced and partial):
                yield factor
    if factors.linear == "all" or (len(factors.inputs) == 1 and factors.linear != "no"):
        yield _PENDING


def _may_be(factors: Factors, split: Mapping[str, tuple[str, ...]], mesh: DeviceMesh) -> bool:
    """Whether every dim is cut evenly enough, and dims of several factors at their major ones."""
    for factor, axes in split.items():
        if factor != _PENDING and not is_nearly_even(factors.sizes[factor], mesh.group_size(axes)):
            return False
    for dims in (*factors.inputs, *factors.outputs):
        for dim in dims or ():
            is_open = True
            for position, factor in enumerate(dim):
                count, size = mesh.group_size(split.get(factor, ())), factors.sizes.get(factor, 1)
                minor = math.prod(factors.sizes.get(each, 1) for each in dim[position + 1 :])
                is_reduced = len(dim) > 1 and not factors.on_output(factor)
                if count > 1 and (not is_open or (minor > 1 and size % count) or is_reduced):
                    return False
                is_open = is_open and count == size
    return True


def _way(known: SpecialFactors, split: Mapping[str, tuple[str, ...]], mesh: DeviceMesh) -> OpWay:
    factors = known.factors
    kept = dict.fromkeys(split.get(_PENDING, ()), ReduceOp.SUM)
    kind = ReduceOp.SUM if factors.reduces is None else factors.reduces

    def laid(dims: Dims, pending: Mapping[str, ReduceOp]) -> Layout:
        return Layout(mesh, [sum((split.get(factor, ()) for factor in dim), ()) for dim in dims], pending)

    def lacked(dims: Dims) -> dict[str, ReduceOp]:
        there = {factor for dim in dims for factor in dim}
        return {axis: kind for factor, axes in split.items() if factor not in there | {_PENDING} for axis in axes}

    outputs, reduced = [], dict[str, ReduceOp]()
    for at, dims in enumerate(factors.outputs):
        if dims is None:
            continue
        lost = {} if factors.reduces is None else lacked(dims)
        lost = {axis: op for axis, op in lost.items() if not _repeats(factors, at, axis, split)}
        reduced |= lost
        outputs.append(laid(dims, kept | lost))
    inputs = [laid(dims, kept | (reduced if at in factors.added else {})) for at, dims in enumerate(factors.inputs)]
    gradients = [
        laid(dims, {} if at in factors.added else dict.fromkeys(lacked(dims), ReduceOp.SUM))
        if at not in factors.added
        else laid(dims, {axis: ReduceOp.SUM for axis in lacked(dims) if axis not in reduced})
        for at, dims in enumerate(factors.inputs)
    ]
    return OpWay(
        tuple(inputs),
        tuple(outputs),
        tuple(gradients),
        mesh.group_size(tuple(axis for factor, axes in split.items() if factor != _PENDING for axis in axes)),
        tuple(axis for factor in known.passed for axis in split.get(factor, ())),
    )


def _repeats(factors: Factors, output: int, axis: str, split: Mapping[str, tuple[str, ...]]) -> bool:
    return any(axis in axes and (output, factor) in factors.repeated for factor, axes in split.items())
