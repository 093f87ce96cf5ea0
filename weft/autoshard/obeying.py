"""`Asked`: whether an op that is left to itself computes in the way that is planned for it.

Layouts are chosen for a whole program, but when it runs each op still chooses by what its own inputs suggest. A parameter that
is to be gathered for a product may lose against an activation that is smaller. So it is asked here what the op would do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from ..engine.choose import Input, choose
from ..planning import Topology
from ..planning.costs.axis_cost import axis_cost
from ..rules.factors import Factors
from ..sharding.layout import Layout
from .ways import OpWay

__all__ = ["Asked"]

Shape = tuple[int, ...]


@final
class Asked:
    """An op, one of whose inputs lies in one layout or another.

    `given` says shapes and item sizes of its inputs; `backwards`: whether the gradient of another input, which takes this one
    too, has to follow as well.

    >>> from weft.rules.factors import parse
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"dp": 4})
    >>> product = parse("m k, k n -> m n").meet([(8, 64), (64, 64)], linear="each")
    >>> rows, whole, columns = (Layout(mesh, each) for each in ((("dp",), ()), ((), ()), ((), ("dp",))))
    >>> asked = Asked(product, 1, (((8, 64), 4), ((64, 64), 4)), Topology(), backwards=False)
    >>> by_rows = OpWay((rows, whole), (rows,), (rows, whole), 4)
    >>> asked.follows(by_rows, whole), asked.follows(by_rows, columns)
    (True, False)
    """

    def __init__(
        self, factors: Factors, at: int, given: Sequence[tuple[Shape, int]], topology: Topology, backwards: bool
    ) -> None:
        self._factors, self._at, self._given, self._backwards = factors, at, given, backwards
        self._topology = topology
        self._itemsize = max(size for _, size in given)
        self._alone: dict[Layout, tuple[Layout, ...]] = {}
        """What the op chooses where this is its only input."""

    def follows(self, way: OpWay, layout: Layout) -> bool:
        """Whether the op computes in a way when this input lies so, and the others as the way has them."""
        if layout is way.inputs[self._at]:
            return True
        if len(self._given) == 1:
            if layout not in self._alone:
                self._alone[layout] = self._chosen(self._factors, [Input(layout, *self._given[0])])
            return self._alone[layout] == way.inputs
        lies = [layout if k == self._at else need for k, need in enumerate(way.inputs)]
        inputs = [Input(where, *kind) for where, kind in zip(lies, self._given, strict=True)]
        return self._chosen(self._factors, inputs) == way.inputs and (
            not self._backwards or self._gradient_follows(way, layout)
        )

    def _gradient_follows(self, way: OpWay, layout: Layout) -> bool:
        """The gradient of another input is a product of the result's gradient and this one."""
        factors, (out, *_) = self._factors, self._factors.outputs
        if out is None:
            return True
        result, need = way.outputs[0].resolved, way.inputs[self._at].resolved
        turned = Factors(
            (out, factors.inputs[self._at]), (factors.inputs[0 if self._at else 1],), factors.sizes, linear="each"
        )
        shape = tuple(math.prod(factors.sizes.get(name, 1) for name in dim) for dim in out)
        inputs = [Input(result, shape, self._itemsize), Input(layout, *self._given[self._at])]
        return self._chosen(turned, inputs) == (result, need)

    def _chosen(self, factors: Factors, inputs: Sequence[Input]) -> tuple[Layout, ...]:
        mesh = next(each.layout.mesh for each in inputs if each.layout is not None)
        return choose(factors, inputs, mesh, self._itemsize, move=self._move).inputs

    def _move(self, source: Layout, target: Layout, shape: Shape, itemsize: int) -> float:
        return axis_cost(source, target, math.prod(shape) * itemsize, self._topology)
