"""Reductions by Weft's own kernels, where they apply: one launch instead of a chain of ops and copies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..caches import cached
from ..sharding.placements import ReduceOp
from .memory.accelerator import reaches

__all__ = [
    "all_reduce",
    "combine",
    "few_launches",
    "is_watched",
    "merge_seen",
    "reducible",
    "serves",
    "wants_few_launches",
]

# Triton takes long to import and is not everywhere, so what needs it is imported when a GPU first reduces something.
_COMBINE = "weft.kernels.combining:combine_into"
_MERGE_SEEN = "weft.kernels.merging:merge_seen_into"
_ALL_REDUCE = "weft.kernels:DistributedAllReduce"
_CONTEXT = "weft.kernels:DeviceContext"
_SIGNAL_BUFFER = "weft.kernels:signal_buffer"

_DEVICES = frozenset({"cuda"})
_MOST = 8
_FEWEST_PARTS = 3
_WORTH_IT = 1 << 20
"""Bytes from which on the memory traffic that is saved outweighs the host's work for the launch."""

_WORDS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.MAX: "max",
    ReduceOp.MIN: "min",
    ReduceOp.PROD: "prod",
}
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_WHOLES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


class _Preference(threading.local):
    """What this thread's reductions are to spare."""

    few_launches = False


_preference = _Preference()


@contextmanager
def few_launches() -> Iterator[None]:
    """Inside, reductions of any size are one launch: what is recorded for a replay costs the host nothing later.

    >>> with few_launches():
    ...     _preference.few_launches
    True
    """
    before = _preference.few_launches
    _preference.few_launches = True
    try:
        yield
    finally:
        _preference.few_launches = before


def wants_few_launches() -> bool:
    """Whether this is inside of `few_launches`, or a CUDA graph is recorded.

    >>> wants_few_launches()
    False
    """
    return _preference.few_launches or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def combine(out: torch.Tensor, op: ReduceOp, parts: Sequence[torch.Tensor]) -> bool:
    """Writes the reduction of parts on one accelerator to `out` in one launch, if that is possible and worth it.

    >>> combine(torch.empty(2), ReduceOp.SUM, [torch.ones(2)] * 3)
    False
    """
    if out.device.type not in _DEVICES or not _FEWEST_PARTS <= len(parts) <= _MOST:
        return False
    if out.nbytes < _WORTH_IT and not _preference.few_launches:
        return False
    if not reducible(op, (out, *parts)) or any(part.device != out.device for part in parts):
        return False
    _kernel(_COMBINE)(out, parts, _WORDS[op])
    return True


def all_reduce(outs: Sequence[torch.Tensor], op: ReduceOp, parts: Sequence[torch.Tensor]) -> bool:
    """Writes the reduction of parts, one on each device, to every device's `out`, if the kernels can.

    Devices that share memory may share an `out`.

    >>> all_reduce([torch.empty(2)], ReduceOp.SUM, [torch.ones(2)])
    False
    """
    devices = tuple(part.device for part in parts)
    if not 2 <= len(parts) <= _MOST or not serves(parts):
        return False
    if not reducible(op, (*outs, *parts)) or not all(reaches(a, b) for a in set(devices) for b in set(devices)):
        return False
    execute = _kernel(_ALL_REDUCE).execute  # type: ignore[attr-defined]
    execute(outs, parts, _signals(devices), _contexts(devices), reduce_op=_WORDS[op])
    return True


def merge_seen(out: torch.Tensor, known: torch.Tensor, more: torch.Tensor, logarithms: torch.Tensor) -> bool:
    """Adds to a result of attention and its logarithms those of other keys, if the kernels can.

    >>> merge_seen(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1), torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1))
    False
    """
    given = (out, known, more, logarithms)
    if not serves(given) or not _has_triton() or is_watched() or not all(type(x) is torch.Tensor for x in given):
        return False
    if out.stride(3) != 1 or more.stride(3) != 1 or not out.numel():
        return False
    _kernel(_MERGE_SEEN)(*given)
    return True


def serves(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all tensors are on accelerators that the kernels run on.

    >>> serves([torch.ones(2)])
    False
    """
    return all(x.device.type in _DEVICES for x in tensors)


def reducible(op: ReduceOp, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the kernels know the dtype and see plain memory, and nobody is watching torch's own operations.

    >>> reducible(ReduceOp.AVG, [torch.ones(2, dtype=torch.int32)])
    False
    """
    dtype = tensors[0].dtype
    if dtype not in _FLOATS and (dtype not in _WHOLES or op is ReduceOp.AVG):
        return False
    if not _has_triton() or not all(
        type(x) is torch.Tensor and x.dtype == dtype and x.is_contiguous() and not x.is_neg() for x in tensors
    ):
        return False
    return not is_watched()


def is_watched() -> bool:
    """Whether a tracer or a transform looks at torch's operations: it would see no kernel of ours.

    >>> is_watched()
    False
    """
    return _get_current_dispatch_mode() is not None or torch._C._functorch.maybe_current_level() is not None


@cached(1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


@cached(16)
def _kernel(name: str) -> Callable[..., object]:
    module, _, attribute = name.partition(":")
    found: Callable[..., object] = getattr(import_module(module), attribute)
    return found


@cached(256)
def _contexts(devices: tuple[torch.device, ...]) -> tuple[object, ...]:
    """The devices as participants, each on the stream that is current there."""
    return tuple(_kernel(_CONTEXT)(device) for device in devices)


@cached(256)
def _signals(devices: tuple[torch.device, ...]) -> tuple[object, ...]:
    """The buffers through which these devices meet, made once."""
    return tuple(_kernel(_SIGNAL_BUFFER)(device) for device in devices)
