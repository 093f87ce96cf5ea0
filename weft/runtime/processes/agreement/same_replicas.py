"""Shards that `from_local` is given as replicas: are they the same? The first calls from each line compare, or all of them do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence

import torch

from ....errors import MismatchError
from ....sharding.layout import Layout
from ...machine import residence
from .. import current_call, world
from ..communicating import one_at_a_time
from ..current_call import CollectiveCall
from ..fork import is_child
from ..liveness import heartbeat
from ..mesh_processes import owners_of
from ..transport.async_ops import settle
from .notes import notes_about
from .replicas import are_close, differ, named, pairs, sums
from .same_call import is_always_on, is_off
from .same_tensor import Note, first_note, has_bytes, turn

__all__ = ["check_given"]

Own = dict[int, torch.Tensor]
"""The shards of this process, by slot."""


def check_given(shards: Sequence[torch.Tensor], layout: Layout, shape: tuple[int, ...]) -> None:
    """Raises where devices bring different values for what the layout says is one replica, beyond rounding."""
    mesh = layout.mesh
    if is_off() or all(mesh.axis_size(axis) == 1 for axis in layout.replicated_axes):
        return
    if not shards or any(shard.numel() and not has_bytes(shard) for shard in shards):
        return  # nothing is here, or nothing has values
    # What several threads bring from one line comes in no order that all processes know.
    if not is_always_on() and threading.current_thread() is not threading.main_thread():
        return
    processes, site = owners_of(mesh), str(current_call.site())
    number = 1 if is_always_on() else turn((processes, "from_local", site), (layout, shape, shards[0].dtype))
    if not number:
        return
    own = dict(zip(residence(mesh).owned, (shard.detach() for shard in shards), strict=True))
    here, call = world.current(), CollectiveCall("from_local", f"{list(shape)} in {layout}", site)
    if len(processes) > 1 and not here.is_fake and not is_child():
        notes = _told_by_all(own, layout) if is_always_on() else _told_first(own, layout, call, number)
        for note in notes:
            _check_told(own, note, layout, call)
    for one, other in pairs(layout, list(own)):
        if not are_close(own[one], own[other]):
            raise _different(layout, one, other, own[one], site)


def _told_first(own: Own, layout: Layout, call: CollectiveCall, number: int) -> list[Note]:
    """What was told by whoever came first, of each replica that other processes have too; nobody waits."""
    owners, processes = residence(layout.mesh).owners, owners_of(layout.mesh)
    found = []
    for group in layout.mesh.groups(layout.replicated_axes):
        slot = next((slot for slot in group if slot in own), None)
        if slot is not None and len({owners[each] for each in group}) > 1:
            note = first_note(call, processes, f"{number} {group[0]}", _note({slot: own[slot]}))
            found += [] if note is None else [note]
    return found


def _told_by_all(own: Own, layout: Layout) -> list[Note]:
    """What all processes tell of their shards, the same in each of them: they wait for each other."""
    settle()  # what was asked for before is compared before
    with one_at_a_time:
        notes = notes_about("replicas", owners_of(layout.mesh)).exchanged(json.dumps(_note(own)))
    return [json.loads(note) for note in notes.values()]


def _note(own: Own) -> Note:
    return {str(slot): sums(shard).tolist() for slot, shard in own.items()}


def _check_told(own: Own, note: Note, layout: Layout, call: CollectiveCall) -> None:
    """Raises where a shard of this process differs from the same replica of another."""
    theirs = {int(slot): told for slot, told in note.items()}
    for one, other in pairs(layout, sorted({*own, *theirs})):
        ours, foreign = (one, other) if one in own else (other, one)
        if ours not in own or foreign not in theirs:
            continue
        told = torch.tensor(theirs[foreign], dtype=torch.float64)
        if differ(sums(own[ours]).cpu(), told, own[ours].dtype):
            heartbeat.begin()
            heartbeat.note_failure(f"it brought another replica than others to from_local, called at {call.site}")
            raise _different(layout, one, other, own[ours], call.site)


def _different(layout: Layout, one: int, other: int, shard: torch.Tensor, site: str) -> MismatchError:
    axes, owners = layout.replicated_axes, residence(layout.mesh).owners
    said: Callable[[int], str] = lambda slot: (  # noqa: E731 - said twice, here alone
        named(layout, slot) + (f" of process {owners[slot]}" if owners[one] != owners[other] else "")
    )
    return MismatchError(
        f"from_local, called at {site}: {said(one)} and {said(other)} bring shards of shape {tuple(shard.shape)} with different values, "
        f"but in the layout {layout} they hold one replica over {', '.join(map(repr, axes))}. Bring the same shard on both; if "
        f"they are parts of one tensor, split a dim by {axes[0]!r}; if they are to be added up, say so: "
        f"NamedMapping(mesh, spec, unreduced=[{axes[0]!r}])"
    )
