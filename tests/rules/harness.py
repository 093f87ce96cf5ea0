"""The law of all rules: in any layout, in both memory modes, an op gives what plain torch gives, forward and backward."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import product

import torch

import weft
from weft.engine.sharded import wrap
from weft.runtime.holding import holding
from weft.runtime.machine import ownership, use_separate_memory
from weft.runtime.run import scatter
from weft.sharding.geometry import box_at, box_shape
from weft.sharding.layout import Layout
from weft.sharding.mesh import DeviceMesh, make_mesh
from weft.sharding.placements import ReduceOp
from weft.tensor.tensor import Tensor

LINE = make_mesh({"x": 3})
GRID = make_mesh({"a": 2, "b": 2})
MESHES = (LINE, GRID)

Function = Callable[..., object]


@contextmanager
def memory(separate: bool) -> Iterator[None]:
    """One memory for all devices, or one for each, inside the block."""
    before = ownership.separate_memory
    use_separate_memory(separate)
    try:
        yield
    finally:
        use_separate_memory(before)


@lru_cache(maxsize=256)
def layouts(mesh: DeviceMesh, rank: int, pending: bool = True) -> tuple[Layout, ...]:
    """Every layout of a tensor of this rank: each axis splits a dim, is replicated, or holds a pending sum.

    Two axes on one dim stand in both orders.
    """
    found: dict[Layout, None] = {}
    choices = ["replicated", *range(rank), *(["pending"] if pending else [])]
    for picked in product(choices, repeat=len(mesh.axis_names)):
        of = dict(zip(mesh.axis_names, picked, strict=True))
        waiting = {axis: ReduceOp.SUM for axis, what in of.items() if what == "pending"}
        for names in (mesh.axis_names, mesh.axis_names[::-1]):
            found[Layout(mesh, [[axis for axis in names if of[axis] == d] for d in range(rank)], waiting)] = None
    return tuple(found)


def combinations(
    mesh: DeviceMesh, tensors: Sequence[torch.Tensor], limit: int, pending: bool
) -> list[tuple[Layout, ...]]:
    """Every combination of the inputs' layouts, or `limit` of them, the replicated one first.

    On one axis, each layout of each input occurs.
    """
    options = [layouts(mesh, x.dim(), pending and x.dtype is not torch.bool) for x in tensors]
    if math.prod(map(len, options)) <= limit:
        return list(product(*options))
    chooser = random.Random(f"{mesh} {[tuple(x.shape) for x in tensors]} {limit}")
    shuffled = [chooser.sample(some, len(some)) for some in options]
    count = max(limit, *map(len, options)) if len(mesh.axis_names) == 1 else limit
    chosen = [tuple(some[k] if k < len(some) else chooser.choice(some) for some in shuffled) for k in range(count)]
    if len(mesh.axis_names) > 1:
        chosen[0] = tuple(Layout.replicated(mesh, x.dim()) for x in tensors)
    return chosen


def laid(x: torch.Tensor, layout: Layout, seed: int = 0, *, exact: bool = False) -> Tensor:
    """A plain tensor in a layout; where it is pending, every device contributes something.

    `exact`: the contributions are multiples of the value, whose sum is the value to the last bit.
    """
    x = x.detach()
    if not layout.pending:
        whole = x.clone()
        plain = (whole,) if holding(layout).unified else scatter(x, layout)
        return wrap(plain, layout, x.shape, dtype=x.dtype, strides=whole.stride())
    here = holding(layout)
    generator = torch.Generator().manual_seed(seed)
    index = [layout.mesh.index_of[axis] for axis in layout.pending_axes]
    places = list(product(*(range(layout.mesh.mesh_shape[i]) for i in index)))
    parts: dict[tuple[int, ...], torch.Tensor] = {}
    rest = x.clone()
    for at in places[1:]:
        noise = torch.randint(-3, 4, x.shape, generator=generator).to(x.dtype)
        parts[at] = noise
        rest = rest - noise
    parts[places[0]] = rest
    if exact:
        whole, nothing = torch.isfinite(x), torch.zeros_like(x)
        parts = {
            at: torch.where(whole, x * factor, x if at is places[0] else nothing)
            for at, factor in zip(places, _factors(len(places)), strict=True)
        }
    pieces = []
    for piece in range(here.count):
        part = parts[tuple(here.coords[piece][i] for i in index)]
        pieces.append(part[tuple(slice(*side) for side in here.box(piece, x.shape))].clone())
    return wrap(tuple(pieces), layout, x.shape, dtype=x.dtype)


def _factors(count: int) -> list[int]:
    """Numbers that add up to 1, in order and without rounding when they multiply the same value."""
    first = [2, -2, 1] if count % 2 else [2, -1]
    return [*first, *[-1, 1] * ((count - len(first)) // 2)]


def assert_sound(x: Tensor) -> None:
    """The pieces of a tensor are as many, and as large, as its layout says."""
    here = holding(x._layout)
    assert len(x._value.pieces) == here.count, f"{len(x._value.pieces)} pieces for {x._layout}, which has {here.count}"
    for i, piece in enumerate(x._value.pieces):
        assert tuple(piece.shape) == here.piece_shape(i, x.shape), (
            f"piece {i} of {x.shape} in {x._layout}: {piece.shape}"
        )
        assert piece.dtype == x.dtype
    for slot, shard in zip(here.residence.owned, x.local_shards, strict=True):
        assert tuple(shard.shape) == box_shape(box_at(x._layout, x.shape, x._layout.mesh.coords(slot)))


def check(
    function: Function,
    *tensors: torch.Tensor,
    grad: bool = True,
    pending: bool = True,
    limit: int = 6,
    meshes: Sequence[DeviceMesh] = MESHES,
    rtol: float = 1e-9,
    atol: float = 1e-9,
) -> None:
    """A function of tensors equals plain torch in every layout of every input, forward and in its gradients.

    `limit` bounds the combinations per mesh. `pending=False` leaves out layouts with a pending sum (for values that
    rounding would change, such as exact ties).
    """
    expected = _run(function, [x.clone() for x in tensors], grad, None)
    for separate in (False, True):
        with memory(separate):
            for mesh in meshes:
                for k, chosen in enumerate(combinations(mesh, tensors, limit, pending)):
                    told = f"{[tuple(x.shape) for x in tensors]} in {list(map(str, chosen))} on {mesh}, {'separate' if separate else 'one'} memory"
                    given = [laid(x, layout, k) for x, layout in zip(tensors, chosen, strict=True)]
                    try:
                        actual = _run(function, given, grad, random.Random(k))
                        _compare(actual, expected, rtol, atol)
                    except (
                        AssertionError,
                        RuntimeError,
                        ValueError,
                        TypeError,
                        IndexError,
                        NotImplementedError,
                    ) as error:
                        raise AssertionError(f"{told}: {error}") from error


Outcome = tuple[list[object], list[torch.Tensor | None]]


def _run(function: Function, inputs: list[torch.Tensor], grad: bool, chooser: random.Random | None) -> Outcome:
    """The outputs, and the gradients of the inputs for cotangents that are the same in every layout."""
    leaves = [x.requires_grad_() for x in inputs if grad and (x.is_floating_point() or x.is_complex())]
    outputs = list(flat(function(*inputs)))
    if not leaves:
        return outputs, []
    roots = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    generator = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in roots]
    if chooser is not None:
        options = [layouts(leaves[0].mesh, x.dim()) for x in roots]  # type: ignore[attr-defined]
        cotangents = [laid(c, chooser.choice(some)) for c, some in zip(cotangents, options, strict=True)]
    return outputs, list(torch.autograd.grad(roots, leaves, cotangents, allow_unused=True))


def flat(value: object) -> Iterable[object]:
    """The leaves of nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    else:
        yield value


