"""`follows`: whether an op that is left to itself computes in the way that is planned for it.

Layouts are chosen for a whole program, but when it runs each op still chooses by what its own inputs suggest. A parameter that
is to be gathered for a product may lose against an activation that is smaller. So it is asked here what the op would do.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.choose import Input, choose
from ..planning import Topology
from ..planning.axis_cost import axis_cost
from ..rules.factors import Factors
from ..sharding.layout import Layout
from .ways import Way

__all__ = ["Given", "follows"]

Given = tuple[tuple[int, ...], int]
"""The shape of a tensor, and the bytes of an element."""


def follows(
    factors: Factors, way: Way, at: int, layout: Layout, given: Sequence[Given], topology: Topology, *, backwards: bool
) -> bool:
    """Whether an op computes in a way when one of its inputs lies in another layout and the rest as the way has them.

    `backwards`: whether the gradients of the other inputs, which take this one too, have to follow as well.

    >>> from weft.rules.factors import parse
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"dp": 4})
    >>> product = parse("m k, k n -> m n").meet([(8, 64), (64, 64)], linear="each")
    >>> rows, whole, columns = (Layout(mesh, each) for each in ((("dp",), ()), ((), ()), ((), ("dp",))))
    >>> by_rows = Way((rows, whole), (rows,), (rows, whole), 4)
    >>> follows(product, by_rows, 1, whole, [((8, 64), 4), ((64, 64), 4)], Topology(), backwards=False)
    True
    >>> follows(product, by_rows, 1, columns, [((8, 64), 4), ((64, 64), 4)], Topology(), backwards=False)
    False
    """

    def move(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> float:
        size = itemsize
        for each in shape:
            size *= each
        return axis_cost(source, target, size, topology)

    lies = [layout if k == at else need for k, need in enumerate(way.inputs)]
    inputs = [Input(where, *kind) for where, kind in zip(lies, given, strict=True)]
    mesh, itemsize = layout.mesh, max(size for _, size in given)
    if choose(factors, inputs, mesh, itemsize, move=move).inputs != way.inputs:
        return False
    if not backwards or len(way.inputs) < 2 or factors.outputs[0] is None:
        return True
    # The gradient of the first input is a product of the result's gradient and this one.
    other = 0 if at else 1
    result = way.outputs[0].resolved
    needs = (result, way.inputs[at].resolved)
    turned = Factors((factors.outputs[0], factors.inputs[at]), (factors.inputs[other],), factors.sizes, linear="each")
    shape = tuple(_size(dim, factors) for dim in factors.outputs[0])
    inputs = [Input(result, shape, itemsize), Input(layout, *given[at])]
    return choose(turned, inputs, mesh, itemsize, move=move).inputs == needs


def _size(dim: tuple[str, ...], factors: Factors) -> int:
    size = 1
    for name in dim:
        size *= factors.sizes.get(name, 1)
    return size
