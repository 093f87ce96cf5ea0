"""The orders in which a pipeline's places work that split no backward pass: GPipe, 1F1B and interleaved 1F1B."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest

from .counting import check_counts
from .entry import Entry, Work
from .schedule import Schedule

__all__ = ["gpipe", "interleaved", "one_f_one_b"]


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes: simple, and every microbatch is kept.

    >>> print(gpipe(stages=2, microbatches=2))
    gpipe: 2 stages in 2 places, 2 microbatches; bubble 33.3%, live 2 2
    0: F0.0 F0.1 B0.0 B0.1
    1: F1.0 F1.1 B1.0 B1.1
    """
    check_counts("gpipe", stages=stages, microbatches=microbatches)
    rows = [
        [Entry(work, stage, m) for work in (Work.FORWARD, Work.BACKWARD) for m in range(microbatches)]
        for stage in range(stages)
    ]
    return Schedule(rows, "gpipe")


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """As many forward passes as it takes for a microbatch to come back, then one backward pass for each forward pass.

    The bubble is that of GPipe, but stage `s` keeps at most `stages - s` microbatches.

    >>> print(one_f_one_b(stages=2, microbatches=3))
    1f1b: 2 stages in 2 places, 3 microbatches; bubble 25.0%, live 2 1
    0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
    1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
    """
    check_counts("1f1b", stages=stages, microbatches=microbatches)
    rows = [
        list(
            _alternating(
                [Entry(Work.FORWARD, stage, m) for m in range(microbatches)],
                [Entry(Work.BACKWARD, stage, m) for m in range(microbatches)],
                stages - stage - 1,
            )
        )
        for stage in range(stages)
    ]
    return Schedule(rows, "1f1b")


def interleaved(places: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B where each place has several stages, `places` apart: stages are shorter, and so is the wait at both ends.

    Microbatches go through in groups of `places`, of which there must be a whole number.

    >>> print(interleaved(places=2, microbatches=2))
    interleaved: 4 stages in 2 places, 2 microbatches; bubble 20.0%, live 4 3
    0: F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1
    1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1
    """
    check_counts("interleaved", places=places, microbatches=microbatches, chunks=chunks)
    if microbatches % places:
        raise ValueError(
            f"an interleaved schedule takes microbatches in groups of {places}, one for each place, but {microbatches} are "
            f"no whole number of groups: use {-(-microbatches // places) * places}, or another schedule"
        )
    rows = []
    for place in range(places):
        turns = [
            (chunk, group + m)
            for group in range(0, microbatches, places)
            for chunk in range(chunks)
            for m in range(places)
        ]
        forward = [Entry(Work.FORWARD, chunk * places + place, m) for chunk, m in turns]
        backward = [Entry(Work.BACKWARD, (chunks - 1 - chunk) * places + place, m) for chunk, m in turns]
        ahead = (places - place - 1) * (2 if chunks > 1 else 1) + (chunks - 1) * places
        rows.append(list(_alternating(forward, backward, ahead)))
    return Schedule(rows, "interleaved")


def _alternating(forward: list[Entry], backward: list[Entry], ahead: int) -> Iterator[Entry]:
    """So many forward passes ahead, then one of each in turn."""
    yield from forward[:ahead]
    pairs = zip_longest(forward[ahead:], backward)
    yield from (entry for entry in chain.from_iterable(pairs) if entry is not None)
