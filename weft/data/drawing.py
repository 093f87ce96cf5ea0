"""What is drawn while loading: numbers of its own, so that those of the program do not depend on who loads what, and when."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from hashlib import blake2b
from itertools import chain, islice
from typing import TypeVar, final

import numpy as np
import torch

from .ahead import ahead

__all__ = ["Drawn", "own_numbers", "seed_of", "taken"]

T = TypeVar("T")


def seed_of(*numbers: int) -> int:
    """One seed of several numbers.

    >>> seed_of(0, 1) == seed_of(0, 1), seed_of(0, 1) == seed_of(1, 0)
    (True, False)
    """
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little") >> 1


@final
class Drawn:
    """Whether torch's numbers were drawn, or seeded, meanwhile."""

    value = False


@contextmanager
def own_numbers(seed: int) -> Iterator[Drawn]:
    """Inside, Python's, NumPy's and torch's numbers are those of a seed; outside, they go on as if nothing had been drawn.

    >>> before = torch.get_rng_state()
    >>> with own_numbers(3) as drawn:
    ...     x = torch.rand(2)
    >>> drawn.value, torch.equal(before, torch.get_rng_state())
    (True, True)
    """
    found = Drawn()
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        begun = torch.get_rng_state()
        try:
            yield found
        finally:
            found.value = not torch.equal(begun, torch.get_rng_state())
            random.setstate(python)
            np.random.set_state(numpy)


def taken(source: Iterator[T], seeds: Iterable[int], prefetch: int) -> Generator[T, None, None]:
    """The things of a source, each drawn by a seed of its own; `prefetch` of them ahead, where the first draws nothing.

    A thread that draws would do so while the program draws, in another order each time.
    """
    for seed in seeds:
        with own_numbers(seed) as drawn:
            found = list(islice(source, 1))
        if not found:
            return
        if prefetch and not drawn.value:
            with closing(ahead(chain(found, source), prefetch)) as rest:
                yield from rest
            return
        yield found[0]
