"""The batch of a step: its tensors stand in memory of the recording, everything else is part of what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import optree
import torch

from ...engine.moves.resolving import resolve
from ...engine.sharded import ShardedTensor, tensor_of
from .state import pieces_of

__all__ = ["Batch", "HeldLeaves", "flat", "flattened", "settled"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""What is no tensor, and is recorded as it is."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step is called with, leaf by leaf."""

    leaves: list[object]
    tree: optree.PyTreeSpec

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the leaves."""
        return [x for x in self.leaves if isinstance(x, torch.Tensor)]

    @property
    def strange(self) -> str:
        """The type of a leaf that is neither a tensor nor a plain value; nothing if there is none."""
        kinds = [type(x).__name__ for x in self.leaves if not isinstance(x, (torch.Tensor, *_PLAIN))]
        return kinds[0] if kinds else ""

    def key(self) -> tuple[object, ...]:
        """All that is known of a batch without the values of its tensors."""
        return (self.tree, *map(_token, self.leaves))

    def on(self, device: torch.device) -> Batch:
        """The same with plain tensors of the host brought to a device, and nothing pending."""
        return Batch([_brought(x, device) for x in self.leaves], self.tree)

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """By position and by name."""
        given = optree.tree_unflatten(self.tree, self.leaves)
        return cast("tuple[tuple[object, ...], dict[str, object]]", given)


def flat(positional: tuple[object, ...], named: dict[str, object]) -> Batch:
    """A batch, leaf by leaf.

    >>> flat((torch.ones(2), {"mask": None}), {}).leaves
    [tensor([1., 1.]), None]
    """
    return Batch(*flattened((positional, named)))


def flattened(tree: object) -> tuple[list[object], optree.PyTreeSpec]:
    """The leaves of nested containers, and how they hang together."""
    leaves: list[object]
    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True)  # type: ignore[arg-type]
    return leaves, spec


def settled(x: object) -> object:
    """A result of a step: no longer part of autograd's graph, and with nothing pending."""
    if not isinstance(x, torch.Tensor):
        return x
    with torch.no_grad():
        if isinstance(x, ShardedTensor) and x._layout.pending:
            x = resolve(x, "a captured step")
        return x.detach().clone() if isinstance(x, ShardedTensor) and x._form.is_special else x.detach()


@dataclass(frozen=True, slots=True)
class HeldLeaves:
    """Leaves whose tensors lie in memory of their own."""

    leaves: list[object]
    tree: optree.PyTreeSpec
    pieces: list[torch.Tensor]
    """Those of all tensors among the leaves."""

    @classmethod
    def of(cls, leaves: Sequence[object], tree: optree.PyTreeSpec, *, copied: bool) -> HeldLeaves:
        """These leaves, `copied` or as they are."""
        held = [_copy(x) if copied and isinstance(x, torch.Tensor) else x for x in leaves]
        return cls(held, tree, [piece for x in held if isinstance(x, torch.Tensor) for piece in pieces_of(x)])

    def copy(self) -> HeldLeaves:
        """The same, in other memory."""
        return HeldLeaves.of(self.leaves, self.tree, copied=True)

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Writes the values of other tensors of these forms into the memory."""
        given = [piece for x in tensors for piece in pieces_of(x)]
        if given:
            torch._foreach_copy_(self.pieces, given)


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A copy that shares no memory, not even until one of both is written to."""
    if not isinstance(x, ShardedTensor):
        return _cloned(x)
    return tensor_of(x._form, tuple(_cloned(piece) for piece in x._value.pieces))


def _cloned(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _token(x: object) -> object:
    if isinstance(x, ShardedTensor):
        return x._form
    if isinstance(x, torch.Tensor):
        return type(x), x.shape, x.stride(), x.dtype, x.device
    return type(x), x


def _brought(x: object, device: torch.device) -> object:
    if isinstance(x, ShardedTensor):
        x = settled(x)
        assert isinstance(x, ShardedTensor)
        return x if x.device == device else x.to(device)
    return x.to(device) if isinstance(x, torch.Tensor) else x
