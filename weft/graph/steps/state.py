"""What a step reads and writes between its calls, and whether it still lies where a recording reads and writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING

import torch

from ...engine.sharded import ShardedTensor
from ...runtime.holding import Pieces
from ...runtime.memory.lazy_copy import part

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Lying", "lying", "pieces_of", "state_of"]

_address: Callable[[torch.Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]


def pieces_of(x: torch.Tensor) -> Pieces:
    """The plain tensors that a tensor is stored as.

    >>> x = torch.ones(2)
    >>> pieces_of(x)[0] is x
    True
    """
    return x._value.pieces if isinstance(x, ShardedTensor) else (x,)


def state_of(modules: Iterable[torch.nn.Module], optimizer: Optimizer) -> list[torch.Tensor]:
    """Parameters, buffers, and what the optimizer keeps of them, in one order; some may be there twice.

    >>> model = torch.nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD(model.parameters())
    >>> len(state_of(model.modules(), optimizer))
    4
    """
    found = [
        x for each in modules for table in (each._parameters, each._buffers) for x in table.values() if x is not None
    ]
    for group in optimizer.param_groups:
        found += group["params"]
    for of in optimizer.state.values():
        found += [x for x in of.values() if isinstance(x, torch.Tensor)]
    return found


@dataclass(frozen=True, slots=True)
class Lying:
    """Where tensors lay when a step was recorded."""

    tensors: list[torch.Tensor]
    held: list[Pieces]
    """The pieces of each sharded one."""
    flat: list[torch.Tensor]
    addresses: list[int]

    def stays(self, now: list[torch.Tensor]) -> bool:
        """Whether these are the same tensors, where they were; copies that share their memory are parted from them.

        A recording writes to addresses: who shares memory until one of both is written to would not be asked.
        """
        if len(now) != len(self.tensors) or not all(map(is_, now, self.tensors)):
            return False
        if not all(map(is_, _held(now), self.held)):
            return False
        part(self.flat)
        return list(map(_address, self.flat)) == self.addresses


def lying(tensors: list[torch.Tensor]) -> Lying:
    """Where tensors lie, each in memory of its own: asking for an address to write to parts it from its copies.

    >>> x = torch.ones(3)
    >>> there = lying([x])
    >>> there.stays([x]), there.stays([torch.ones(3)])
    (True, False)
    """
    flat = [piece for x in tensors for piece in pieces_of(x)]
    part(flat)
    return Lying(tensors, _held(tensors), flat, list(map(_address, flat)))


def _held(tensors: list[torch.Tensor]) -> list[Pieces]:
    return [x._value.pieces for x in tensors if isinstance(x, ShardedTensor)]
