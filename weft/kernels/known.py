"""Known calls: what was worked out for one call serves others on tensors of the same forms, whatever their addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch

from ..caches import BoundedCache
from .context import DeviceContext
from .launch import Launch, prepared

__all__ = ["KnownCall", "known_call"]

Key: TypeAlias = tuple[object, ...]
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ADDRESSES = 16
"""The arguments of a launch that are addresses of operands: eight sources, then eight targets."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A launch whose addresses are still to be filled in."""

    run: Callable[[Sequence[int]], object]
    arguments: tuple[int, ...]
    operands: tuple[tuple[int, int], ...]
    """Which argument is the address of which operand."""
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
        arguments = list(ready.arguments)
        for at, operand in ready.operands:
            arguments[at] = self._addresses[operand]
        ready.run(arguments)
        written = self._operands[: self._outputs]
        if any(map(torch.Tensor.is_inference, written)):
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
        places = {address: operand for operand, address in enumerate(self._addresses)}
        given = [(at, address) for at, address in enumerate(launch.arguments[:_ADDRESSES]) if address]
        if all(address in places for _, address in given):
            operands = tuple((at, places[address]) for at, address in given)
            _ready[self._key] = _Ready(prepared(launch), launch.arguments, operands, nbytes)


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
    operands = [*outputs, *inputs]
    if not contexts or any(context.stream is not None or context.own_launch for context in contexts):
        return None
    device = contexts[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        return None
    key: list[object] = [name, options, *map(id, signals), *[context.device for context in contexts]]
    addresses: list[int] = []
    bits = 16
    for x in operands:
        if type(x) not in _PLAIN or x.is_neg() or x.is_conj() or not x.is_contiguous() or not x.numel():
            return None
        address = x.data_ptr()
        addresses.append(address)
        bits |= address
        key += (x.shape, x.dtype, x.device)
    key += (len(outputs), bits & -bits)
    return KnownCall(tuple(key), operands, len(outputs), addresses)


def _overlap(addresses: Sequence[int], nbytes: Sequence[int]) -> bool:
    """Whether some operands share memory."""
    spans = sorted(zip(addresses, nbytes, strict=True))
    return any(begin + size > following for (begin, size), (following, _) in pairwise(spans))
