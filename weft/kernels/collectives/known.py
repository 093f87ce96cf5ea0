"""Known calls: what was worked out for one call serves others on tensors of the same forms, whatever their addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import attrgetter, itemgetter, or_, sub
from typing import TypeAlias

import torch

from ...caches import BoundedCache
from ..context import DeviceContext
from ..launch import Launch, prepared

__all__ = ["KnownCall", "known_call"]

Key: TypeAlias = tuple[object, ...]
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_is_contiguous, _is_neg, _is_conj = torch.Tensor.is_contiguous, torch.Tensor.is_neg, torch.Tensor.is_conj
_data_ptr, _is_inference = torch.Tensor.data_ptr, torch.Tensor.is_inference
_shape, _dtype, _place = attrgetter("shape"), attrgetter("dtype"), torch.Tensor.get_device
_ADDRESSES = 16
"""The arguments of a launch that are addresses of operands: eight sources, then eight targets."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A launch whose addresses are still to be filled in."""

    run: Callable[[Sequence[int]], object]
    filled: Callable[[Sequence[int]], tuple[int, ...]]
    """The arguments that are addresses, of those of the operands and 0."""
    others: tuple[int, ...]
    nbytes: tuple[int, ...]


_ready = BoundedCache[Key, _Ready](1024)


class KnownCall:
    """One call on operands that all lie on one device, outputs first; asked for by their forms."""

    __slots__ = ("_addresses", "_key", "_operands", "_outputs")

    def __init__(self, key: Key, operands: Sequence[torch.Tensor], outputs: int, addresses: list[int]) -> None:
        self._key, self._operands, self._outputs, self._addresses = key, operands, outputs, addresses

    def repeat(self) -> bool:
        """Makes the call as one like it was made before; False where there was none, or operands overlap."""
        ready = _ready.get(self._key)
        if ready is None or _overlap(self._addresses, ready.nbytes):
            return False
        ready.run((*ready.filled((*self._addresses, 0)), *ready.others))
        written = self._operands[: self._outputs]
        if any(map(_is_inference, written)):
            written = [x for x in written if not x.is_inference()]
        torch.autograd.graph.increment_version(written)
        return True

    def remember(self, launches: Sequence[Launch]) -> None:
        """Keeps the one launch that the call took, if it reads and writes nothing but the operands themselves."""
        if len(launches) != 1:
            return
        (launch,) = launches
        nbytes = tuple(x.nbytes for x in self._operands)
        if _overlap(self._addresses, nbytes):
            return
        places = {address: operand for operand, address in enumerate((*self._addresses, 0))}
        given = launch.arguments[:_ADDRESSES]
        if places.keys() >= set(given):
            filled = itemgetter(*[places[address] for address in given])
            _ready[self._key] = _Ready(prepared(launch), filled, launch.arguments[_ADDRESSES:], nbytes)


def known_call(
    name: str,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    signals: Sequence[torch.Tensor],
    contexts: Sequence[DeviceContext],
    *options: object,
) -> KnownCall | None:
    """A call that may be known; None where its forms do not tell all that it takes.

    That is where devices differ, a stream is asked for, or a tensor is more than plain memory.

    >>> known_call("sum", [torch.empty(2)], [torch.ones(2)], [], [DeviceContext("cpu")]) is None
    False
    """
    places = [context.place for context in contexts]
    if not places or min(places) < -1 or (places[0] >= 0 and places[0] != torch._C._cuda_getDevice()):
        return None
    # Functions of torch, each on all operands: a loop over these in Python would take as long as the launch.
    operands = [*outputs, *inputs]
    if not operands or not _PLAIN.issuperset(map(type, operands)) or not all(map(_is_contiguous, operands)):
        return None
    # Calls that are known have operands of one dtype.
    if any(map(_is_neg, operands)) or (operands[0].is_complex() and any(map(_is_conj, operands))):
        return None
    forms = (*map(_shape, operands), *map(_dtype, operands), *map(_place, operands))
    addresses = list(map(_data_ptr, operands))
    bits = reduce(or_, addresses, 16)
    key = (name, options, *map(id, signals), *places, *forms, len(outputs), bits & -bits)
    return KnownCall(key, operands, len(outputs), addresses)


def _overlap(addresses: Sequence[int], nbytes: Sequence[int]) -> bool:
    """Whether some operands share memory."""
    order = sorted(addresses)
    if len(order) < 2 or min(map(sub, order[1:], order)) >= max(nbytes):
        return False
    spans = sorted(zip(addresses, nbytes, strict=True))
    return any(begin + size > following for (begin, size), (following, _) in pairwise(spans))
