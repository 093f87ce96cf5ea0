"""`local_map`: plain torch code on the shards, device by device, with the communication ops usable inside.

The function runs once per device, on plain tensors: what that device holds. A communication op stops it until all
devices have come to the same call; then what they hold, put together as one tensor with the devices as leading dims,
goes through the same op as anywhere else, and each device goes on with its part. Reading a shard and putting shards
together are each other's transpose, so the gradient is that of what was computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import optree
import torch

from ..engine.moves.movement import is_transformed
from ..engine.moves.shards import shards_of
from ..errors import MismatchError
from ..runtime.machine import residence
from ..runtime.processes import world
from ..runtime.processes.agreement.own_faults import of_one_process, tell_others
from ..sharding.mapping import DeviceMapping, NamedMapping
from ..sharding.mesh import DeviceMesh, current_mesh
from ..sharding.spec import Spec, entries_of
from ..tensor.lane import Lane, current_lane, ended_on_error
from ..tensor.movements import redistribute
from ..tensor.tensor import Tensor
from .lane_communication import answered, together
from .replicas import check_replicas
from .untraced import untraced

__all__ = ["axis_index", "local_map"]

Result = TypeVar("Result")


@untraced
def local_map(
    fn: Callable[..., Result],
    in_mappings: Spec | tuple[Spec, ...],
    out_mappings: Spec | tuple[Spec, ...],
    *,
    mesh: DeviceMesh | None = None,
    axes: str | Iterable[str] | None = None,
    check: bool = True,
) -> Callable[..., Result]:
    """A function on whole tensors from one on shards: `fn` runs once per device, on what that device holds.

    One mapping per argument and per result (or one for all); with `mesh=` or inside `mesh_context`, partition specs such
    as `P("tp")` do. `axes` are the mesh axes that `all_gather` and `all_to_all` inside act along, and the reductions
    unless they are given `reduce_axes`; by default all. `check` compares results that are said to be replicated.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> def softmax(x):  # over a dim that is split
    ...     top = weft.all_reduce(x.amax(-1, keepdim=True), "max")
    ...     e = (x - top).exp()
    ...     return e / weft.all_reduce(e.sum(-1, keepdim=True))
    >>> x = torch.randn(2, 8)
    >>> y = weft.local_map(softmax, P(None, "tp"), P(None, "tp"), mesh=mesh)(x)
    >>> torch.allclose(y.full_tensor(), x.softmax(-1))
    True
    """
    mesh = mesh if mesh is not None else _mesh_of(in_mappings, out_mappings)
    inputs, outputs = _mappings(in_mappings, mesh, "in_mappings"), _mappings(out_mappings, mesh, "out_mappings")
    _check_settled(inputs)
    group = _axes(axes, mesh)

    @functools.wraps(fn)
    def run(*args: object, **kwargs: object) -> Result:
        if is_transformed():
            raise RuntimeError(
                "local_map cannot run inside torch.func transforms or forward-mode differentiation, because its function runs in threads "
                "that torch keeps them from: use backward() or torch.autograd, or say the function in ops on whole tensors"
            )
        lanes = [Lane(mesh, slot, group) for slot in residence(mesh).owned]
        with of_one_process():
            if not lanes:
                raise RuntimeError(
                    f"local_map runs the function on the devices of the mesh {mesh}, but process {world.current().process} has none "
                    "of them: call it in the processes that have, or on a mesh of all devices"
                )
            given = _given(args, inputs, len(lanes))
            results = _run(lanes, [functools.partial(fn, *values, **kwargs) for values in given])
            return cast(Result, _joined(results, outputs, lanes, check))

    return run


def axis_index(axis: str) -> int:
    """Inside `local_map`, the index of this device along a mesh axis.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> index = weft.local_map(lambda: torch.tensor([weft.axis_index("tp")]), (), weft.P("tp"), mesh=mesh)
    >>> index().full_tensor()
    tensor([0, 1, 2, 3])
    """
    lane = current_lane()
    if lane is None:
        raise RuntimeError(
            "axis_index says which device runs this code, but outside local_map no single device does: use it inside the function given to local_map"
        )
    return lane.mesh.device_coord(lane.slot, axis)


def _run(lanes: Sequence[Lane], bodies: Sequence[Callable[[], object]]) -> list[object]:
    """Runs the lanes in lockstep: each until it asks for something, then all requests are answered at once."""
    with ThreadPoolExecutor(max(1, len(lanes))) as executor, ended_on_error(lanes):
        for lane, body in zip(lanes, bodies, strict=True):
            lane.start(executor, body)
        answers: Sequence[torch.Tensor | None] = [None] * len(lanes)
        while True:
            for lane, answer in zip(lanes, answers, strict=True):
                lane.go_on(answer)
            waiting = [lane for lane in lanes if lane.request is not None]
            if not waiting:
                return [lane.result() for lane in lanes]
            if len(waiting) < len(lanes):
                done = next(lane for lane in lanes if lane.request is None)
                request = waiting[0].request
                assert request is not None
                error = MismatchError(
                    f"{waiting[0]} waits in {request.op} at {request.call_site}, but {done} has returned: every device must make the same calls"
                )
                tell_others(error)  # between devices of this process, which others do not see
                raise error
            answers = answered(lanes)


def _given(
    args: Sequence[object], mappings: tuple[DeviceMapping, ...] | DeviceMapping, count: int
) -> list[list[object]]:
    """For each lane, the arguments with its shards in place of the tensors."""
    if isinstance(mappings, tuple) and len(mappings) != len(args):
        raise TypeError(
            f"local_map was given {len(mappings)} in_mappings, but the function is called with {len(args)} arguments"
        )
    per_lane: list[list[object]] = [[] for _ in range(count)]
    for i, arg in enumerate(args):
        mapping = mappings[i] if isinstance(mappings, tuple) else mappings
        leaves, tree = _flat(arg)
        split: list[Sequence[object]] = [
            _read(leaf, mapping) if isinstance(leaf, torch.Tensor) else [leaf] * count for leaf in leaves
        ]
        for lane, values in enumerate(per_lane):
            values.append(optree.tree_unflatten(tree, [leaf[lane] for leaf in split]))
    return per_lane


def _read(x: torch.Tensor, mapping: DeviceMapping) -> tuple[torch.Tensor, ...]:
    laid = redistribute(x, mapping, op="local_map")
    assert isinstance(laid, Tensor)
    return shards_of(laid)


def _joined(
    results: Sequence[object], mappings: tuple[DeviceMapping, ...] | DeviceMapping, lanes: Sequence[Lane], check: bool
) -> object:
    """The results of all lanes, put together to whole tensors."""
    if isinstance(mappings, tuple):
        rows: list[tuple[object, ...]] = []
        for lane, result in zip(lanes, results, strict=True):
            if not isinstance(result, tuple) or len(result) != len(mappings):
                got = f"{len(result)} results" if isinstance(result, tuple) else f"a {type(result).__name__}"
                raise TypeError(
                    f"local_map was given {len(mappings)} out_mappings, but the function returned {got} on {lane}"
                )
            rows.append(result)
        columns = zip(*rows, strict=True)
        return tuple(_joined(column, mapping, lanes, check) for column, mapping in zip(columns, mappings, strict=True))
    flat = [_flat(result) for result in results]
    tree = flat[0][1]
    shards: list[list[torch.Tensor]] = [[] for _ in lanes]
    for own, lane, (other, structure) in zip(shards, lanes, flat, strict=True):
        if structure != tree:
            raise TypeError(
                f"local_map: {lane} returned {structure}, but {lanes[0]} returned {tree}: every device must return the same structure"
            )
        for leaf in other:
            if not isinstance(leaf, torch.Tensor) or isinstance(leaf, Tensor):
                raise TypeError(
                    f"local_map: the function must return plain tensors, but returned a {type(leaf).__name__} on {lane}"
                )
            own.append(leaf)
    joined = [_checked(each, mappings, lanes, check) for each in zip(*shards, strict=True)]
    return optree.tree_unflatten(tree, joined)


def _flat(tree: object) -> tuple[list[object], optree.PyTreeSpec]:
    leaves, structure = optree.tree_flatten(cast("optree.PyTree[object]", tree), none_is_leaf=True)
    return leaves, structure


def _checked(shards: Sequence[torch.Tensor], mapping: DeviceMapping, lanes: Sequence[Lane], check: bool) -> Tensor:
    layout = mapping.layout(shards[0].dim())
    if check:
        check_replicas(shards, layout, [lane.slot for lane in lanes])
    return together(shards, mapping)


def _mesh_of(*groups: Spec | tuple[Spec, ...]) -> DeviceMesh:
    for group in groups:
        for spec in group if type(group) is tuple else (group,):
            if isinstance(spec, DeviceMapping):
                return spec.mesh
    mesh = current_mesh()
    if mesh is None:
        raise TypeError(
            "local_map cannot tell the mesh: give mesh=, mappings such as NamedMapping(mesh, P('tp')), or use weft.mesh_context(mesh)"
        )
    return mesh


def _mappings(group: Spec | tuple[Spec, ...], mesh: DeviceMesh, what: str) -> tuple[DeviceMapping, ...] | DeviceMapping:
    """One mapping, or one for each argument or result; a plain tuple is several, a `P` is one."""
    if type(group) is tuple:
        return tuple(_mapping(spec, mesh, what) for spec in group)
    return _mapping(cast(Spec, group), mesh, what)


def _mapping(spec: Spec, mesh: DeviceMesh, what: str) -> DeviceMapping:
    if isinstance(spec, DeviceMapping):
        if spec.mesh != mesh:
            raise ValueError(
                f"the {what} of local_map name two meshes, {mesh} and {spec.mesh}: use mapping.to_mesh(mesh)"
            )
        return spec
    return NamedMapping(mesh, entries_of(spec))


def _check_settled(mappings: tuple[DeviceMapping, ...] | DeviceMapping) -> None:
    for mapping in mappings if isinstance(mappings, tuple) else (mappings,):
        if not mapping.is_settled:
            raise ValueError(
                f"local_map cannot read {mapping!r}: contributions to a pending reduction have no value of their own. Take the input resolved (all_reduce), or split"
            )


def _axes(axes: str | Iterable[str] | None, mesh: DeviceMesh) -> tuple[str, ...]:
    if axes is None:
        return mesh.axis_names
    names = {axes} if isinstance(axes, str) else set(axes)
    for name in names:
        mesh.axis_index(name)
    return tuple(axis for axis in mesh.axis_names if axis in names)
