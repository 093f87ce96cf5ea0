"""Signal buffers: the counters through which GPUs meet before and after a collective."""
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, SIM102 - Triton writes compile-time arguments in capitals, and decides such conditions alone

from __future__ import annotations

import torch
import triton.language as tl

from .blocks import pick
from .program import INTERPRETED, program

__all__ = ["MAX_PROGRAMS", "MAX_SLOTS", "ORDINALS", "SIGNAL_BYTES", "SLOT_BITS", "meet", "signal_buffer"]

# A buffer is int32 counters[2][MAX_PROGRAMS][MAX_SLOTS]:
#   counters[0][program][slot]  how often program `program` of the peer in `slot` has arrived; written by that peer
#   counters[1][program][slot]  how many of those arrivals were waited for; touched by the owner alone
# Both only ever grow, so a buffer is ready again at once, and each pair of GPUs counts for itself, so one buffer serves
# collectives over any subset of the GPUs.
MAX_PROGRAMS = 128
MAX_SLOTS = 32
SLOT_BITS = 5
ORDINALS = 24
"""Slots below this one belong to whole GPUs by ordinal, those above to participants that share a GPU by index."""

SIGNAL_BYTES: int = 2 * MAX_PROGRAMS * MAX_SLOTS * 4
"""The least size of a signal buffer in bytes.

>>> SIGNAL_BYTES
32768
"""

_ROW_BYTES = tl.constexpr(MAX_SLOTS * 4)
_TABLE_BYTES = tl.constexpr(MAX_PROGRAMS * MAX_SLOTS * 4)
_SLOT_BITS = tl.constexpr(SLOT_BITS)
_SLOT_MASK = tl.constexpr(MAX_SLOTS - 1)
_ON_GPU = tl.constexpr(not INTERPRETED)
# One look at a counter takes about a microsecond: minutes, not seconds.
_PATIENCE = tl.constexpr(1 << 28)


def signal_buffer(device: torch.device | str) -> torch.Tensor:
    """A fresh signal buffer on `device`, all counters at zero.

    >>> buffer = signal_buffer("cpu")
    >>> buffer.dtype, buffer.numel() * buffer.element_size() == SIGNAL_BYTES
    (torch.int32, True)
    """
    return torch.zeros(SIGNAL_BYTES // 4, dtype=torch.int32, device=device)


@program()
def _slot(slots, index):
    return (slots >> (index * _SLOT_BITS)) & _SLOT_MASK


@program()
def _counter(buffer, slot):
    place = tl.program_id(0) * _ROW_BYTES + slot * 4
    return (buffer + place).to(tl.pointer_type(tl.int32))


@program()
def _give_up():
    # A peer that never arrives would otherwise hang every GPU. `trap` turns that into a CUDA error.
    tl.inline_asm_elementwise("trap; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@program()
def _await(counter, due):
    looks = 0
    while tl.atomic_add(counter, 0, sem="acquire", scope="sys") - due < 0:
        looks += 1
        if _ON_GPU:
            if looks == _PATIENCE:
                _give_up()


@program()
def meet(buffers, slots, me, GROUPS: tl.constexpr):
    """Wait, as one program of group `me`, until the same program of every other group is here too.

    What any thread of a program wrote before is seen by every thread of its counterparts afterwards: the arrival is a
    release and the wait an acquire, both at system scope, with a barrier of the program's own threads around them.
    """
    tl.debug_barrier()
    for peer in tl.static_range(GROUPS):
        if peer != me:
            tl.atomic_add(_counter(buffers[peer], _slot(slots, me)), 1, sem="release", scope="sys")
    mine = pick(buffers, me, GROUPS)
    for peer in tl.static_range(GROUPS):
        if peer != me:
            slot = _slot(slots, peer)
            due = tl.atomic_add(_counter(mine + _TABLE_BYTES, slot), 1, sem="relaxed", scope="gpu") + 1
            _await(_counter(mine, slot), due)
    tl.debug_barrier()
