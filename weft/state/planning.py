"""`plan_state`: what it takes to bring a state into other layouts, dtypes and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import final

import torch

from ..caches import cached
from ..engine.form import Form
from ..engine.moves.movement import layout_of
from ..engine.sharded import ShardedTensor
from ..nn.patterns import Patterns
from ..planning import Topology, current_topology, plan_layouts
from ..planning.states import Passage, StateEntry, StatePlan
from ..planning.states.passage import Position
from ..sharding.geometry import resized
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping, NamedMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.spec import Spec
from ..sharding.types import TensorLayout
from .flattening import FlatState, flat_state
from .renaming import Names, Renamed, Side, renamed
from .staging import staged_plan

__all__ = ["BUCKET", "Leaf", "Mappings", "PlannedState", "StateQuestion", "Wanted", "plan_state", "planned"]

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
@dataclass(frozen=True, slots=True)
class Wanted:
    """What a new tensor is to be."""

    layout: Layout
    mapping: DeviceMapping | None
    dtype: torch.dtype


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
class Leaf:
    """What a plan has to know of a tensor."""

    layout: Layout | None
    """None: it is plain, and counts as whole everywhere."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    first: int
    """Which tensor of the state it is: tied ones are one."""
    _hash: int = field(init=False, repr=False, compare=False)
    """States are long, and looked up often."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.layout, self.shape, self.dtype, self.first)))

    def __hash__(self) -> int:
        return self._hash

    def on(self, mesh: DeviceMesh) -> Layout:
        """Its layout; of a plain one, on the mesh that it goes to."""
        return Layout.replicated(mesh, len(self.shape)) if self.layout is None else self.layout


Leaves = tuple[tuple[str, Leaf], ...]
"""The tensors of a state, in order."""


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
    old, there = _leaves(state), None if into is None else _leaves(into)
    rows = None if names is None else tuple(names.items())
    links = None if verify or into is not None else current_topology()
    if mappings is None or isinstance(mappings, (DeviceMapping, Mapping)):
        said = _listed(mappings) if isinstance(mappings, Mapping) else mappings
        return _answer(StateQuestion(old, there, said, dtype, rows, mesh, bucket, links))
    return _answered(StateQuestion(old, there, None, dtype, rows, mesh, bucket, links), _Given(mappings))


def _listed(patterns: Mapping[str, Spec]) -> tuple[tuple[str, Spec], ...]:
    return tuple((pattern, tuple(spec) if isinstance(spec, list) else spec) for pattern, spec in patterns.items())


def _leaves(state: FlatState) -> Leaves:
    seen: dict[object, int] = {}
    return tuple(
        (name, _leaf(leaf, seen.setdefault(id(leaf) if isinstance(leaf, torch.Tensor) else name, len(seen))))
        for name, leaf in state.leaves.items()
        if isinstance(leaf, (torch.Tensor, TensorLayout))
    )


@cached(1 << 14)
def _leaf_of(form: Form, first: int) -> Leaf:
    return Leaf(form.layout, form.shape, form.dtype, first)


def _leaf(leaf: torch.Tensor | TensorLayout, first: int) -> Leaf:
    if isinstance(leaf, ShardedTensor) and not leaf._form.is_open:
        return _leaf_of(leaf._form, first)
    if isinstance(leaf, TensorLayout):
        shape = tuple(map(int, leaf.shape))
        return Leaf(leaf.mapping.layout(len(shape)), shape, getattr(torch, leaf.dtype.name), first)
    if leaf.layout is not torch.strided:
        raise TypeError(
            f"only dense tensors are moved, but one of shape {tuple(leaf.shape)} is {leaf.layout}: give x.to_dense()"
        )
    return Leaf(layout_of(leaf), tuple(leaf.shape), leaf.dtype, first)


@cached(64)
def _answer(question: StateQuestion) -> PlannedState:
    said = question.mappings
    if said is None:
        return _answered(question, None)
    if isinstance(said, DeviceMapping):
        return _answered(question, _Given(lambda _: said))
    patterns = Patterns(_mesh_of(dict(said), question.mesh), dict(said))
    new = [name for row in renamed(question.names, [name for name, _ in question.old]) for name in row.new]
    patterns.check_used(new, "tensor of this state")
    return _answered(question, _Given(patterns.mapping))


def _answered(question: StateQuestion, given: _Given | None) -> PlannedState:
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
        for name, shape, parts in _made(row, leaves, into):
            there = None if into is None else into[name]
            want = wanted[name] = _wanted(name, shape, _dtype(name, row, leaves, dtype, there), dtype, given, there)
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


@final
class _Given:
    """Which mapping the new tensor of a name gets; a scalar is the same everywhere."""

    def __init__(self, mappings: Callable[[str], DeviceMapping]) -> None:
        if not callable(mappings):
            raise TypeError(
                f"mappings are one mapping, a dict of name patterns, or a function of a name, but got {mappings!r}: "
                "use NamedMapping(mesh, P(...))"
            )
        self._mappings = mappings

    def __call__(self, name: str, shape: tuple[int, ...]) -> DeviceMapping:
        mapping = self._mappings(name)
        if not isinstance(mapping, DeviceMapping):
            raise TypeError(f"{name!r} needs a mapping, but got {mapping!r}: use NamedMapping(mesh, P(...))")
        return mapping if shape else NamedMapping(mapping.mesh, ())


def _mesh_of(patterns: Mapping[str, Spec], mesh: DeviceMesh | None) -> DeviceMesh:
    meshes = [spec.mesh for spec in patterns.values() if isinstance(spec, DeviceMapping)]
    if mesh is None and not meshes:
        raise TypeError(
            f"the patterns {list(patterns)} give specs, but no mesh: give mesh=, or mappings such as NamedMapping(mesh, P(...))"
        )
    return meshes[0] if mesh is None else mesh


_Parts = list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""What a new tensor is made of: an old name, where a region begins there and in the new one, and its shape."""


