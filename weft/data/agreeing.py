"""Whether processes have loaded the same batch: its shapes always, its values where several have loaded the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from zlib import crc32

import torch

from ..errors import MismatchError
from ..runtime.processes.agreement.same_call import is_always_on, is_off
from ..runtime.processes.agreement.same_tensor import digest
from ..runtime.processes.agreement.values import gathered
from ..sharding.geometry import Interval
from .structure import has_tensors, opened

__all__ = ["agreed", "compares_values"]

FIRST = 2
"""Of how many batches the values are compared, unless `WEFT_CHECK` says all or none."""


def compares_values(number: int) -> bool:
    """Whether the values of the batch with this number are compared."""
    return is_always_on() or (number < FIRST and not is_off())


def agreed(words: object, part: object, held: Interval | None, *, compares: bool) -> object:
    """What the batch is: as the first process that has some of it describes it; raises where another differs."""
    sums = dict(_sums(part)) if compares and part is not None else None
    told = gathered((words, held, sums), "batches")
    known = [(process, theirs) for process, (theirs, _, _) in enumerate(told) if theirs]
    if not known:
        return None
    first, found = known[0]
    for process, theirs in known[1:]:
        if theirs != found:
            raise ValueError(
                f"processes {first} and {process} have loaded parts of different batches: {found} and {theirs}. "
                "All processes need the same data in the same order, and parts that differ in their rows alone: pad all rows "
                "to one length. A number or text in a batch is one for all of it: what belongs to samples goes in a list"
            )
    _check_values([(process, *told[process][1:]) for process, _ in known])
    return found


def _check_values(known: list[tuple[int, Interval | None, dict[str, str] | None]]) -> None:
    """Raises where processes that have loaded the same rows have other values for them."""
    seen: dict[str, tuple[int, dict[str, str]]] = {}
    for process, rows, sums in known:
        if sums is None:
            continue
        first, expected = seen.setdefault(str(rows), (process, sums))
        for name, value in sums.items():
            if value != expected.get(name, value):
                which = "a batch" if rows is None else f"the rows {rows[0]} to {rows[1] - 1} of a batch"
                raise MismatchError(
                    f"processes {first} and {process} have both loaded {which}, with other values in {name}. "
                    "What several processes load has to be the same in all: seed what is drawn while loading by the sample, not "
                    "by the process. Where each process brings a part of its own, say so: weft.data.batches(..., local=True)"
                )


def _sums(part: object, name: str = "batch") -> Iterator[tuple[str, str]]:
    """A checksum of each tensor of a batch, and of each list without any, by where it stands."""
    if isinstance(part, torch.Tensor):
        yield name, digest(part)
        return
    found = opened(part)
    if found is None:
        return
    if found.kind in ("list", "tuple") and not has_tensors(part):
        with suppress(TypeError, ValueError):  # things that JSON has no words for are not compared
            yield name, f"{crc32(json.dumps(part).encode()):08x}"
        return
    for key, each in found.parts:
        yield from _sums(each, f"{name}[{key!r}]")
