"""`Strategy`: one way to compute a call. Rules and handlers propose them with what each would move; the cheapest is chosen here.

Cost is one number everywhere: the seconds that movements take by the cost model of `weft.planning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

from ..caches import cached
from ..planning import move_cost, plan_layouts
from ..planning.rearrangement import Rearrangement, rearranged_bytes, rearranged_cost
from ..runtime.machine import forget_with_residences
from ..sharding.layout import Layout

__all__ = ["Considered", "Exchanged", "Moved", "Strategy", "cheapest", "considering", "decided_once"]

W = TypeVar("W")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor that is brought from one layout to another, as often as is said."""

    source: Layout
    target: Layout
    shape: tuple[int, ...]
    itemsize: int
    times: int = 1

    @property
    def seconds(self) -> float:
        """What it takes by the cost model."""
        return self.times * move_cost(self.source, self.target, self.shape, self.itemsize)

    @property
    def bytes(self) -> int:
        """What the busiest device receives."""
        received = plan_layouts(self.source, self.target, self.shape, self.itemsize).bytes_received
        return self.times * received.max


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Elements that change places as a rearrangement says."""

    plan: Rearrangement
    itemsize: int

    @property
    def seconds(self) -> float:
        """What it takes by the cost model."""
        return rearranged_cost(self.plan, self.itemsize)

    @property
    def bytes(self) -> int:
        """What the busiest device receives."""
        return rearranged_bytes(self.plan, self.itemsize).max


@dataclass(frozen=True, slots=True)
class Strategy(Generic[W]):
    """A way to compute a call, in words, and what it moves; `way` is what whoever proposes it goes by when it is chosen."""

    name: str
    way: W
    moves: tuple[Moved | Exchanged, ...] = ()

    @property
    def seconds(self) -> float:
        """What it moves takes by the cost model."""
        return sum(move.seconds for move in self.moves)

    @property
    def bytes(self) -> int:
        """What the busiest device receives."""
        return sum(move.bytes for move in self.moves)


@dataclass(frozen=True, slots=True)
class Considered:
    """What was proposed for one decision: names, seconds and bytes, and which was chosen."""

    rows: tuple[tuple[str, float, int], ...]
    chosen: int


_considered: ContextVar[list[Considered] | None] = ContextVar("considered", default=None)


@contextmanager
def considering() -> Iterator[list[Considered]]:
    """Keeps what is considered inside the block."""
    kept: list[Considered] = []
    token = _considered.set(kept)
    try:
        yield kept
    finally:
        _considered.reset(token)


_UNWATCHED = nullcontext()


def unconsidered() -> AbstractContextManager[None]:
    """What is decided inside, for an op on the way to another, is not kept."""
    return _unconsidered() if is_considered() else _UNWATCHED


@contextmanager
def _unconsidered() -> Iterator[None]:
    token = _considered.set(None)
    try:
        yield
    finally:
        _considered.reset(token)


def consider(rows: Sequence[tuple[str, float, int]], chosen: int) -> None:
    """Tells whoever looks on what a decision was between."""
    kept = _considered.get()
    if kept is not None:
        kept.append(Considered(tuple(rows), chosen))


def is_considered() -> bool:
    """Whether somebody looks on."""
    return _considered.get() is not None


def decided_once(decide: Callable[P, R]) -> Callable[P, R]:
    """A function that decides between strategies: each question is asked once, and anew where somebody looks on."""
    remembering = cached(1 << 14, cleared_by=forget_with_residences)(decide)

    @wraps(decide)
    def decided(*args: P.args, **kwargs: P.kwargs) -> R:
        return (decide if is_considered() else remembering)(*args, **kwargs)

    return decided


def cheapest(strategies: Sequence[Strategy[W]]) -> W:
    """The way of the strategy that takes the fewest seconds; of equal ones the first.

    >>> from weft.sharding.mesh import make_mesh
    >>> split, whole = (Layout(make_mesh({"x": 4}), (axes,)) for axes in (("x",), ()))
    >>> cheapest([Strategy("gather", 1, (Moved(split, whole, (64,), 4),)), Strategy("stay", 2)])
    2
    """
    seconds = [strategy.seconds for strategy in strategies]
    best = min(range(len(strategies)), key=lambda k: seconds[k])
    if is_considered():
        rows = [(each.name, cost, each.bytes) for each, cost in zip(strategies, seconds, strict=True)]
        consider(rows, best)
    return strategies[best].way
