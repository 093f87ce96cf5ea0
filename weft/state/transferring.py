"""`transfer_state`: a whole state into other layouts, dtypes and names, in few messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import torch
import xxhash

from ..caches import cached
from ..checkpoint.memory import readable_bytes
from ..checkpoint.progress import shown
from ..distributed import process_index
from ..engine.moves.movement import from_plain, moved
from ..engine.sharded import ShardedTensor
from ..engine.total import note_write, own_pieces
from ..engine.views.copy_views import current
from ..errors import WeftError
from ..planning.states import StateEntry, StatePlan
from ..runtime.holding import Pieces
from ..runtime.machine import residence
from ..runtime.processes.current_call import CollectiveCall
from ..runtime.processes.mesh_processes import owners_of
from ..runtime.processes.packing import Checked
from ..runtime.processes.passing import Lot, pass_on, passing_bytes
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from ..sharding.types import TensorLayout
from ..watch import comm_log
from .flattening import flat_state
from .planning import BUCKET, Mappings, PlannedState, planned
from .renaming import Names
from .rooms import Room, rooms
from .wanted import Wanted

__all__ = ["transfer_state"]

_OP = "transfer_state"


def transfer_state(
    state: object,
    mappings: Mappings | None = None,
    dtype: torch.dtype | None = None,
    *,
    into: object = None,
    names: Names | None = None,
    mesh: DeviceMesh | None = None,
    verify: bool = False,
    progress: bool = False,
    bucket: int = BUCKET,
) -> object:
    """A state in other layouts: a module, a state dict or any tree of tensors, from one mesh to another at once.

    `mappings` is one mapping for all tensors, a dict of name patterns (the first match decides, `mesh=` says where specs
    such as `P("tp")` are, names without a match are replicated), or a function from a name to its mapping. `dtype` is that
    of floating-point tensors afterwards; what has fewer bytes travels. `names` says new names and old ones,
    `{"*.qkv": ("*.q", "*.k", "*.v")}` for tensors that are one afterwards, or the other way round; the result is then one
    dict of all tensors. `into=` writes to the tensors of another state, and returns it.

    Between processes, all tensors travel together, in buckets of at most `bucket` bytes; while one is on its way, the next
    is packed. `verify=True` compares a checksum of every message with what has arrived.

    >>> import torch, weft
    >>> from weft import NamedMapping, P
    >>> trainer, server = weft.make_mesh({"dp": 4}), weft.make_mesh({"tp": 2})
    >>> state = weft.shard({"q": torch.ones(4, 8), "k": torch.zeros(4, 8)}, trainer, P("dp"))
    >>> served = weft.transfer_state(state, NamedMapping(server, P("tp")), names={"qk": ("q", "k")})
    >>> served["qk"].shape, served["qk"].local_shards[1].sum().item()
    (torch.Size([8, 8]), 0.0)
    """
    old, there = flat_state(state, _OP), None if into is None else flat_state(into, _OP)
    words = [name for name, leaf in old.leaves.items() if isinstance(leaf, TensorLayout)]
    if words:
        raise TypeError(f"{_OP} moves tensors, but {words[0]!r} is only the layout of one: plan_state takes these")
    task = planned(_OP, old, mappings, dtype, there, names, mesh, bucket, verify=verify)
    _check_writable(() if there is None else there.tensors.items())
    for each in {want.layout.mesh for want in task.wanted.values()}:
        residence(each)  # raises for devices that do not exist
    with torch.no_grad():
        made = _transferred(task, old.tensors, None if there is None else there.tensors, verify, progress)
    made |= {name: made[first] for name, first in task.same.items()}
    if into is not None:
        return into
    return made if names else old.with_tensors(made)


def _check_writable(into: Iterable[tuple[str, torch.Tensor]]) -> None:
    if not torch.is_inference_mode_enabled():
        for name, x in into:
            if x.is_inference():
                raise ValueError(
                    f"{_OP} cannot write to {name!r} of into, which was made in inference mode: call it inside torch.inference_mode()"
                )


def _transferred(
    task: PlannedState,
    old: Mapping[str, torch.Tensor],
    there: Mapping[str, torch.Tensor] | None,
    verify: bool,
    progress: bool,
) -> dict[str, torch.Tensor]:
    """The new tensors by name. What moves is logged as the plan says it, however it is carried out."""
    plan = task.plan
    for entry in plan.entries if comm_log.is_logging() else ():
        _log(entry)
    made: dict[str, torch.Tensor] = {}
    lots: list[Lot] = []
    sources: list[Pieces] = []
    targets: list[Pieces] = []
    with comm_log.paused():
        given = [_laid_out(old[name], entry) for entry in plan.entries for name in entry.sources]
        todo = rooms(task, tuple([x._form for x in given]), are_there=there is not None)
        total, here = _work(plan, todo) if progress else (0, False)
    with comm_log.paused(), shown("transferring", total, progress, here=here) as count:
        remaining = iter(given)
        memory: set[int] = set() if there is None else {each for x in given for each in _memory(x)}
        for room in todo:
            into = None if there is None else there[room.name]
            if room.moves_alone:
                made[room.name] = _moved(next(remaining), room.want)
                count(room.nbytes)
                continue
            new = made[room.name] = _to_fill(room, into, memory)
            pieces = new._value.pieces
            for lot in room.lots:
                source = current(next(remaining))
                if not room.on_paper:
                    lots.append(lot)
                    sources.append(source)
                    targets.append(pieces)
        checked = pass_on(plan, lots, sources, targets, _call(plan), count, _checksum if verify else None)
        for name, into in () if there is None else there.items():
            if name in made and made[name] is not into:
                into.copy_(made[name])
    comm_log.note_end()
    torch.autograd.graph.increment_version([] if there is None else there.values())
    _raise_for(checked)
    return made


def _laid_out(x: torch.Tensor, entry: StateEntry) -> ShardedTensor:
    """An old tensor; a plain one is whole on every device of the mesh that it goes to."""
    if isinstance(x, ShardedTensor):
        return x
    return from_plain(x, Layout.replicated(entry.target.mesh, x.dim()), brought_to=_OP)


def _to_fill(room: Room, into: torch.Tensor | None, given: set[int]) -> ShardedTensor:
    """The tensor that is to be filled: one that is there, or a new one where its memory is another's or one of the given."""
    if not isinstance(into, ShardedTensor) or into._value.shown is not None or not given.isdisjoint(_memory(into)):
        return room.made()
    note_write((into,))
    own_pieces(into)
    return into