def _made(
    row: Renamed, leaves: Mapping[str, Leaf], into: Mapping[str, Leaf] | None
) -> Iterable[tuple[str, tuple[int, ...], _Parts]]:
    """The new tensors of a row: names, shapes and what they are made of."""
    shapes = [leaves[name].shape for name in row.old]
    if len(row.new) == len(row.old) == 1:
        nowhere = (0,) * len(shapes[0])
        yield row.new[0], shapes[0], [(row.old[0], nowhere, nowhere, shapes[0])]
        return
    dim = _dim(row, shapes[0])
    if len(row.new) == 1:
        _check_fits(row, shapes, dim)
        whole = resized(shapes[0], dim, sum(shape[dim] for shape in shapes))
        starts = [0, *accumulate(shape[dim] for shape in shapes)]
        yield (
            row.new[0],
            whole,
            [
                (old, (0,) * len(whole), _at(whole, dim, start), shape)
                for old, start, shape in zip(row.old, starts, shapes, strict=False)
            ],
        )
        return
    sizes = _sizes(row, shapes[0][dim], dim, into)
    starts = [0, *accumulate(sizes)]
    for new, start, size in zip(row.new, starts, sizes, strict=False):
        shape = resized(shapes[0], dim, size)
        yield new, shape, [(row.old[0], _at(shape, dim, start), (0,) * len(shape), shape)]


def _dtype(
    name: str, row: Renamed, leaves: Mapping[str, Leaf], asked: torch.dtype | None, into: Leaf | None
) -> torch.dtype:
    """The dtype of what a new tensor is made of; parts may differ where it is said which they are to have."""
    dtypes = dict.fromkeys(leaves[old].dtype for old in row.old)
    if len(dtypes) > 1 and not ((asked or into) and all(each.is_floating_point for each in dtypes)):
        listed = ", ".join(f"{old!r} {leaves[old].dtype}" for old in row.old)
        raise TypeError(
            f"{name!r} is put together of several dtypes: {listed}. Floating-point ones become one where dtype= or into= says which; "
            "cast the others first"
        )
    return next(iter(dtypes))


def _dim(row: Renamed, shape: tuple[int, ...]) -> int:
    if not -len(shape) <= row.dim < len(shape):
        raise ValueError(f"{row.old[0]!r} of shape {shape} has no dim {row.dim} along which {row.new} is put together")
    return row.dim % len(shape)


def _check_fits(row: Renamed, shapes: list[tuple[int, ...]], dim: int) -> None:
    kinds = {resized(shape, dim, 0) if len(shape) > dim else shape for shape in shapes}
    if len(kinds) > 1:
        listed = ", ".join(f"{name!r} {shape}" for name, shape in zip(row.old, shapes, strict=True))
        raise ValueError(f"{row.new[0]!r} cannot be put together along dim {dim}: its parts differ elsewhere: {listed}")


