"""The movements: the same value in another layout, or on other devices."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar, cast, overload

import torch

from ..caches import cached
from ..devices import CPU, Accelerator, Device, list_devices
from ..engine.moves.asynchrony import issuing
from ..engine.moves.entering import entering, shared
from ..engine.moves.movement import layout_of, move
from ..engine.programs.compiling import stands_in_programs
from ..engine.sharded import ShardedTensor
from ..runtime.machine import check_there, device_of, torch_device
from ..sharding.mapping import DeviceMapping, NamedMapping, ShardingSpec
from ..sharding.mesh import DeviceMesh, current_mesh, make_mesh
from ..sharding.named import DimSpec, P
from ..sharding.placements import Placement
from ..sharding.spec import Entries, Spec, entries_of
from .conversion import TensorLike, as_tensor, map_tensors

__all__ = [
    "accelerator",
    "cpu",
    "distributed_broadcast",
    "gpu",
    "redistribute",
    "reshard",
    "shard",
    "to_device",
    "transfer_to",
]

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
            return _moved(x, mapping, "shard")
        return map_tensors(lambda leaf: _moved(leaf, mapping, "shard"), x, "shard")


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


def _mapping(mesh: DeviceMesh, dim_specs: Entries, replicated_axes: Iterable[str] | None) -> NamedMapping:
    """What the arguments of `shard` say; for a `P` it is looked up."""
    if isinstance(dim_specs, P) and not replicated_axes:
        return _named(mesh, dim_specs)
    if isinstance(dim_specs, Placement):
        raise TypeError(
            f"a spec names mesh axes, one entry per tensor dim, but got the placement {dim_specs!r}: "
            "use P('dp', None), or PlacementMapping(mesh, placements) with one placement per mesh axis"
        )
    return ShardingSpec(mesh, entries_of(dim_specs), replicated_axes)


@stands_in_programs
def redistribute(x: torch.Tensor, mapping: DeviceMapping, *, op: str = "redistribute") -> torch.Tensor:
    """The same value in the layout that a mapping says."""
    if not isinstance(mapping, DeviceMapping):
        raise TypeError(
            f"{op} needs a mapping, but got {mapping!r}: use NamedMapping(mesh, P(...)) or PlacementMapping(mesh, placements)"
        )
    return _moved(x, mapping, op)


def _moved(x: torch.Tensor, mapping: DeviceMapping, op: str) -> torch.Tensor:
    target = mapping.layout(len(x._form.shape) if isinstance(x, ShardedTensor) else x.dim())
    if not x.is_meta:
        check_there(target.mesh)
    return move(x if isinstance(x, ShardedTensor) else entering(x), target, asked=mapping, op=op)


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


def _device(device: Device | torch.device | str) -> Device:
    if isinstance(device, Device):
        return device
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"a device is CPU(id), Accelerator(id), or a torch device, but got {device!r}") from error
    return device_of(where)