def _compare(actual: Outcome, expected: Outcome, rtol: float, atol: float) -> None:
    for kind, ours, theirs in (("output", actual[0], expected[0]), ("gradient", actual[1], expected[1])):
        assert len(ours) == len(theirs), f"{len(ours)} {kind}s, not {len(theirs)}"
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if not isinstance(b, torch.Tensor):
                assert a == b, f"{kind} {i} is {a!r}, not {b!r}"
                continue
            assert isinstance(a, Tensor), f"{kind} {i} is a {type(a).__name__}"
            assert_sound(a)
            assert a.dtype == b.dtype, f"{kind} {i} is {a.dtype}, not {b.dtype}"
            torch.testing.assert_close(
                a.detach().full_tensor(), b.detach(), rtol=rtol, atol=atol, equal_nan=True,
                msg=lambda text, i=i, a=a, kind=kind: f"{kind} {i}, {a._layout}: {text}",
            )  # fmt: skip


def moved_bytes(function: Callable[[], object]) -> int:
    """How many bytes all devices together receive while a function runs."""
    with weft.comm_log() as log:
        function()
    return log.total_bytes


def moves(function: Callable[[], object]) -> dict[str, int]:
    """How often each kind of communication happens while a function runs."""
    with weft.comm_log() as log:
        function()
    return log.counts()