def _memory(x: ShardedTensor) -> Iterator[int]:
    """What tells the memory of a tensor's pieces from others'."""
    return (piece.untyped_storage()._cdata for piece in x._value.pieces)


def _moved(x: ShardedTensor, want: Wanted) -> torch.Tensor:
    """A tensor in its new layout and dtype: it is cast where that makes it smaller, and nothing is pending."""
    if want.dtype.itemsize < x.dtype.itemsize and not x._layout.pending:
        x = cast(ShardedTensor, x.to(want.dtype))
    return moved(x, want.layout, _OP, asked=want.mapping).to(want.dtype)


def _log(entry: StateEntry) -> None:
    if entry.plan is not None:
        comm_log.log_plan(entry.plan, _OP, implicit=False)
    for passage in entry.passages if comm_log.is_logging() else ():
        source, target = passage.source.layout, passage.target.layout
        received = passage.bytes_received
        if not (passage.is_whole and source is target):
            comm_log.log_step(
                "exchange", (), source, target, passage.shape, received.max, received.total, _OP, implicit=False
            )


def _work(plan: StatePlan, todo: Iterable[Room]) -> tuple[int, bool]:
    """The bytes that this process will have sent, kept and received; and whether it is the first that has to do with them."""
    alone = [room for room in todo if room.moves_alone]
    lots = [lot for room in todo if not (room.moves_alone or room.on_paper) for lot in room.lots]
    meshes = dict.fromkeys(layout.mesh for entry in plan.entries for layout, *_ in entry.held)
    total = sum(room.nbytes for room in alone) + passing_bytes(plan, lots)
    return total, owners_of(*meshes)[:1] == (process_index(),)


@cached(64)
def _call(plan: StatePlan) -> CollectiveCall:
    """The call, in words that tell it from one with other tensors, layouts or dtypes."""
    digest = xxhash.xxh3_64()
    for entry in plan.entries:
        places = [
            f"{end.layout} on {end.layout.mesh}, {end.shape} from {end.start}"
            for passage in entry.passages
            for end in (passage.source, passage.target)
        ]
        digest.update(repr((entry.name, entry.sources, places, entry.source_itemsize, entry.target_itemsize)).encode())
    count, total = len(plan.entries), plan.bytes_received.total
    return CollectiveCall(
        _OP, f"{count} tensor{'' if count == 1 else 's'}, {total:,} bytes in all (in short {digest.hexdigest()})"
    )


def _checksum(flat: torch.Tensor) -> int:
    return xxhash.xxh3_64_intdigest(readable_bytes(flat))


def _raise_for(checked: Checked) -> None:
    if checked.damages:
        first = checked.damages[0]
        names = ", ".join(map(repr, first.names[:8])) + (", …" if len(first.names) > 8 else "")
        raise WeftError(
            f"{_OP}: {len(checked.damages)} of the messages that this process received did not arrive as they were sent, the first "
            f"from process {first.process}, with parts of {names}. Nothing of this transfer is to be used, nor what into= holds "
            "now: look at the memory and the network of both hosts, and transfer again"
        )
    if checked.others:
        raise WeftError(
            f"{_OP}: another process received messages that did not arrive as they were sent. Nothing of this transfer is to be "
            "used, nor what into= holds now: look at what that process says, and transfer again"
        )
