"""The communication ops. Movements keep the global value; combinations compute on what each device holds.

A combination is said in torch ops on the whole tensor (a dim split by an axis, unfolded, has that axis's devices as a
dim of its own) followed by a movement, so its gradient, of any order and in any mode, is torch's own.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast, overload

import torch

from ..caches import cached
from ..devices import CPU, Accelerator, Device, list_devices
from ..engine.compiling import stands_in_programs
from ..engine.memory import held_whole
from ..engine.moves.asynchrony import issuing
from ..engine.moves.entering import entering, shared
from ..engine.moves.movement import is_recorded, layout_of, move, note_steps
from ..engine.moves.permutation import permute
from ..engine.sharded import wrap_whole
from ..runtime.lazy_copy import lazy_clone
from ..runtime.machine import check_there, torch_device
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping, NamedMapping, ShardingSpec
from ..sharding.mesh import DeviceMesh, current_mesh, make_mesh
from ..sharding.named import DimSpec, P, SpecEntry
from ..sharding.placements import Placement, ReduceOp
from ..watch import comm_log
from .conversion import TensorLike, as_tensor, map_tensors
from .lane import meeting
from .tensor import Tensor

__all__ = [
    "accelerator",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "cpu",
    "distributed_broadcast",
    "gpu",
    "ppermute",
    "redistribute",
    "reduce_scatter",
    "reshard",
    "shard",
    "to_device",
    "transfer_to",
]

Spec = DeviceMapping | Iterable[SpecEntry | DimSpec] | str | None
Function = TypeVar("Function", bound=Callable[..., object])


def _mesh_first(function: Function) -> Function:
    """Tells who forgets the mesh, or the spec after it, how to call `shard`."""

    @functools.wraps(function)
    def checked(*args: object, **kwargs: object) -> object:
        if len(args) == 2 and "dim_specs" not in kwargs:
            raise TypeError(_misplaced(args[1]))
        return function(*args, **kwargs)

    return cast(Function, checked)


@overload
def shard(
    x: torch.Tensor,
    mesh: DeviceMesh,
    dim_specs: Spec,
    replicated_axes: Iterable[str] | None = None,
    *,
    copy: bool = True,
    async_op: bool = False,
) -> torch.Tensor: ...
@overload
def shard(
    x: object,
    mesh: DeviceMesh,
    dim_specs: Spec,
    replicated_axes: Iterable[str] | None = None,
    *,
    copy: bool = True,
    async_op: bool = False,
) -> object: ...
@stands_in_programs
@_mesh_first
def shard(
    x: TensorLike,
    mesh: DeviceMesh,
    dim_specs: Spec,
    replicated_axes: Iterable[str] | None = None,
    *,
    copy: bool = True,
    async_op: bool = False,
) -> object:
    """The same value, laid out over `mesh` as `dim_specs` says; `x` may be a pytree, or be laid out in any way already.

    The result is a copy, made when one of the two is written to, or at once where NumPy or DLPack could write to `x`
    unseen. `copy=False`: it has the memory of the plain tensor `x`, or raises where it cannot.

    `async_op=True`, here and in the other ops: the result is on its way, and whoever uses it waits.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 4})
    >>> x = weft.shard(torch.ones(4, 8), mesh, weft.P("dp", "tp"))
    >>> x.local_shards[0].shape
    torch.Size([2, 2])
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(_misplaced(mesh))
    if isinstance(dim_specs, DeviceMapping):
        if dim_specs.mesh != mesh:
            raise ValueError(
                f"the mapping is for the mesh {dim_specs.mesh}, but shard was given {mesh}: use mapping.to_mesh(mesh)"
            )
        mapping = dim_specs
    else:
        mapping = _mapping(mesh, dim_specs, replicated_axes)
    if not copy:
        return map_tensors(lambda leaf: shared(leaf, mapping), x, "shard")
    with issuing(async_op):
        if isinstance(x, torch.Tensor):
            return redistribute(x, mapping, op="shard")
        return map_tensors(lambda leaf: redistribute(leaf, mapping, op="shard"), x, "shard")


def _misplaced(given: object) -> str:
    """What is wrong with something that stands where the mesh belongs."""
    if isinstance(given, DeviceMapping):
        return "shard takes the mesh before the mapping: use weft.shard(x, mapping.mesh, mapping), or x.redistribute(mapping)"
    if isinstance(given, DeviceMesh):
        return (
            "shard takes a spec after the mesh: use weft.shard(x, mesh, P('dp')), or P() for the whole on every device"
        )
    if isinstance(given, (P, DimSpec)):
        return f"shard takes the mesh before the spec, but got {given!r} there: use weft.shard(x, mesh, {given!r})"
    return f"shard needs a DeviceMesh, but got {given!r}: use weft.make_mesh({{'dp': 2, 'tp': 4}})"


