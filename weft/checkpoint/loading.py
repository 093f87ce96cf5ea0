"""`load`: a checkpoint into modules, optimizers and layouts that need not be the ones it was saved from."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeGuard, TypeVar

from ..nn.patterns import Patterns
from ..runtime.processes.agreement.values import gathered
from ..sharding.mapping import DeviceMapping
from .errors import CheckpointError
from .files.opening import index_at
from .loader import Loader
from .progress import shown
from .reading import Reader
from .tree import State, children, unflattened

__all__ = ["load", "planned"]

T = TypeVar("T")

_TRIES = 20
_PAUSE = 0.05
"""Seconds before a checkpoint that a save has just replaced is opened again."""


def load(
    path: str | os.PathLike[str],
    like: State = None,
    *,
    strict: bool = True,
    cast: bool = False,
    verify: bool = True,
    progress: bool = False,
) -> State:
    """Loads a checkpoint in the layouts that `like` says, whatever layouts it was saved in.

    `like` has the structure of the saved state. What has a state of its own in it (modules, optimizers, schedulers) is
    filled in place; where it has a tensor or a mapping, the result has the saved tensor in that layout; anything else
    stands for the saved value as it is, with tensors whole. Instead of a structure it may be one mapping for all tensors,
    or a dict of name patterns and mappings. `strict=False` leaves unread what `like` does not mention; `cast=True` brings
    floating-point tensors to the dtype that they have in `like`. A tied parameter needs one of its names there. What is
    read is checked against the checksums of `save`, unless `verify=False`. Every process calls this and reads what it holds.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> weft.checkpoint.save(torch.nn.Linear(8, 8), "checkpoint")
    >>> model = weft.nn.shard_module(torch.nn.Linear(8, 8), mesh, {"weight": weft.P("tp", None)})
    >>> model = weft.checkpoint.load("checkpoint", model)
    """
    where = Path(path)
    for left in reversed(range(_TRIES)):
        reader = Reader(where, index_at(where), verify)
        state = planned(reader, like, strict, cast)
        if _read_together(reader, progress, last=not left):
            return state
        time.sleep(_PAUSE)  # a save is replacing the checkpoint
    raise AssertionError("the last try reads or raises")


def planned(reader: Reader, like: State, strict: bool, cast: bool) -> State:
    """The state that will be there when the reader has read; nothing is changed before."""
    if like is None:
        return unflattened(reader.index.structure, reader.whole)
    if isinstance(like, DeviceMapping):
        return unflattened(reader.index.structure, lambda name: reader.laid(name, like))
    if _are_patterns(like, reader):
        return _by_pattern(reader, like)
    return Loader(reader, strict, cast).filled(reader.index.structure, like, ())


def _read_together(reader: Reader, progress: bool, last: bool) -> bool:
    """Reads what is wanted; False if a save has replaced the checkpoint meanwhile, in the eyes of any process."""
    problem: CheckpointError | None = None
    with ExitStack() as stack:
        try:
            read = stack.enter_context(reader.opened())
        except CheckpointError as error:
            problem = error
        if not _all_same(reader, problem, last):
            return False
        if problem is not None:
            raise problem
        with shown("loading", reader.nbytes, progress) as count:
            try:
                read(count)
            except CheckpointError as error:
                problem = error
    _raise_together(reader, problem)
    reader.finish()
    return True


def _all_same(reader: Reader, problem: CheckpointError | None, last: bool) -> bool:
    """Whether every process has opened the same checkpoint; raises for all what any process cannot open."""
    ground = reader.ground()
    every = [tuple(each) for each in _from_all(reader, (reader.index.checksum, problem and str(problem), ground))]
    problems = [str(text) for _, text, _ in every if text is not None]
    changed = len({index for index, _, _ in every}) > 1 or (bool(problems) and not last and _has_changed(reader))
    if changed and not last:
        return False
    if problems and problem is None:
        raise CheckpointError(problems[0])
    if changed and not problems:
        raise CheckpointError(
            f"the processes find different checkpoints at {str(reader.path)!r}: it is being replaced again and again, or their folders are not one"
        )
    if ground is not None:
        reader.share_checks([process for process, (_, _, other) in enumerate(every) if other == ground])
    return True


def _has_changed(reader: Reader) -> bool:
    """Whether another checkpoint stands where one was opened, in the eyes of any process."""
    try:
        changed = index_at(reader.path).checksum != reader.index.checksum
    except CheckpointError:
        changed = True
    return any(_from_all(reader, changed))


def _from_all(reader: Reader, value: T) -> list[T]:
    """What each process says, where the tensors are spread over several; all of them load then."""
    return gathered(value, "load") if reader.spans_processes else [value]


def _raise_together(reader: Reader, problem: CheckpointError | None) -> None:
    """Raises in every process what is wrong for one."""
    every = _from_all(reader, problem and str(problem))
    if problem is not None:
        raise problem
    for process, text in enumerate(every):
        if text is not None:
            raise CheckpointError(f"process {process} could not load: {text}")


def _are_patterns(like: State, reader: Reader) -> TypeGuard[Mapping[str, DeviceMapping]]:
    """Whether a dict of mappings speaks of name patterns, not of the saved state's own keys."""
    if (
        not isinstance(like, Mapping)
        or not like
        or not all(isinstance(value, DeviceMapping) for value in like.values())
    ):
        return False
    return not set(like) & set(children(reader.index.structure))


def _by_pattern(reader: Reader, mappings: Mapping[str, DeviceMapping]) -> State:
    patterns = Patterns(next(iter(mappings.values())).mesh, mappings)
    patterns.check_used(reader.index.tensors, f"tensor of the checkpoint {str(reader.path)!r}")
    return unflattened(reader.index.structure, lambda name: reader.laid(name, patterns.mapping(name)))
