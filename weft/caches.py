"""What a module remembers: each cache says how much it keeps and who empties it.

A function that is asked the same again is `cached`; a table that is filled by hand is a `BoundedCache`. A module-level
container of another kind says in the text below it what bounds it, and who clears it: `Bound: … Cleared: ….`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Lock
from typing import ParamSpec, Protocol, TypeVar, cast

__all__ = ["BoundedCache", "Cached", "cached"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
K = TypeVar("K")
V = TypeVar("V")

Registrar = Callable[[Callable[[], None]], None]
"""Takes what empties a cache, and calls it when what the cache holds is no longer right."""


class Cached(Protocol[P, R_co]):
    """A function that remembers its results."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The result, remembered or made."""

    def cache_clear(self) -> None:
        """Forgets all results."""


def cached(
    bound: int, *, cleared_by: Registrar | None = None, of_sizes: bool = False
) -> Callable[[Callable[P, R]], Cached[P, R]]:
    """Remembers what a function gives: at most `bound` results, those that were asked for last.

    `cleared_by` is told how to empty it; without, results depend on the arguments alone and are right for ever.
    `of_sizes`: among the arguments may be sizes that a compiler leaves open, which have no hash; these are asked for anew.

    >>> @cached(2)
    ... def squared(x: int) -> int:
    ...     print("made")
    ...     return x * x
    >>> squared(3), squared(3)
    made
    (9, 9)
    """

    def decorate(function: Callable[P, R]) -> Cached[P, R]:
        remembering = cast("Cached[P, R]", lru_cache(maxsize=bound)(function))
        if cleared_by is not None:
            cleared_by(remembering.cache_clear)
        return _asked_anew(function, remembering) if of_sizes else remembering

    return decorate


def _asked_anew(function: Callable[P, R], remembering: Cached[P, R]) -> Cached[P, R]:
    """What a function gives, remembered where its arguments have a hash."""

    @wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return remembering(*args, **kwargs)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
        return function(*args, **kwargs)

    ask.cache_clear = remembering.cache_clear  # type: ignore[attr-defined]
    return cast("Cached[P, R]", ask)


class BoundedCache(dict[K, V]):
    """A mapping of at most `bound` entries: where one more is put in, the one that was put in first goes.

    `cleared_by` is as for `cached`. Entries are put in by `cache[key] = value`, by any thread.

    >>> cache = BoundedCache[str, int](2)
    >>> for number, name in enumerate("abc"):
    ...     cache[name] = number
    >>> cache, cache.get("a")
    ({'b': 1, 'c': 2}, None)
    """

    def __init__(self, bound: int, *, cleared_by: Registrar | None = None) -> None:
        super().__init__()
        self.bound = bound
        self._lock = Lock()
        if cleared_by is not None:
            cleared_by(self.clear)

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:  # else two threads might put out more than they put in
            while len(self) >= self.bound and key not in self:
                self.pop(next(iter(self)), None)
            super().__setitem__(key, value)
