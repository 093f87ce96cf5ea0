"""Parameters that rest in other memory than that of the devices which compute with them, as host memory beside a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from ...caches import cached
from ...devices import CPU
from ...engine.sharded import ShardedTensor, wrap
from ...engine.value import value_of
from ...engine.views.copy_views import current
from ...runtime.holding import Pieces, holding, slices
from ...runtime.machine import forget_with_residences, residence
from ...runtime.memory import accelerator
from ...runtime.on_paper import moving
from ...runtime.strides import dense_strides
from ...sharding.geometry import within
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh

__all__ = ["fetch", "fetched", "laid_on", "pin", "rest_of", "returned", "settle"]


def rest_of(mesh: DeviceMesh, offload: str | DeviceMesh | None) -> DeviceMesh:
    """The mesh on which parameters rest that devices of a mesh compute with.

    >>> from weft.devices import Accelerator
    >>> from weft.sharding.mesh import make_mesh
    >>> rest_of(make_mesh({"dp": 2}, devices=[Accelerator(0), Accelerator(1)]), "cpu").devices
    (CPU(0), CPU(1))
    """
    if offload is None:
        return mesh
    if isinstance(offload, DeviceMesh):
        return _checked(mesh, offload)
    if offload != "cpu":
        raise ValueError(f"offload is 'cpu' or a mesh of devices to rest on, but got {offload!r}: use offload='cpu'")
    return DeviceMesh([CPU(device.id) for device in mesh.devices], mesh.mesh_shape, mesh.axis_names)


def _checked(mesh: DeviceMesh, rest: DeviceMesh) -> DeviceMesh:
    if rest.shape != mesh.shape:
        raise ValueError(
            f"parameters rest on a mesh of the same axes, but {mesh} computes and offload= is {rest}: "
            "give each device one to rest beside, or use offload='cpu'"
        )
    for device, other, mine, its in zip(
        mesh.devices, rest.devices, residence(mesh).owners, residence(rest).owners, strict=True
    ):
        if mine != its:
            raise ValueError(
                f"{device!r} of process {mine} cannot fetch from {other!r} of process {its}: parameters rest in the process "
                "that computes with them. Use offload='cpu', or devices of the same processes in the same order"
            )
    return rest


def laid_on(layout: Layout, mesh: DeviceMesh) -> Layout:
    """A layout as it is on another mesh of the same axes."""
    return layout if layout.mesh == mesh else Layout(mesh, layout.splits, layout.pending)


@cached(4096, cleared_by=forget_with_residences)
def _beside(layout: Layout, rest: Layout, shape: tuple[int, ...]) -> tuple[tuple[int, tuple[slice, ...]], ...]:
    """For each piece of a layout, which piece of the same layout at rest has its elements, and which part of that."""
    here, there = holding(layout), holding(rest)
    found = []
    for piece, slot in enumerate(here.slots):
        at = there.piece_of[slot]
        found.append((at, slices(within(here.box(piece, shape), there.box(at, shape)))))
    return tuple(found)


def _pairs(
    pieces: Pieces, layout: Layout, resting: Pieces, rest: Layout, shape: Sequence[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each piece, and what has its elements at rest."""
    for piece, (at, part) in zip(pieces, _beside(layout, rest, tuple(shape)), strict=True):
        yield piece, resting[at][part]


def fetch(x: ShardedTensor, layout: Layout, into: Pieces) -> None:
    """Writes what rests to the pieces of the same layout on the devices that compute; see `settle`."""
    for piece, resting in _pairs(into, layout, current(x), x._layout, x.shape):
        if not piece.is_meta:
            accelerator.copy(piece, resting, settled=False)


def fetched(x: ShardedTensor, mesh: DeviceMesh) -> ShardedTensor:
    """A tensor that rests, on the devices that compute: itself, where it rests on these."""
    layout, shape = laid_on(x._layout, mesh), tuple(x.shape)
    if layout is x._layout:
        return x
    pieces = _room(layout, shape, x.dtype, x.stride(), is_pinned=False)
    fetch(x, layout, pieces)
    return wrap(pieces, layout, shape, dtype=x.dtype, strides=dense_strides(shape, x.stride()))


def returned(given: Sequence[ShardedTensor], mesh: DeviceMesh) -> list[ShardedTensor]:
    """Tensors on devices that compute, put to rest; those that rest on these stay as they are."""
    if all(x.mesh is mesh for x in given):
        return list(given)
    found = [_returned(x, laid_on(x._layout, mesh)) for x in given]
    settle(x.mesh for x in given if x.mesh != mesh)
    return found


def _returned(x: ShardedTensor, rest: Layout) -> ShardedTensor:
    if rest is x._layout:
        return x
    shape = tuple(x.shape)
    resting = _room(rest, shape, x.dtype, x.stride(), is_pinned=_is_on_accelerator(x.mesh))
    for piece, into in _pairs(x._value.pieces, x._layout, resting, rest, shape):
        into.copy_(piece, non_blocking=True)
    return wrap(resting, rest, shape, dtype=x.dtype, strides=dense_strides(shape, x.stride()))


def settle(meshes: Iterable[DeviceMesh]) -> None:
    """Waits until what is copied to or from the accelerators of meshes is there, so that host memory may be read and written."""
    devices = {device for mesh in set(meshes) for device in residence(mesh).torch_devices if device.type == "cuda"}
    for device in devices if torch.cuda.is_available() else ():
        torch.cuda.current_stream(device).synchronize()


def pin(x: ShardedTensor, mesh: DeviceMesh) -> None:
    """Lets a parameter rest in memory that accelerators read by themselves."""
    if _is_on_accelerator(mesh) and x.device.type == "cpu":
        x._value = value_of(tuple(piece.pin_memory() for piece in current(x)))


def _is_on_accelerator(mesh: DeviceMesh) -> bool:
    return residence(mesh).device.type == "cuda"


def _room(
    layout: Layout, shape: tuple[int, ...], dtype: torch.dtype, strides: Sequence[int], *, is_pinned: bool
) -> Pieces:
    """Memory for a tensor in a layout."""
    here, dense = holding(layout), dense_strides(shape, tuple(strides))
    sizes = here.shapes(shape)
    laid = [dense_strides(own, dense) for own in sizes]
    with moving(layout.mesh):
        return tuple(
            torch.empty_strided(own, each, dtype=dtype, device=device, pin_memory=is_pinned and device.type == "cpu")
            for own, each, device in zip(sizes, laid, here.devices, strict=True)
        )