_named = cached(4096)(NamedMapping)


def _mapping(mesh: DeviceMesh, dim_specs: Spec, replicated_axes: Iterable[str] | None) -> NamedMapping:
    """What the arguments of `shard` say; for a `P` it is looked up."""
    if isinstance(dim_specs, P) and not replicated_axes:
        return _named(mesh, dim_specs)
    if isinstance(dim_specs, Placement):
        raise TypeError(
            f"a spec names mesh axes, one entry per tensor dim, but got the placement {dim_specs!r}: "
            "use P('dp', None), or PlacementMapping(mesh, placements) with one placement per mesh axis"
        )
    entries = () if dim_specs is None else (dim_specs,) if isinstance(dim_specs, str) else dim_specs
    return ShardingSpec(mesh, cast("Iterable[SpecEntry | DimSpec]", entries), replicated_axes)


@stands_in_programs
def redistribute(x: torch.Tensor, mapping: DeviceMapping, *, op: str = "redistribute") -> torch.Tensor:
    """The same value in the layout that a mapping says."""
    if not isinstance(mapping, DeviceMapping):
        raise TypeError(
            f"{op} needs a mapping, but got {mapping!r}: use NamedMapping(mesh, P(...)) or PlacementMapping(mesh, placements)"
        )
    target = mapping.layout(x.dim())
    if not x.is_meta:
        check_there(target.mesh)
    return move(entering(x), target, asked=mapping, op=op)


@stands_in_programs
def reshard(
    x: TensorLike,
    mesh: DeviceMesh,
    dim_specs: Spec,
    replicated_axes: Iterable[str] | None = None,
    *,
    copy: bool = True,
    async_op: bool = False,
) -> object:
    """Deprecated: use `shard`.

    >>> import torch, weft, warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     x = weft.reshard(torch.ones(4), weft.make_mesh({"dp": 2}), weft.P("dp"))
    >>> caught[0].category
    <class 'DeprecationWarning'>
    """
    warnings.warn(
        "weft.reshard is deprecated: use weft.shard, which moves between any two layouts",
        DeprecationWarning,
        stacklevel=2,
    )
    return shard(x, mesh, dim_specs, replicated_axes, copy=copy, async_op=async_op)


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
    kind = _kind(reduce_op, x.dtype, "all_reduce")
    axes = _axes(layout, reduce_axes, layout.pending_axes or layout.split_axes or layout.mesh.axis_names)
    with issuing(async_op):
        return _combine_and_move(x, layout, kind, axes, _reduced(layout, axes), "all_reduce")


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
    kind = _kind(reduce_op, x.dtype, "reduce_scatter")
    dim = _dim(axis, x, "reduce_scatter")
    axes = _axes(layout, reduce_axes, layout.pending_axes or layout.splits[dim] or layout.replicated_axes)
    if not axes:
        raise ValueError(
            f"reduce_scatter found no axes to reduce over: the layout {layout} on {layout.mesh} leaves none. Name them: reduce_axes=..."
        )
    reduced = _reduced(layout, axes)
    target = reduced.with_split(dim, (*reduced.splits[dim], *axes))
    with issuing(async_op):
        return _combine_and_move(x, layout, kind, axes, target, "reduce_scatter")


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
    target = _turned(layout, split, concat) if tiled else None
    if target is not None:
        with issuing(async_op):
            return move(x, target, op="all_to_all")
    dim, axes = _exchange_group(layout, split, concat)
    count = math.prod(layout.mesh.axis_size(a) for a in axes)
    _check_equal_parts(x, layout, range(x.dim()), "all_to_all")
    _check_parts(x, layout, split, dim, count, tiled)
    with issuing(async_op):
        return (_exchanged if tiled else _transposed)(x, layout, split, concat, dim, axes)


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


@stands_in_programs
def distributed_broadcast(x: TensorLike, mesh: DeviceMesh | None = None, *, async_op: bool = False) -> torch.Tensor:
    """The same value, the whole of it, on every device of the mesh (None: the tensor's, else the current one, else all devices).

    >>> import torch, weft
    >>> weft.distributed_broadcast(torch.ones(2), weft.make_mesh({"dp": 4})).mapping.is_fully_replicated
    True
    """
    x = as_tensor(x, "distributed_broadcast")
    layout = layout_of(x)
    if mesh is None:
        mesh = layout.mesh if layout is not None else current_mesh() or make_mesh({"d": len(list_devices())})
    with issuing(async_op):
        return redistribute(x, NamedMapping(mesh, ()), op="distributed_broadcast")


