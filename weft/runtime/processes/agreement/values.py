"""What every process knows of the others: small values, as JSON. Nothing that arrives is ever unpickled."""

from __future__ import annotations

import json
from typing import TypeVar

import torch

from .. import world
from ..communicating import communicating
from ..current_call import CollectiveCall
from ..group import Group, group_of
from ..transport.exchange import is_compared, swap

__all__ = ["gathered"]

T = TypeVar("T")


def gathered(value: T, op: str = "an agreement") -> list[T]:
    """What each process of the program gives, in order; a value is what JSON has words for, and tuples arrive as lists.

    >>> gathered({"a": [1, 2]})
    [{'a': [1, 2]}]
    """
    here = world.current()
    if here.count == 1:
        return [json.loads(json.dumps(value))]
    if here.is_fake:  # as if all said the same
        return [json.loads(json.dumps(value)) for _ in range(here.count)]
    everyone = tuple(range(here.count))
    mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    with communicating(
        CollectiveCall(op, "what each process has"), everyone, is_compared=is_compared(everyone, _SIZE, _wire())
    ):
        group = group_of(everyone)  # which is another after what surrounds the call, if one has left an exchange
        sizes = _from_each(group, torch.tensor([mine.numel()]), [1] * group.size).tolist()
        whole = bytes(_from_each(group, mine, sizes).numpy())
    found, at = [], 0
    for size in sizes:
        found.append(json.loads(whole[at : at + size]))
        at += size
    return found


_SIZE = torch.int64.itemsize
"""Bytes of the first messages, which say how long the others are: small ones, so that calls are compared by them."""


def _wire() -> torch.device:
    return torch.device("cpu" if world.current().backend("cpu") else "cuda")


def _from_each(group: Group, mine: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """What each process gives to all, one after another."""
    wire = _wire()
    arrived = torch.empty(sum(sizes), dtype=mine.dtype, device=wire)
    incoming = dict(enumerate(arrived.split(sizes)))
    incoming.pop(group.index).copy_(mine)
    swap(group, dict.fromkeys(incoming, mine.to(wire)), incoming, wire, max(sizes) * mine.itemsize)
    return arrived.cpu()
