"""`plan_state`: what it takes to bring a state into other layouts, dtypes and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from ..caches import cached
from ..nn.patterns import Patterns
from ..planning import Topology, current_topology, plan_layouts
from ..planning.states import Passage, StateEntry, StatePlan
from ..planning.states.passage import Position
from ..sharding.mapping import DeviceMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.spec import Spec
from .flattening import FlatState, flat_state
from .leaves import Leaf, Leaves, leaves_of
from .new_tensors import SourceRegion, common_dtype, new_tensors
from .renaming import Names, Side, renamed
from .staging import staged_plan
from .wanted import GivenMappings, Wanted, wanted_tensor

__all__ = ["BUCKET", "Mappings", "PlannedState", "StateQuestion", "plan_state", "planned"]

BUCKET = 16 << 20
"""The most bytes that go from a process to another at once, where nothing else is said."""

Mappings = DeviceMapping | Mapping[str, Spec] | Callable[[str], DeviceMapping]
"""One mapping for all tensors, name patterns and what each gives, or a function from a name to its mapping."""


def plan_state(
    state: object,
    mappings: Mappings | None = None,
    dtype: torch.dtype | None = None,
    *,
    into: object = None,
    names: Names | None = None,
    mesh: DeviceMesh | None = None,
    verify: bool = False,
    bucket: int = BUCKET,
) -> StatePlan:
    """What `transfer_state` with the same arguments would move, without moving it.

    The leaves of `state` may also be of `TensorLayout`: a plan needs shapes, dtypes and mappings, no memory.

    >>> import torch, weft
    >>> from weft import NamedMapping, P, TensorLayout
    >>> trainer, server = weft.make_mesh({"fsdp": 512}), weft.make_mesh({"tp": 128})
    >>> weight = TensorLayout("bfloat16", (8192, 28672), NamedMapping(trainer, P("fsdp")))
    >>> plan = weft.plan_state({f"layers.{i}.up": weight for i in range(80)}, NamedMapping(server, P(None, "tp")))
    >>> plan.bytes_received.total == plan.lower_bound.total, plan.bytes_received.max >> 20
    (True, 279)
    """
    there, old = None if into is None else flat_state(into, "plan_state"), flat_state(state, "plan_state")
    return planned("plan_state", old, mappings, dtype, there, names, mesh, bucket, verify=verify).plan


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlannedState:
    """A plan, and what becomes of each name. Answers to one question are one object, and told apart as such."""

    plan: StatePlan
    wanted: Mapping[str, Wanted]
    same: Mapping[str, str]
    """New names of tensors that are one with another: tied ones."""


@final
@dataclass(frozen=True, slots=True)
class StateQuestion:
    """All that a plan depends on; calls that ask the same get the plan that was made before."""

    old: Leaves
    into: Leaves | None
    mappings: DeviceMapping | tuple[tuple[str, Spec], ...] | None
    dtype: torch.dtype | None
    names: tuple[tuple[Side, Side], ...] | None
    mesh: DeviceMesh | None
    bucket: int
    topology: Topology | None
    """By which large tensors may go through hosts, unless all go in messages: those that are checked, or written to."""


def planned(
    op: str,
    state: FlatState,
    mappings: Mappings | None,
    dtype: torch.dtype | None,
    into: FlatState | None,
    names: Names | None,
    mesh: DeviceMesh | None,
    bucket: int,
    *,
    verify: bool,
) -> PlannedState:
    """The plan of a call, everything about it checked."""
    if mappings is None and into is None:
        raise TypeError(f"{op} needs mappings, or a state to write to: give a mapping, {{pattern: mapping}}, or into=")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"{op} takes a torch.dtype, but got {dtype!r}: use torch.bfloat16")
    if isinstance(bucket, bool) or not isinstance(bucket, int) or bucket < 16:
        raise ValueError(f"a bucket has 16 bytes or more, but got {bucket!r}")
    if names is not None and not isinstance(names, Mapping):
        raise TypeError(f"names are a dict of new names and old ones, but got {names!r}: use {{'new': 'old'}}")
    old, there = leaves_of(state), None if into is None else leaves_of(into)
    rows = None if names is None else tuple(names.items())
    links = None if verify or into is not None else current_topology()
    if mappings is None or isinstance(mappings, (DeviceMapping, Mapping)):
        said = _listed(mappings) if isinstance(mappings, Mapping) else mappings
        return _answer(StateQuestion(old, there, said, dtype, rows, mesh, bucket, links))
    return _answered(StateQuestion(old, there, None, dtype, rows, mesh, bucket, links), GivenMappings(mappings))


def _listed(patterns: Mapping[str, Spec]) -> tuple[tuple[str, Spec], ...]:
    return tuple((pattern, tuple(spec) if isinstance(spec, list) else spec) for pattern, spec in patterns.items())


@cached(64)
def _answer(question: StateQuestion) -> PlannedState:
    said = question.mappings
    if said is None:
        return _answered(question, None)
    if isinstance(said, DeviceMapping):
        return _answered(question, GivenMappings(lambda _: said))
    patterns = Patterns(_mesh_of(dict(said), question.mesh), dict(said))
    new = [name for row in renamed(question.names, [name for name, _ in question.old]) for name in row.new]
    patterns.check_used(new, "tensor of this state")
    return _answered(question, GivenMappings(patterns.mapping))


def _answered(question: StateQuestion, given: GivenMappings | None) -> PlannedState:
    leaves, dtype = dict(question.old), question.dtype
    rows = renamed(question.names, list(leaves))
    into = None if question.into is None else dict(question.into)
    if into is not None:
        _check_names([name for row in rows for name in row.new], into)
    found: dict[object, str] = {}
    same: dict[str, str] = {}
    wanted: dict[str, Wanted] = {}
    entries: list[StateEntry] = []
    for row in rows:
        for name, shape, parts in new_tensors(row, leaves, into):
            there = None if into is None else into[name]
            want = wanted[name] = wanted_tensor(
                name, shape, common_dtype(name, row, leaves, dtype, there), dtype, given, there
            )
            ties = tuple((leaves[old].first, *at) for old, *at in parts)
            key = (ties, want.layout, want.dtype, None if there is None else there.first)
            if found.setdefault(key, name) != name:
                same[name] = found[key]
                continue
            entries.append(_entry(name, shape, parts, leaves, want, question.topology))
    return PlannedState(_plan(tuple(entries), question.bucket), wanted, same)


@cached(64)
def _plan(entries: tuple[StateEntry, ...], bucket: int) -> StatePlan:
    """The plan of these entries; what is looked up by it is found without comparing all of them."""
    return StatePlan(entries, bucket)


def _mesh_of(patterns: Mapping[str, Spec], mesh: DeviceMesh | None) -> DeviceMesh:
    meshes = [spec.mesh for spec in patterns.values() if isinstance(spec, DeviceMapping)]
    if mesh is None and not meshes:
        raise TypeError(
            f"the patterns {list(patterns)} give specs, but no mesh: give mesh=, or mappings such as NamedMapping(mesh, P(...))"
        )
    return meshes[0] if mesh is None else mesh


def _check_names(names: list[str], into: Mapping[str, Leaf]) -> None:
    for missing, where in ((set(names) - set(into), "into"), (set(into) - set(names), "the state")):
        if missing:
            listed = ", ".join(map(repr, sorted(missing)[:8]))
            raise ValueError(
                f"what is written to has the names of the state, but {where} has no {listed}: rename with names={{new: old}}, or leave them out"
            )


def _entry(
    name: str,
    shape: tuple[int, ...],
    parts: Sequence[SourceRegion],
    leaves: Mapping[str, Leaf],
    want: Wanted,
    topology: Topology | None,
) -> StateEntry:
    mesh = want.layout.mesh
    sources = tuple(part.old for part in parts)
    widths = [leaves[old].dtype.itemsize for old in sources]
    layouts = [leaves[old].on(mesh) for old in sources]
    if any(layout.pending for layout in (*layouts, want.layout)):
        if len(parts) > 1 or parts[0].shape != leaves[sources[0]].shape:
            raise ValueError(
                f"{name!r} is made of {', '.join(map(repr, sources))}, where a reduction is pending: resolve it first, "
                "by weft.all_reduce or weft.reduce_scatter"
            )
        plan = plan_layouts(layouts[0], want.layout, shape, widths[0])
        return StateEntry(name, sources, (), plan, widths[0], want.dtype.itemsize)
    if topology is not None and len(parts) == 1 and parts[0].shape == leaves[sources[0]].shape == shape:
        through_hosts = staged_plan(layouts[0], want.layout, shape, min(widths[0], want.dtype.itemsize), topology)
        if through_hosts is not None:
            return StateEntry(name, sources, (), through_hosts, widths[0], want.dtype.itemsize)
    passages = tuple(
        Passage(
            Position(layout, leaves[old].shape, there),
            Position(want.layout, shape, here),
            sizes,
            min(width, want.dtype.itemsize),
        )
        for (old, there, here, sizes), layout, width in zip(parts, layouts, widths, strict=True)
    )
    return StateEntry(name, sources, passages, None, widths[0], want.dtype.itemsize)
