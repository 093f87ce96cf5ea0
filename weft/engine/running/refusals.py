"""What torch refuses of elements, told also by a process that holds none of them.

A kernel that has no form for a dtype says so when it meets an element. With pieces that are empty here and are not
elsewhere, the other processes would raise and this one would go on, to wait for them at the next exchange.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...rules.call import BoundCall
from ...rules.registry import Rule
from ...sharding.geometry import box_at, box_shape
from ...sharding.layout import Layout

__all__ = ["refuse_as_others"]

_FEW = 1 << 16
"""Elements that whole tensors are made of, once for calls that are alike. Of more, others are heard of when they are waited for."""
_BY_ZERO = "ZeroDivisionError"
"""What torch says of whole numbers that are divided by the number 0."""


def refuse_as_others(call: BoundCall, inputs: Sequence[Layout], rule: Rule | None) -> None:
    """Raises what other processes raise for want of a kernel, or of a divisor, in one that has no elements."""
    shapes = [_largest(layout, tuple(x.shape)) for layout, x in zip(inputs, call.tensors, strict=True)]
    if rule is not None and rule.local is not None:
        # What devices do by a way of their own, the op can be asked of whole tensors alone.
        shapes = [tuple(x.shape) for x in call.tensors]
        if sum(map(math.prod, shapes)) > _FEW or torch.Tag.nondeterministic_seeded in call.func.tags:
            return
    if any(0 in shape for shape in shapes):
        return
    local = [_stand_in(shape, x) for shape, x in zip(shapes, call.tensors, strict=True)]
    try:
        call.on(local)
    except NotImplementedError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        # They are not the elements that the others hold: only what no element can mend counts.
        if len(local) == 1 and str(error) == _BY_ZERO:
            raise


def _stand_in(shape: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """Elements that a kernel can take: zeros where they may be places, which some do not look at before they write there."""
    make = torch.ones if x.is_floating_point() or x.is_complex() else torch.zeros
    return make(shape, dtype=x.dtype, device=x.device)


def _largest(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the first shard, which none is larger than."""
    return box_shape(box_at(layout, shape, (0,) * len(layout.mesh.mesh_shape)))
