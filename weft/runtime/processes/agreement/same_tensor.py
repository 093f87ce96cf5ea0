"""Do all processes bring the same plain tensor to a call? The first calls from each line compare, or all of them do.

A plain tensor counts as whole, so of what each process brings only the part of its own devices is kept. Where processes
bring different ones, nothing fails: what they end up with is a patchwork.

In the first calls nobody waits: who comes first leaves a note in the store, and the others compare theirs with it.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections import Counter
from pathlib import PurePath

import torch
from torch._C import _distributed_c10d as c10d

from ....caches import cached
from ....errors import MismatchError
from ....sharding.layout import Layout
from .. import current_call, renewal, world
from ..communicating import one_at_a_time
from ..current_call import CollectiveCall
from ..fork import is_child
from ..group import Processes
from ..liveness import heartbeat
from ..mesh_processes import owners_of
from ..store_client import ask, own_connection
from ..transport.async_ops import settle
from ..transport.small_messages import bytes_of
from .in_step import meet_if_apart
from .same_call import compare, is_always_on, is_off

__all__ = ["check_same", "digest", "first_note", "has_bytes", "turn"]

FIRST = 2
"""How many calls compare, for each line and shape."""
MOST = 64
"""How many calls from one line compare at most, whatever their shapes."""
MOST_LINES = 4096
"""How many lines compare."""
Note = dict[str, object]
"""What one process says, in what JSON has words for."""
_BLOCK = 1 << 24
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_compared: dict[tuple[object, ...], Counter[object]] = {}
"""For each line, how often it has brought each kind. Bound: `MOST_LINES` lines. Cleared: when this process joins or leaves."""
renewal.forget_on_renewal(_compared.clear)


@cached(1, cleared_by=renewal.forget_on_renewal)
def _store() -> c10d.Store:
    return c10d.PrefixStore("same", own_connection(renewal.store_of_calls()))


def check_same(x: torch.Tensor, op: str, layout: Layout) -> None:
    """Raises `MismatchError` if a process of the mesh brings another tensor to this call, or lays it out otherwise."""
    here = world.current()
    if here.count == 1 or here.is_fake or is_off() or is_child() or not has_bytes(x):
        return
    processes = owners_of(layout.mesh)
    if len(processes) == 1 or here.process not in processes:
        return
    site = current_call.site()
    if is_always_on():
        settle()  # what was asked for before is compared before
        with one_at_a_time:
            compare(CollectiveCall(op, f"plain {_kind(x)} to {layout}", str(site)), processes, digest(x), _differs)
        return
    # What several threads bring from one line comes in no order that all processes know.
    if threading.current_thread() is not threading.main_thread():
        return
    number = turn((processes, op, site), (x.shape, x.dtype))
    if number:
        _compare(x, CollectiveCall(op, f"{_kind(x)} to {layout}", str(site)), processes, number)


def turn(line: tuple[object, ...], kind: object) -> int:
    """Which of the calls from a line that compare this one is, counted from 1; 0 where it does not: only the first do."""
    meet_if_apart()
    known = _compared.get(line)
    if known is None:
        if len(_compared) >= MOST_LINES:
            return 0
        known = _compared[line] = Counter()
    if known[kind] >= FIRST or known.total() >= MOST:
        return 0
    known[kind] += 1
    return known.total()


def _compare(x: torch.Tensor, call: CollectiveCall, processes: Processes, number: int) -> None:
    """Compares with who came first; that is this process, if nobody has."""
    here, value = world.current().process, digest(x)
    note = first_note(call, processes, str(number), {"process": here, "call": call.to_json(), "value": value})
    if note is None:
        return
    other, process = CollectiveCall.from_json(note["call"]), int(str(note["process"]))
    if process != here and other is not None and (note["value"], other.what) != (value, call.what):
        heartbeat.begin()
        raise _differs(call, here, other, process)


def first_note(call: CollectiveCall, processes: Processes, about: str, mine: Note) -> Note | None:
    """What the first process has noted about this call, which is this one if nobody has; None where the store does not answer."""
    path = PurePath(call.site)  # the folder may be another on another host
    words = f"{processes} {call.op} {path.parent.name}/{path.name} {about}"
    key, said = hashlib.blake2b(words.encode(), digest_size=16).hexdigest(), json.dumps(mine)
    try:
        note: Note = json.loads(ask(lambda: _store().compare_set(key, "", said)))
    except RuntimeError:  # a store that does not answer is found out by those who have to wait for it
        return None
    return note


def _differs(call: CollectiveCall, here: int, other: CollectiveCall, process: int) -> MismatchError:
    heartbeat.note_failure(f"it brought another tensor than process {process} to {call.op}, called at {call.site}")
    return MismatchError(
        f"processes bring different tensors to {call.op}, called at {call.site}:\n"
        f"  process {here}: {call.what}\n"
        f"  process {process}: {other.what}{', with other values' if other.what == call.what else ''}\n"
        "  A plain tensor counts as whole, so each process has to bring the same one, and lay it out alike: seed all alike, after they have joined, or let all "
        "take that of process 0, weft.to_device(x, weft.devices()[0]).\n"
        "  Where each process has a part of its own, such as its share of a batch, say so: weft.from_local([part], mapping)."
    )


def _kind(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}[{', '.join(map(str, x.shape))}]"


def has_bytes(x: torch.Tensor) -> bool:
    """Whether a tensor has values to compare: it is no stand-in of a trace or transform, nor of a CUDA graph."""
    if type(x) not in _PLAIN or x.is_meta or x.layout is not torch.strided or not x.numel():
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._len_torch_dispatch_stack() and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def digest(x: torch.Tensor) -> str:
    """A checksum of all bytes."""
    x = x.detach().resolve_neg()
    flat = bytes_of((x.resolve_conj() if x.is_complex() else x).contiguous().view(-1))
    found = 0
    for block in flat.split(_BLOCK):
        found = zlib.crc32(memoryview(block.cpu().numpy()), found)
    return f"{found:08x}"
