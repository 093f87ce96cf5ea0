"""From global shapes to the shapes of shards, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TypeGuard, cast

from .dims import Dim, DimLike, Shape, ShapeLike, SymbolicDim, piece_size, whole_size
from .layout import Layout
from .mapping import PlacementMapping
from .mesh import DeviceMesh
from .placements import Placement, Sharded

__all__ = ["global_shape_from_local", "local_shapes", "local_shard_shape_from_global", "shard_shape"]


def shard_shape(global_shape: ShapeLike, placements: Iterable[Placement], mesh_shape: Iterable[int]) -> Shape:
    """The shape of one representative shard: every split size is divided, rounded down.

    `local_shard_shape_from_global` says what each device really holds of a size that does not divide evenly.

    >>> shard_shape([10, "batch"], [Sharded(0), Sharded(1)], [4, 2])
    Shape([2, 'batch // 2'])
    """
    dims = list(Shape(global_shape))
    placements, mesh_shape = tuple(placements), tuple(mesh_shape)
    if len(placements) != len(mesh_shape):
        raise ValueError(
            f"shard_shape needs one placement per mesh axis: mesh_shape {mesh_shape!r} has {len(mesh_shape)}, "
            f"but got {len(placements)} in {placements!r}; use Replicated() for an axis that splits nothing"
        )
    for axis, (placement, size) in enumerate(zip(placements, mesh_shape, strict=True)):
        _check_axis(axis, placement, size)
        if isinstance(placement, Sharded):
            dim = placement.dim(len(dims), axis)
            dims[dim] = dims[dim] // size
    return Shape(dims)


def local_shard_shape_from_global(
    global_shape: ShapeLike, mesh: DeviceMesh, placements: Iterable[Placement]
) -> tuple[Shape, ...]:
    """The shape that each device holds, in row-major mesh order.

    Splits are balanced: the first shards get one more, axis by axis. A size that is a name gets a name per mesh axis,
    which stands for the size on the device that reads it; arithmetic on names is cut exactly.

    >>> from weft.sharding import make_mesh
    >>> local_shard_shape_from_global([10], make_mesh({"dp": 4}), [Sharded(0)])
    (Shape([3]), Shape([3]), Shape([2]), Shape([2]))
    >>> local_shard_shape_from_global(["batch", 8], make_mesh({"dp": 2}), [Sharded(0)])[1]
    Shape(['batch_dp', 8])
    """
    shape = Shape(global_shape)
    return local_shapes(PlacementMapping(mesh, placements).layout(shape.rank), shape)


def local_shapes(layout: Layout, shape: Shape) -> tuple[Shape, ...]:
    """The shape that each slot holds of a tensor in this layout.

    >>> from weft.sharding import make_mesh
    >>> local_shapes(Layout(make_mesh({"dp": 2}), [["dp"]]), Shape([5]))
    (Shape([3]), Shape([2]))
    """
    mesh = layout.mesh
    # A dim is cut once for each place along the axes that split it, not once for each device.
    cuts = [_cut(dim, mesh, axes) for dim, axes in zip(shape, layout.splits, strict=True)]
    indices = [[mesh.index_of[axis] for axis in axes] for axes in layout.splits]
    used = sorted({index for along in indices for index in along})
    found: dict[tuple[int, ...], Shape] = {}
    result = []
    for coords in product(*map(range, mesh.mesh_shape)):
        key = tuple(coords[i] for i in used)
        if key not in found:
            places = (tuple(coords[i] for i in along) for along in indices)
            found[key] = Shape(cut[place] for cut, place in zip(cuts, places, strict=True))
        result.append(found[key])
    return tuple(result)


def global_shape_from_local(
    local_shape: ShapeLike | Sequence[ShapeLike], mesh: DeviceMesh, placements: Iterable[Placement]
) -> Shape:
    """The global shape, from the shape of the first shard or from the shapes of all shards.

    The first shard is the largest. Where it is all that is known, the global size is the largest one that it can
    belong to, which is exact when the split is even; in any case the first shard of the result has the given shape.
    The shapes of all devices, in mesh order, give the exact global shape, or an error where no balanced split has them.

    >>> from weft.sharding import make_mesh
    >>> mesh = make_mesh({"dp": 4})
    >>> global_shape_from_local([3, "batch"], mesh, [Sharded(0)])
    Shape([12, 'batch'])
    >>> global_shape_from_local(["batch_dp"], mesh, [Sharded(0)])
    Shape(['batch'])
    >>> global_shape_from_local([[3], [3], [2], [2]], mesh, [Sharded(0)])
    Shape([10])
    """
    mapping = PlacementMapping(mesh, placements)
    if isinstance(local_shape, str):
        raise TypeError(f"a shape is a sequence of dims, but got {local_shape!r}: use [{local_shape!r}]")
    known = list(local_shape)
    if _are_shapes(known):
        return _joined(mapping, [Shape(one) for one in known])
    local = Shape(cast("list[DimLike]", known))
    layout = mapping.layout(local.rank)
    return Shape(_whole(dim, mesh, axes) for dim, axes in zip(local, layout.splits, strict=True))


def _are_shapes(values: Sequence[object]) -> TypeGuard[Sequence[ShapeLike]]:
    return bool(values) and all(isinstance(value, (tuple, list)) for value in values)


def _joined(mapping: PlacementMapping, shapes: Sequence[Shape]) -> Shape:
    mesh, rank = mapping.mesh, shapes[0].rank
    if len(shapes) != mesh.num_devices:
        raise ValueError(
            f"the mesh {mesh} has {mesh.num_devices} devices, but got {len(shapes)} local shapes: "
            "give one shape per device, or the first device's alone"
        )
    layout = mapping.layout(rank)
    for device, shape in enumerate(shapes):
        if shape.rank != rank:
            raise ValueError(f"device {device} holds {shape}, but device 0 {shapes[0]}: shards have the same rank")
    sizes = []
    for dim, axes in enumerate(layout.splits):
        # One line of devices that holds the whole dim: those that differ only along its axes.
        along = mesh.groups(axes)[0] if axes else (0,)
        pieces = [shapes[slot][dim] for slot in along]
        named = isinstance(pieces[0], SymbolicDim) and _stripped(pieces[0], mesh, axes) is not None
        sizes.append(_whole(pieces[0], mesh, axes) if named else sum(pieces[1:], pieces[0]))
    whole = Shape(sizes)
    for device, (given, expected) in enumerate(zip(shapes, local_shapes(layout, whole), strict=True)):
        if given != expected:
            raise ValueError(
                f"device {device} holds {given}, but a balanced split of {whole} over the mesh {mesh} "
                f"gives it {expected}: the first shards get one more, axis by axis"
            )
    return whole


def _cut(dim: Dim, mesh: DeviceMesh, axes: tuple[str, ...]) -> dict[tuple[int, ...], Dim]:
    """The size of a dim at each place along the axes that split it."""
    sizes: dict[tuple[int, ...], Dim] = {(): dim}
    for axis in axes:
        count = mesh.axis_size(axis)
        if isinstance(dim, SymbolicDim):
            sizes = {
                (*place, i): size if count == 1 else SymbolicDim(f"{size}{_suffix(axis)}")
                for place, size in sizes.items()
                for i in range(count)
            }
        else:
            sizes = {(*place, i): piece_size(size, count, i) for place, size in sizes.items() for i in range(count)}
    return sizes


def _whole(dim: Dim, mesh: DeviceMesh, axes: tuple[str, ...]) -> Dim:
    """The dim whose first shard is this one."""
    if isinstance(dim, SymbolicDim):
        stripped = _stripped(dim, mesh, axes)
        if stripped is not None:
            return stripped
    for axis in reversed(axes):
        dim = whole_size(dim, mesh.axis_size(axis))
    return dim


def _stripped(dim: SymbolicDim, mesh: DeviceMesh, axes: tuple[str, ...]) -> SymbolicDim | None:
    """The dim that these axes cut into one of this name, where the name says so."""
    suffix = "".join(_suffix(axis) for axis in axes if mesh.axis_size(axis) > 1)
    name = dim.name.removesuffix(suffix)
    return SymbolicDim(name) if suffix and name != dim.name and name.isidentifier() else None


def _suffix(axis: str) -> str:
    # Mesh axes may have any name, dims are named like variables.
    return "_" + "".join(sign if sign.isidentifier() or sign.isdecimal() else "_" for sign in axis)


def _check_axis(axis: int, placement: object, size: object) -> None:
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"the size of mesh axis {axis} is a whole number, but got {size!r}: use for instance 2")
    if size < 1:
        raise ValueError(
            f"mesh axis {axis} has size {size}: every axis needs size 1 or more, so drop it or set it to 1"
        )
    if not isinstance(placement, Placement):
        raise TypeError(f"a placement is Replicated(), Sharded(axis) or Partial(reduce_op), but got {placement!r}")
