"""Windows of images and samples at points of them: batch and channels are independent, the image is whole.

im2col          n c h! w! -> n (c k!) l
grid_sampler    n c h! w!, n i j 2! -> n c i j      the gradient of the image is a sum over the points
"""

from __future__ import annotations

import math

import torch

from ...sharding.placements import ReduceOp
from ..arguments import arranged
from ..call import BoundCall
from ..dims import one_each
from ..factors import Dims, Factors
from ..registry import Rule, rules

aten = torch.ops.aten


def _columns(call: BoundCall) -> Factors:
    """Windows as columns, and back: the channels of all places of a window stand in one dim."""
    shape = call.tensors[0].shape
    window = math.prod(call.integers("kernel_size"))
    into = call.func is aten.im2col.default
    batch = ["n"] if len(shape) == (4 if into else 3) else []
    channels = shape[len(batch)] if into else shape[len(batch)] // window
    ahead = one_each(batch)
    image: Dims = (*ahead, ("c",), (), ())
    columns: Dims = (*ahead, ("c", "k"), ())
    sizes = dict.fromkeys(batch, shape[0]) | {"c": channels, "k": window}
    given, made = (image, columns) if into else (columns, image)
    return Factors((given,), (made,), sizes, frozenset({"k"}), linear=0)


class _Points:
    """The factors of samples of an image at points."""

    def __init__(self, call: BoundCall) -> None:
        shape, points = call.tensor("input").shape, call.tensor("grid").shape[1:-1]
        places = [f"p{i}" for i in range(len(points))]
        self.sizes = {"n": shape[0], "c": shape[1]} | dict(zip(places, points, strict=True))
        self.image = one_each(["n", "c", *[None] * len(points)])
        self.points = one_each(["n", *places, None])
        self.samples = one_each(["n", "c", *places])


def _sampled(call: BoundCall) -> Factors:
    points = _Points(call)
    return Factors((points.image, points.points), (points.samples,), points.sizes, linear=0)


def _sampled_backward(call: BoundCall) -> Factors:
    points = _Points(call)
    inputs = arranged(call, {"grad_output": points.samples, "input": points.image, "grid": points.points})
    # Without a gradient of the image, torch gives none; that of the points it always gives.
    outputs = (points.image if call.flags("output_mask")[0] else None, points.points)
    return Factors(inputs, outputs, points.sizes, linear=0)


rules |= {
    aten.im2col.default: Rule(_columns, of_nothing=ReduceOp.SUM),
    aten.col2im.default: Rule(_columns, of_nothing=ReduceOp.SUM),
}
for _name in ("grid_sampler_2d", "grid_sampler_3d"):
    rules[getattr(aten, _name).default] = Rule(_sampled, of_nothing=ReduceOp.SUM)
    rules[getattr(aten, f"{_name}_backward").default] = Rule(_sampled_backward, of_nothing=ReduceOp.SUM)