def _sizes(row: Renamed, size: int, dim: int, into: Mapping[str, Leaf] | None) -> list[int]:
    """How large the parts of a fused tensor are: as said, as they are where they go to, or all the same."""
    if row.sizes is not None:
        sizes = list(row.sizes)
    elif into is not None:
        sizes = [into[name].shape[dim] for name in row.new]
    elif size % len(row.new):
        raise ValueError(
            f"dim {dim} of {row.old[0]!r} has the size {size}, which is not {len(row.new)} equal parts: give Fused(names, sizes=...)"
        )
    else:
        sizes = [size // len(row.new)] * len(row.new)
    if sum(sizes) != size:
        raise ValueError(
            f"dim {dim} of {row.old[0]!r} has the size {size}, but its parts {row.new} have {sizes}: they add up to {sum(sizes)}"
        )
    return sizes


def _at(shape: tuple[int, ...], dim: int, start: int) -> tuple[int, ...]:
    return tuple(start if each == dim else 0 for each in range(len(shape)))


def _check_names(names: list[str], into: Mapping[str, Leaf]) -> None:
    for missing, where in ((set(names) - set(into), "into"), (set(into) - set(names), "the state")):
        if missing:
            listed = ", ".join(map(repr, sorted(missing)[:8]))
            raise ValueError(
                f"what is written to has the names of the state, but {where} has no {listed}: rename with names={{new: old}}, or leave them out"
            )


def _wanted(
    name: str,
    shape: tuple[int, ...],
    old: torch.dtype,
    dtype: torch.dtype | None,
    given: _Given | None,
    into: Leaf | None,
) -> Wanted:
    if into is not None:
        return _existing(name, shape, old, dtype, given, into)
    assert given is not None
    mapping = given(name, shape)
    try:
        layout = mapping.layout(len(shape))
    except ValueError as error:
        raise ValueError(f"the mapping of {name!r} does not fit its shape {shape}: {error}") from error
    return Wanted(layout, mapping, dtype if dtype is not None and old.is_floating_point else old)


def _existing(
    name: str,
    shape: tuple[int, ...],
    old: torch.dtype,
    dtype: torch.dtype | None,
    given: _Given | None,
    into: Leaf,
) -> Wanted:
    """A tensor that is there is written to as it is."""
    layout = into.layout
    if layout is None:
        raise TypeError(
            f"only sharded tensors are written to, but {name!r} of into is a plain one: weft.shard it first"
        )
    if into.shape != shape:
        raise ValueError(f"{name!r} has the shape {shape}, but into has {into.shape} there: give one of that shape")
    if into.dtype is not old and not (into.dtype.is_floating_point and old.is_floating_point):
        raise TypeError(
            f"{name!r} is {old}, but into has {into.dtype} there, and only floating-point dtypes are cast: give one of that dtype"
        )
    if dtype is not None and old.is_floating_point and into.dtype is not dtype:
        raise TypeError(f"{dtype} was asked for, but {name!r} of into is {into.dtype}: leave dtype out")
    if given is not None and given(name, shape).layout(len(shape)) is not layout:
        raise ValueError(f"another layout was given for {name!r} than into has, {layout}: leave mappings out")
    return Wanted(layout, None, into.dtype)


def _entry(
    name: str,
    shape: tuple[int, ...],
    parts: _Parts,
    leaves: Mapping[str, Leaf],
    want: Wanted,
    topology: Topology | None,
) -> StateEntry:
    mesh = want.layout.mesh
    sources = tuple(old for old, *_ in parts)
    widths = [leaves[old].dtype.itemsize for old in sources]
    layouts = [leaves[old].on(mesh) for old in sources]
    if any(layout.pending for layout in (*layouts, want.layout)):
        if len(parts) > 1 or parts[0][3] != leaves[sources[0]].shape:
            raise ValueError(
                f"{name!r} is made of {', '.join(map(repr, sources))}, where a reduction is pending: resolve it first, "
                "by weft.all_reduce or weft.reduce_scatter"
            )
        plan = plan_layouts(layouts[0], want.layout, shape, widths[0])
        return StateEntry(name, sources, (), plan, widths[0], want.dtype.itemsize)
    if topology is not None and len(parts) == 1 and parts[0][3] == leaves[sources[0]].shape == shape:
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
