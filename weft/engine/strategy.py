"""`Strategy`: one way to compute a call. Rules and handlers propose them with what each would move; the cheapest is chosen here.

Cost is one number everywhere: the seconds that movements take by the cost model of `weft.planning`, and what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

from ..caches import cached
from ..during import during
from ..planning import move_cost, plan_layouts
from ..planning.costs.cost import passing_time
from ..planning.rearrangement import Rearrangement, rearranged_bytes, rearranged_cost
from ..runtime.machine import forget_with_residences
from ..runtime.traced import hinted
from ..sharding.layout import Layout
from ..watch.setting import Setting

__all__ = [
    "OPERATIONS_PER_SECOND",
    "BroughtTensor",
    "Considered",
    "Exchanged",
    "PassedShards",
    "Strategy",
    "cheapest",
    "considering",
    "decided_once",
    "may_prefer",
    "prefer",
]

OPERATIONS_PER_SECOND = 1e12
"""What one device computes, for the price of computing the same on several: coarse, but the same everywhere."""
_MOST_MEMORY = 1 << 30
"""The bytes that a strategy may take for itself, as long as another takes less."""

W = TypeVar("W")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BroughtTensor:
    """A tensor that is brought from one layout to another, as often as is said; sizes that are open cost what they are now."""

    source: Layout
    target: Layout
    shape: tuple[int, ...]
    itemsize: int
    times: int = 1

    @property
    def seconds(self) -> float:
        """What it takes by the cost model."""
        return self.times * move_cost(self.source, self.target, hinted(self.shape), self.itemsize)

    @property
    def bytes(self) -> int:
        """What the busiest device receives."""
        received = plan_layouts(self.source, self.target, hinted(self.shape), self.itemsize).bytes_received
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
class PassedShards:
    """Whole shards of a dim, all of one size, that go on to the next device, as often as is said."""

    layout: Layout
    dim: int
    shape: tuple[int, ...]
    itemsize: int
    times: int

    @property
    def seconds(self) -> float:
        """What it takes by the cost model."""
        axes = self.layout.splits[self.dim]
        return self.times * passing_time(self.layout.mesh, axes, self.bytes / max(1, self.times))

    @property
    def bytes(self) -> int:
        """What the busiest device receives."""
        largest = math.prod(-(-size // self.layout.split_count(dim)) for dim, size in enumerate(hinted(self.shape)))
        return self.times * largest * self.itemsize


@dataclass(frozen=True, slots=True)
class Strategy(Generic[W]):
    """A way to compute a call, in words, and what it moves; `way` is what whoever proposes it goes by when it is chosen."""

    name: str
    way: W
    moves: tuple[BroughtTensor | Exchanged | PassedShards, ...] = ()
    operations: float = 0.0
    """What the busiest device computes, where strategies differ in that."""
    memory: int = 0
    """The bytes that the busiest device has only while it computes in this way, where strategies differ in that."""

    @property
    def seconds(self) -> float:
        """What it moves and computes takes by the cost model."""
        return sum(move.seconds for move in self.moves) + self.operations / OPERATIONS_PER_SECOND

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
    with during(_considered, kept):
        yield kept


_UNWATCHED = nullcontext()


def unconsidered() -> AbstractContextManager[None]:
    """What is decided inside, for an op on the way to another, is not kept."""
    return during(_considered, None) if is_considered() else _UNWATCHED


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

    # What is preferred is read by `cheapest`.
    @cached(1 << 14, cleared_by=forget_with_residences, of_sizes=True)
    def remembering(preferred: tuple[str, ...], *args: P.args, **kwargs: P.kwargs) -> R:
        return decide(*args, **kwargs)

    @wraps(decide)
    def decided(*args: P.args, **kwargs: P.kwargs) -> R:
        return decide(*args, **kwargs) if is_considered() else remembering(_preferred.get(), *args, **kwargs)

    return decided


_preferable: set[str] = set()
"""The names of strategies that users may ask for. Bound: the strategies there are. Cleared: never."""
_preferred: Setting[tuple[str, ...]] = Setting("preferred strategies", ())


def preferred() -> tuple[str, ...]:
    """The strategies that are taken wherever they are proposed."""
    return _preferred.get()


def may_prefer(*names: str) -> None:
    """Says that users may ask for strategies by these names."""
    _preferable.update(names)


@contextmanager
def prefer(*names: str) -> Iterator[None]:
    """Takes the first of these strategies that is proposed for an op, whatever it costs; other ops are not touched.

    It holds inside the block, for the thread or task that says it and the backward passes that it starts.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"sp": 4})
    >>> x = weft.shard(torch.randn(1, 8, 64, 16), mesh, weft.P(None, None, "sp"))
    >>> with weft.prefer("ring"), weft.comm_log() as log:
    ...     y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> log.counts()
    {'permute': 6}
    """
    for name in names:
        if name not in _preferable:
            known = ", ".join(map(repr, sorted(_preferable)))
            raise ValueError(f"no strategy is called {name!r}: prefer one of {known}")
    before = _preferred.set(names)
    try:
        yield
    finally:
        _preferred.restore(before)


def cheapest(strategies: Sequence[Strategy[W]]) -> W:
    """The way of the strategy that takes the fewest seconds; of equal ones the first. What users prefer goes before.

    >>> from weft.sharding.mesh import make_mesh
    >>> split, whole = (Layout(make_mesh({"x": 4}), (axes,)) for axes in (("x",), ()))
    >>> cheapest([Strategy("gather", 1, (BroughtTensor(split, whole, (64,), 4),)), Strategy("stay", 2)])
    2
    """
    seconds = [strategy.seconds for strategy in strategies]
    wanted = [k for name in _preferred.get() for k, each in enumerate(strategies) if each.name == name]
    frugal = [k for k, each in enumerate(strategies) if each.memory <= _MOST_MEMORY]
    best = wanted[0] if wanted else min(frugal or range(len(strategies)), key=lambda k: seconds[k])
    if is_considered():
        rows = [(each.name, cost, each.bytes) for each, cost in zip(strategies, seconds, strict=True)]
        consider(rows, best)
    return strategies[best].way