@stands_in_programs
def to_device(
    x: TensorLike,
    device: Device | torch.device | str | None = None,
    *,
    sharding: DeviceMapping | None = None,
    async_op: bool = False,
) -> torch.Tensor:
    """The same value on one device, or laid out as `sharding` says; with neither, `x` if it is on a device, else on the default one.

    >>> import torch, weft
    >>> weft.to_device(torch.ones(2), weft.CPU(3)).mesh.devices
    (CPU(3),)
    """
    if device is not None and sharding is not None:
        raise ValueError(
            f"to_device takes a device or a sharding, but got both: device={device!r} and sharding={sharding!r}"
        )
    x = as_tensor(x, "to_device")
    if sharding is not None:
        with issuing(async_op):
            return redistribute(x, sharding, op="to_device")
    if device is None:
        if layout_of(x) is not None:
            return x
        device = list_devices()[0]
    where = _device(device)
    torch_device(where)
    with issuing(async_op):
        return redistribute(x, NamedMapping(DeviceMesh.single(where), ()), op="to_device")


transfer_to = to_device


@stands_in_programs
def cpu(x: TensorLike) -> torch.Tensor:
    """The same value on `CPU()`.

    >>> import torch, weft
    >>> weft.cpu(torch.ones(2)).mesh.devices
    (CPU(0),)
    """
    return to_device(x, CPU())


@stands_in_programs
def gpu(x: TensorLike) -> torch.Tensor:
    """The same value on `Accelerator()`.

    >>> import torch, weft
    >>> weft.gpu(torch.ones(2))  # doctest: +SKIP
    """
    return to_device(x, Accelerator())


@stands_in_programs
def accelerator(x: TensorLike, device_id: int = 0) -> torch.Tensor:
    """The same value on `Accelerator(device_id)`.

    >>> import torch, weft
    >>> weft.accelerator(torch.ones(2), 99)
    Traceback (most recent call last):
    ValueError: Accelerator(99) does not exist: ...
    """
    return to_device(x, Accelerator(device_id))


def _laid_out(x: TensorLike, op: str) -> tuple[torch.Tensor, Layout]:
    """The tensor and its layout; a plain one counts as whole on one device."""
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


def _kind(reduce_op: str | ReduceOp, dtype: torch.dtype, op: str) -> ReduceOp:
    kind = ReduceOp.of(reduce_op)
    if kind is ReduceOp.AVG and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"{op} cannot take the mean of {dtype} values: convert to a floating dtype first, or use 'sum'")
    if kind in (ReduceOp.MAX, ReduceOp.MIN) and dtype.is_complex:
        raise TypeError(f"{op} cannot take the {kind} of {dtype} values: complex numbers have no order")
    return kind


def _axes(layout: Layout, named: str | Iterable[str] | None, default: Sequence[str]) -> tuple[str, ...]:
    """The axes to reduce over, in mesh order."""
    names = set(default) if named is None else {named} if isinstance(named, str) else set(named)
    for name in names:
        layout.mesh.axis_index(name)
    return tuple(axis for axis in layout.mesh.axis_names if axis in names)


@cached(4096)
def _gathered(layout: Layout, dim: int | None) -> Layout:
    """The layout with a dim (None: every dim) whole."""
    for each in range(len(layout.splits)) if dim is None else (dim,):
        layout = layout.with_split(each, ())
    return layout


@cached(4096)
def _reduced(layout: Layout, axes: tuple[str, ...]) -> Layout:
    """The layout with these axes replicated."""
    splits = [tuple(a for a in names if a not in axes) for names in layout.splits]
    return Layout(layout.mesh, splits, [(axis, op) for axis, op in layout.pending if axis not in axes])


def _combine_and_move(
    x: torch.Tensor, layout: Layout, kind: ReduceOp, axes: tuple[str, ...], target: Layout, op: str
) -> torch.Tensor:
    """What each device of a group holds, reduced over the group, in the layout asked for."""
    whole = held_whole(x) if type(x) is Tensor and not is_recorded(x) else None
    if whole is not None:
        # The whole value is at hand and nothing is differentiated: the same torch ops, once, on it.
        y = _contributions(whole, layout, kind, axes, op)
        if comm_log.is_logging():
            begun = _reduced(layout, axes).with_pending(dict.fromkeys(axes, kind))
            note_steps(begun, target, tuple(y.shape), y.dtype, op, implicit=False)
        return wrap_whole(lazy_clone(y) if y is whole else y, target)
    return move(_contributions(x, layout, kind, axes, op), target, op=op)


