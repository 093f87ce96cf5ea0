"""`load`: a checkpoint into modules, optimizers and layouts that need not be the ones it was saved from."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import NoneType
from typing import TypeGuard, TypeVar

import torch

from ..nn.patterns import Patterns
from ..runtime.machine import residence
from ..runtime.processes.agreement.values import gathered
from ..runtime.processes.hosts import host_name
from ..sharding.mapping import DeviceMapping
from ..tensor.tensor import Tensor
from .errors import CheckpointError
from .files.checksums import checksum
from .files.index import Index
from .files.opening import index_at
from .loader import Loader
from .progress import shown
from .reading import Reader
from .tree import State, Stateful, children, unflattened

__all__ = ["PAUSE", "TRIES", "load", "planned"]

T = TypeVar("T")

TRIES = 20
PAUSE = 0.05
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
    together = spans_processes(like)
    for left in reversed(range(TRIES)):
        attempt = _Attempt(path, like, strict, cast, verify, together)
        if attempt.reads(progress, last=not left):
            return attempt.state
        time.sleep(PAUSE)  # a save is replacing the checkpoint
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


class _Attempt:
    """A try to load: what stands at the path, what becomes of it, and what is wrong with it in the eyes of this process."""

    def __init__(
        self, path: str | os.PathLike[str], like: State, strict: bool, cast: bool, verify: bool, together: bool
    ) -> None:
        self.path, self.together = Path(), together
        self.state: State = None
        self._seen: list[object] = []
        """What was found: the checksum of the index, and of files that have none, where they lie and their stamps."""
        self._reader: Reader | None = None
        self._problem: Exception | None = None
        try:
            self.path = Path(path)
            index = index_at(self.path)
            self._seen = _seen(self.path, index)
            self._reader = Reader(self.path, index, verify, together=together)
            self.state = planned(self._reader, like, strict, cast)
        except Exception as error:  # noqa: BLE001 - raised in all processes
            self._problem = error

    def reads(self, progress: bool, last: bool) -> bool:
        """Reads what is wanted; False if a save has replaced the checkpoint meanwhile, in the eyes of any process."""
        with ExitStack() as stack:
            if self._problem is None and self._reader is not None:
                try:
                    read = stack.enter_context(self._reader.opened())
                except Exception as error:  # noqa: BLE001 - raised in all processes
                    self._problem = error
            if not self._all_same(last):
                return False
            if self._problem is not None:
                raise self._problem
            assert self._reader is not None  # or there was a problem
            with shown("loading", self._reader.nbytes, progress) as count:
                try:
                    read(count)
                except Exception as error:  # noqa: BLE001 - raised in all processes
                    self._problem = error
        self._raise_together()
        self._reader.finish()
        return True

    def _all_same(self, last: bool) -> bool:
        """Whether every process has opened the same checkpoint; raises for all what any process cannot open or use."""
        ground = self._reader.ground() if self._reader is not None and self._problem is None else None
        mine = (self._seen, None if self._problem is None else str(self._problem), ground)
        every = [(seen, text, other) for seen, text, other in self._from_all(mine)]
        problems = [(process, str(text)) for process, (_, text, _) in enumerate(every) if text is not None]
        changed = _differ([seen for seen, _, _ in every]) or (bool(problems) and not last and self._has_changed())
        if changed and not last:
            return False
        if problems and self._problem is None:
            raise _of_another(*problems[0])
        if changed and not problems:
            raise CheckpointError(
                f"the processes find different checkpoints at {str(self.path)!r}: it is being replaced again and again, or their folders are not one"
            )
        if ground is not None and self._reader is not None:
            self._reader.share_checks([process for process, (_, _, other) in enumerate(every) if other == ground])
        return True

    def _has_changed(self) -> bool:
        """Whether another checkpoint stands where one was opened, in the eyes of any process."""
        try:
            changed = _seen(self.path, index_at(self.path)) != self._seen
        except CheckpointError as error:
            changed = bool(self._seen) or str(error) != str(self._problem)
        if not isinstance(self._problem, (CheckpointError, NoneType)):
            changed = False  # what was asked for is wrong
        return any(self._from_all(changed))

    def _from_all(self, value: T) -> list[T]:
        """What each process says, where the tensors are spread over several; all of them load then."""
        return gathered(value, "load") if self.together else [value]

    def _raise_together(self) -> None:
        """Raises in every process what is wrong for one."""
        every = self._from_all(self._problem and str(self._problem))
        if self._problem is not None:
            raise self._problem
        for process, text in enumerate(every):
            if text is not None:
                raise _of_another(process, str(text))


def _seen(path: Path, index: Index) -> list[object]:
    stamps = [(name, *file.stamp) for name, file in sorted(index.files.items()) if file.stamp is not None]
    place = [host_name(), str(path.resolve())] if stamps else None
    return [index.checksum, place, checksum(repr(stamps).encode())]


def _differ(seen: Sequence[Sequence[object]]) -> bool:
    """Whether processes have found different checkpoints; what has stamps only is one where it lies in one place."""
    if len({tuple(each[:1]) for each in seen}) > 1:
        return True
    stamps: dict[str, object] = {}
    return any(stamps.setdefault(repr(place), found) != found for _, place, found in filter(None, seen) if place)


def _of_another(process: int, text: str) -> CheckpointError:
    return CheckpointError(f"process {process} could not load: {text}")


def spans_processes(like: State) -> bool:
    """Whether any tensor or mapping in what is loaded into lies on devices of several processes: then all of them load."""
    if isinstance(like, (Tensor, DeviceMapping)):
        return len(set(residence(like.mesh).owners)) > 1
    if isinstance(like, torch.Tensor):
        return False
    if isinstance(like, torch.nn.Module):
        like = like.state_dict(keep_vars=True)
    elif isinstance(like, torch.optim.Optimizer):
        like = [group["params"] for group in like.param_groups]
    elif isinstance(like, Stateful):
        like = like.state_dict()
    items = like.values() if isinstance(like, Mapping) else like if isinstance(like, (list, tuple)) else ()
    return any(map(spans_processes, items))


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
