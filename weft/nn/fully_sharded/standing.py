"""`Standing`: where the parameters of a block stand, and what stands there while the block runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch._C import _functorch as functorch

from ...tensor.tensor import Tensor, public

__all__ = ["Place", "Standing", "refuse_transforms"]

Place = tuple[torch.nn.Module, str]
"""Where a parameter stands: the module that holds it, and its name there."""


@final
class Standing:
    """For each parameter of a block, all places where it stands: several, where it is tied."""

    def __init__(self, places: Sequence[Sequence[Place]]) -> None:
        self._places = places
        self._stood: list[list[torch.Tensor | None]] | None = None
        """What stood there before others were put in its place."""

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lets tensors stand there, until `restore`."""
        if self._stood is None:
            self._stood = [[_at(place) for place in listed] for listed in self._places]
        for x, listed in zip(tensors, self._places, strict=True):
            for owner, name in listed:
                owner._parameters[name] = x  # type: ignore[assignment]

    def restore(self) -> None:
        """What stood there stands there again."""
        stood, self._stood = self._stood, None
        for found, listed in zip(stood or (), self._places if stood else (), strict=True):
            for x, (owner, name) in zip(found, listed, strict=True):
                owner._parameters[name] = x  # type: ignore[assignment]

    def changed(self, own: Sequence[Tensor]) -> list[Tensor] | None:
        """The tensors that stand there now, checked, where some are others than these; None where all are these.

        Others come by `load_state_dict(assign=True)`, by assigning to a module, and by `torch.func.functional_call`.
        """
        if self._stood is not None:
            return None  # a block that runs inside of itself
        if all(_at(place) is x for x, listed in zip(own, self._places, strict=True) for place in listed):
            return None
        return [_found(x, listed) for x, listed in zip(own, self._places, strict=True)]


def _at(place: Place) -> torch.Tensor | None:
    owner, name = place
    return owner._parameters.get(name)


def _found(own: Tensor, places: Sequence[Place]) -> Tensor:
    """What stands in the places of a parameter, where a block can compute with it."""
    (owner, name), x = places[0], _at(places[0])
    what = f"{name!r} of {type(owner).__name__}, a parameter that fully_shard has split,"
    if x is own:
        return own
    if any(_at(place) is not x for place in places):
        raise ValueError(f"{what} was tied and is not any more: tie it again, or call fully_shard afterwards")
    if x is None:
        raise ValueError(
            f"{what} is gone: change modules first (parametrizations, pruning), and call fully_shard afterwards"
        )
    if not isinstance(x, Tensor) or x._layout is not own._layout or x.shape != own.shape:
        here = x._layout if isinstance(x, Tensor) else "a plain tensor"
        raise ValueError(
            f"{what} was replaced by another of shape {tuple(x.shape)}, {here}, but has to have shape {tuple(own.shape)} and lie "
            f"as {own._layout} on {own.mesh}: use load_state_dict without assign=True, or give x.redistribute(parameter.mapping)"
        )
    if not x.is_leaf:
        raise NotImplementedError(
            f"{what} was replaced by a tensor that was computed, to which its gradient does not go back: give a leaf "
            "(x.detach()), or split the model by weft.nn.shard_module(model, mesh, {'*': P('dp')})"
        )
    return public(x)


def refuse_transforms() -> None:
    """Inside of `torch.func` transforms a block does not run: what it gathers comes and goes, and they would keep it."""
    if functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError(
            "a module that fully_shard has split does not run inside of torch.func transforms (grad, vjp, jvp, jacrev, vmap): use "
            "torch.autograd, or split the model by weft.nn.shard_module(model, mesh, {'*': P('dp')})"
        )
