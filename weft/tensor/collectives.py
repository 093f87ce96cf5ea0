"""The collectives: what each device of a group gets of what the others hold.

A combination is said in torch ops on the whole tensor (a dim split by an axis, unfolded, has that axis's devices as a
dim of its own) followed by a movement, so its gradient, of any order and in any mode, is torch's own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..caches import cached
from ..engine.moves.asynchrony import issuing
from ..engine.moves.movement import layout_of, move
from ..engine.moves.permutation import permute
from ..engine.programs.compiling import stands_in_programs
from ..sharding.layout import Layout
from ..sharding.mapping import NamedMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.placements import ReduceOp
from .combining import check_equal_parts, combined, reduction
from .conversion import TensorLike, as_tensor
from .exchanging import check_parts, exchange_group, exchanged, transposed, turned
from .lane import meeting
from .movements import redistribute
from .tensor import Tensor

__all__ = ["all_gather", "all_reduce", "all_to_all", "ppermute", "reduce_scatter"]


@stands_in_programs
@meeting
def all_gather(
    sharded_tensor: TensorLike, axis: int | None = None, *, physical_axis: int | None = None, async_op: bool = False
) -> torch.Tensor:
    """The same value with tensor dim `axis` (None: every split dim) whole on every device.

    >>> import torch, weft
    >>> x = weft.shard(torch.arange(4), weft.make_mesh({"dp": 2}), weft.P("dp"))
    >>> weft.all_gather(x).mapping.is_fully_replicated
    True
    """
    x, layout = _laid_out(sharded_tensor, "all_gather")
    if physical_axis is not None:
        if axis is not None and axis != physical_axis:
            raise ValueError(f"all_gather got axis={axis} and physical_axis={physical_axis}: give one of them")
        axis = physical_axis
    target = _gathered(layout, None if axis is None else _dim(axis, x, "all_gather"))
    with issuing(async_op):
        return move(x, target, op="all_gather")


@stands_in_programs
@meeting
def all_reduce(
    sharded_tensor: TensorLike,
    reduce_op: str | ReduceOp = "sum",
    reduce_axes: str | Iterable[str] | None = None,
    *,
    async_op: bool = False,
) -> torch.Tensor:
    """Every device of a group gets the reduction of what the group's devices hold.

    `reduce_axes=None`: the axes that hold a pending reduction, else those that split a dim, else all.

    >>> import torch, weft
    >>> x = weft.shard(torch.arange(4.0), weft.make_mesh({"dp": 2}), weft.P("dp"))
    >>> weft.all_reduce(x).full_tensor()
    tensor([2., 4.])
    """
    x, layout = _laid_out(sharded_tensor, "all_reduce")
    how = reduction(x, layout, "all_reduce", reduce_op, reduce_axes)
    with issuing(async_op):
        return combined(x, how)


@stands_in_programs
@meeting
def reduce_scatter(
    sharded_tensor: TensorLike,
    axis: int,
    reduce_op: str | ReduceOp = "sum",
    reduce_axes: str | Iterable[str] | None = None,
    *,
    async_op: bool = False,
) -> torch.Tensor:
    """`all_reduce`, with tensor dim `axis` of the result split among the group.

    `reduce_axes=None`: the axes that hold a pending reduction, else those that split `axis`, else those that split no dim.

    >>> import torch, weft
    >>> x = weft.shard(torch.arange(8.0), weft.make_mesh({"dp": 2}), weft.P("dp"))
    >>> [s.tolist() for s in weft.reduce_scatter(x, 0).local_shards]
    [[4.0, 6.0], [8.0, 10.0]]
    """
    x, layout = _laid_out(sharded_tensor, "reduce_scatter")
    how = reduction(x, layout, "reduce_scatter", reduce_op, reduce_axes, _dim(axis, x, "reduce_scatter"))
    with issuing(async_op):
        return combined(x, how)


@stands_in_programs
@meeting
def all_to_all(
    sharded_tensor: TensorLike, split_axis: int, concat_axis: int, tiled: bool = True, *, async_op: bool = False
) -> torch.Tensor:
    """The distributed transpose: device j gets part j along `split_axis` of what each device holds, put together along `concat_axis`.

    The group are the devices along the axes that split `concat_axis`, else `split_axis`, else any dim. `tiled=False`:
    `split_axis` has the size of the group on each device and goes away, and a new dim of that size stands at
    `concat_axis`; axes outside of the group that split `split_axis` split the new dim.

    >>> import torch, weft
    >>> x = weft.shard(torch.arange(16).reshape(4, 4), weft.make_mesh({"tp": 2}), weft.P("tp", None))
    >>> weft.all_to_all(x, split_axis=1, concat_axis=0).mapping.spec
    P(None, 'tp')
    """
    x, layout = _laid_out(sharded_tensor, "all_to_all")
    split = _dim(split_axis, x, "all_to_all split_axis")
    concat = _dim(concat_axis, x, "all_to_all concat_axis")
    target = turned(layout, split, concat) if tiled else None
    if target is not None:
        with issuing(async_op):
            return move(x, target, op="all_to_all")
    dim, axes = exchange_group(layout, split, concat)
    count = layout.mesh.group_size(axes)
    check_equal_parts(x.shape, layout, range(x.dim()), "all_to_all")
    check_parts(x, layout, split, dim, count, tiled)
    with issuing(async_op):
        return (exchanged if tiled else transposed)(x, layout, split, concat, dim, axes)


@stands_in_programs
@meeting
def ppermute(
    sharded_tensor: TensorLike, permutation: Iterable[tuple[int, int]], *, async_op: bool = False
) -> torch.Tensor:
    """Device `dst` gets what device `src` holds, for each (src, dst); devices that are no destination get zeros.

    >>> import torch, weft
    >>> x = weft.shard(torch.arange(4), weft.make_mesh({"pp": 4}), weft.P("pp"))
    >>> weft.ppermute(x, [(0, 1), (1, 2), (2, 3)]).full_tensor()
    tensor([0, 0, 1, 2])
    """
    x, _ = _laid_out(sharded_tensor, "ppermute")
    with issuing(async_op):
        return permute(x, permutation)


def _laid_out(x: TensorLike, op: str) -> tuple[torch.Tensor, Layout]:
    """The tensor and its layout; a plain one counts as whole on one device."""
    if type(x) is Tensor:
        return x, x._form.layout
    x = as_tensor(x, op)
    layout = layout_of(x)
    if layout is None:
        x = redistribute(x, NamedMapping(DeviceMesh.single(), ()), op=op)
        layout = layout_of(x)
        assert layout is not None
    return x, layout


def _dim(axis: int, x: torch.Tensor, op: str) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"{op} takes a tensor dim, a whole number, but got {axis!r}")
    if not -x.dim() <= axis < x.dim():
        raise ValueError(
            f"{op}: dim {axis} is out of range for a tensor of shape {tuple(x.shape)}: use {-x.dim()} to {x.dim() - 1}"
        )
    return axis % x.dim()


@cached(4096)
def _gathered(layout: Layout, dim: int | None) -> Layout:
    """The layout with a dim (None: every dim) whole."""
    for each in range(len(layout.splits)) if dim is None else (dim,):
        layout = layout.with_split(each, ())
    return layout