def _contributions(x: torch.Tensor, layout: Layout, kind: ReduceOp, axes: Sequence[str], op: str) -> torch.Tensor:
    """What is left to reduce over `axes`, as a tensor that holds it pending."""
    # Axes that hold just this reduction are only resolved; others would combine what is not a value yet.
    only_resolved = all((axis, kind) in layout.pending for axis in axes)
    for axis, waiting in layout.pending:
        if waiting is not kind and not only_resolved:
            raise ValueError(
                f"{op} was asked for the {kind}, but a {waiting} is pending over mesh axis {axis!r}: reduce that first with reduce_op='{waiting}'"
            )
    split = [axis for axis in axes if axis in layout.dim_of]
    if split:
        dims = sorted({layout.dim_of[axis] for axis in split})
        _check_equal_parts(x, layout, dims, op)
        for dim in reversed(dims):
            x = _combined(x, layout, dim, [a for a in layout.splits[dim] if a in split], kind)
    again = math.prod(layout.mesh.axis_size(a) for a in axes if a in layout.replicated_axes)
    if again > 1:
        x = _repeated(x, again, kind)
    return x


def _check_equal_parts(x: torch.Tensor, layout: Layout, dims: Iterable[int], op: str) -> None:
    for dim in dims:
        count = layout.split_count(dim)
        size = x.shape[dim]
        if size % count:
            axes = ", ".join(map(repr, layout.splits[dim]))
            sizes = [size // count + (i < size % count) for i in range(count)]
            shown = ", ".join(map(str, sizes[:8])) + (", …" if count > 8 else "")
            raise ValueError(
                f"{op} needs equal local shapes, but dim {dim} (size {size}) over mesh axis {axes} (size {count}) gives {shown}.\n"
                f"  Reduce along another axis, or pad dim {dim} to {-(-size // count) * count}."
            )


_COMBINE = {
    ReduceOp.SUM: lambda x, dim: x.sum(dim, dtype=x.dtype) if x.dtype is not torch.bool else x.any(dim),
    ReduceOp.AVG: lambda x, dim: x.mean(dim),
    ReduceOp.MAX: lambda x, dim: x.amax(dim) if x.dtype is not torch.bool else x.any(dim),
    ReduceOp.MIN: lambda x, dim: x.amin(dim) if x.dtype is not torch.bool else x.all(dim),
    ReduceOp.PROD: lambda x, dim: x.prod(dim, dtype=x.dtype) if x.dtype is not torch.bool else x.all(dim),
}


def _combined(x: torch.Tensor, layout: Layout, dim: int, axes: Sequence[str], kind: ReduceOp) -> torch.Tensor:
    """Reduces what the devices along `axes` hold of one dim: that dim, unfolded, has each axis as a dim of its own."""
    sizes = [layout.mesh.axis_size(axis) for axis in layout.splits[dim]]
    local = x.shape[dim] // math.prod(sizes)
    x = x.unflatten(dim, (*sizes, local))
    for position in reversed(range(len(sizes))):
        if layout.splits[dim][position] in axes:
            x = _COMBINE[kind](x, dim + position)
    left = len(sizes) - len(axes)
    return x.flatten(dim, dim + left) if left else x


def _repeated(x: torch.Tensor, count: int, kind: ReduceOp) -> torch.Tensor:
    """The reduction of `count` copies of one value."""
    if kind is ReduceOp.SUM and x.dtype is not torch.bool:
        return x * count
    if kind is ReduceOp.PROD and x.dtype is not torch.bool:
        return x**count
    return x


@cached(4096)
def _turned(layout: Layout, split: int, concat: int) -> Layout | None:
    """The layout after a tiled exchange that keeps the value: what split `concat` splits `split`. None if it is another."""
    axes = layout.splits[concat]
    if split == concat or not axes:
        return None
    return layout.with_split(concat, ()).with_split(split, (*layout.splits[split], *axes))


def _exchange_group(layout: Layout, split: int, concat: int) -> tuple[int | None, tuple[str, ...]]:
    """The dim whose parts are exchanged, and the axes that split it; None when every device holds the whole."""
    for dim in (concat, split):
        if layout.splits[dim]:
            return dim, layout.splits[dim]
    dims = [dim for dim, axes in enumerate(layout.splits) if axes]
    if len(dims) > 1:
        raise ValueError(
            f"all_to_all cannot tell its group: neither dim {split} nor dim {concat} is split, and the layout {layout} splits several others. "
            "Gather all but one of them first"
        )
    return (dims[0], layout.splits[dims[0]]) if dims else (None, layout.mesh.axis_names)


def _check_parts(x: torch.Tensor, layout: Layout, split: int, dim: int | None, count: int, tiled: bool) -> None:
    own = layout.split_count(split)
    local = x.shape[split] // own
    if not tiled and local != count:
        raise ValueError(
            f"all_to_all with tiled=False needs dim {split} to have the size of the group, {count}, on each device, but it is {local}"
        )
    if local % count:
        raise ValueError(
            f"all_to_all cannot cut dim {split} (size {local} on each device) into {count} equal parts: pad it to {-(-local // count) * count} per device"
        )


def _exchanged(
    x: torch.Tensor, layout: Layout, split: int, concat: int, dim: int | None, axes: tuple[str, ...]
) -> torch.Tensor:
    """The tiled exchange: the group's devices, a dim of their own, go before the concatenated dim."""
    y, concat_at = _with_group_dim(x, layout, concat, dim, axes)
    if split == concat:
        # (device, part, rest) of one dim: the parts become the devices.
        count = y.shape[concat_at]
        y = y.unflatten(concat_at + 1, (count, y.shape[concat_at + 1] // count)).transpose(concat_at, concat_at + 1)
        y = y.flatten(concat_at, concat_at + 2)
    else:
        y = y.flatten(concat_at, concat_at + 1)
    target = _reduced(layout, axes)
    return move(y, target.with_split(split, (*target.splits[split], *axes)), op="all_to_all")


def _with_group_dim(
    x: torch.Tensor, layout: Layout, before: int, dim: int | None, axes: tuple[str, ...]
) -> tuple[torch.Tensor, int]:
    """`x` with the group's devices as a dim of their own, standing before dim `before`."""
    count = math.prod(layout.mesh.axis_size(a) for a in axes)
    if dim is None:
        return x.unsqueeze(before).expand(*x.shape[:before], count, *x.shape[before:]), before
    y = x.unflatten(dim, (count, x.shape[dim] // count))
    return y.movedim(dim, before), before


def _transposed(
    x: torch.Tensor, layout: Layout, split: int, concat: int, dim: int | None, axes: tuple[str, ...]
) -> torch.Tensor:
    """The exchange with tiled=False: what was the group's dim stands at `concat`, and the split dim's index is the device."""
    count = math.prod(layout.mesh.axis_size(a) for a in axes)
    if dim is None:
        raise ValueError(
            f"all_to_all with tiled=False needs a dim that is split, but the layout {layout} splits none: shard it first"
        )
    y = x.unflatten(dim, (count, x.shape[dim] // count))
    rest = _reduced(layout, axes)
    if split == dim:
        # The dim held (device, part): the parts become the devices, the devices the new dim's inner index.
        y = y.transpose(dim, dim + 1).movedim((dim, dim + 1), (concat, concat + 1)).flatten(concat, concat + 1)
        return move(y, rest.without_dim(dim).with_dim(concat, axes), op="all_to_all")
    # (…, device, local, …, outside, part, …): the part index goes where the device index was; the device index goes to
    # `concat`, and with it, before it, what axes outside of the group split.
    y = y.unflatten(split + (split > dim), (layout.split_count(split), count))
    at = {d: d + (d > dim) + (d > split) for d in range(x.dim())}
    order = [(at[d],) if d != dim else (at[split] + 1, at[d] + 1) for d in range(x.dim()) if d != split]
    order.insert(concat, (at[split], at[dim]))
    y = y.permute([each for group in order for each in group])
    for new, group in enumerate(order):
        y = y.flatten(new, new + 1) if len(group) > 1 else y
    return move(
        y, rest.with_split(dim, axes).without_dim(split).with_dim(concat, layout.splits[split]), op="all_to_all"
    )


def _device(device: Device | torch.device | str) -> Device:
    if isinstance(device, Device):
        return device
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"a device is CPU(id), Accelerator(id), or a torch device, but got {device!r}") from error
    return CPU(where.index or 0) if where.type == "cpu" else Accelerator(where.index or 0)
