"""`Stage`: one part of the model on its mesh, and what is kept of microbatches until their backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from ...engine.moves.movement import aligned
from ...sharding.mesh import DeviceMesh
from ...tensor.tensor import Tensor, public
from ..fully_sharded.held import Held
from .activation import settled
from .splitting import SplitBackward

__all__ = ["KeptMicrobatch", "Stage"]

Outputs = tuple[torch.Tensor, ...]


@final
class KeptMicrobatch:
    """One microbatch in one stage: what came in, what came out, and, between its two backward passes, the rest of the graph."""

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.rest: SplitBackward | None = None


@final
class Stage:
    """One part of the model on its mesh."""

    def __init__(self, number: int, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        self.number, self.module, self.mesh = number, module, mesh
        self._held: Held | None = None

    def begin(self) -> None:
        """Before the first microbatch: what is fully sharded is gathered once for all of them."""
        self._held = Held(self.module)

    def end(self) -> None:
        """After the last microbatch: begins to reduce the gradients of what is fully sharded."""
        if self._held is not None:
            self._held.end()

    def settle(self) -> None:
        """Waits until these gradients are there."""
        if self._held is not None:
            self._held.take()
            self._held = None

    def abandon(self) -> None:
        """After a step that has failed."""
        if self._held is not None:
            self._held.abandon()
            self._held = None

    def outputs(self, inputs: Sequence[torch.Tensor]) -> tuple[Outputs, bool]:
        """What the module gives, and whether that is a tuple."""
        found = self.module(*inputs)
        several = isinstance(found, (tuple, list))
        outputs = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        for each in outputs:
            if not isinstance(each, torch.Tensor):
                raise TypeError(
                    f"stage {self.number} ({type(self.module).__name__}) gave a {type(each).__name__}: "
                    "a stage gives a tensor, or a tuple of tensors"
                )
        return tuple(settled(each, self.mesh, "pipeline") for each in outputs), several

    def backward(
        self, kept: KeptMicrobatch, gradients: Sequence[torch.Tensor | None], *, split: bool
    ) -> list[Tensor | None]:
        """The gradients of what came in, in its layout; those of weights are added to what they have, or wait if `split`."""
        given = [(y, g) for y, g in zip(kept.outputs, gradients, strict=True) if y.requires_grad and g is not None]
        wanted = [x for x in kept.inputs if x.requires_grad]
        outputs, seeds = [y for y, _ in given], [g for _, g in given]
        kept.outputs = ()
        if not outputs:
            found: list[torch.Tensor | None] = [None] * len(wanted)
        elif split:
            kept.rest = SplitBackward(outputs, wanted)
            found = kept.rest.input_gradients(seeds)
        else:
            torch.autograd.backward(outputs, seeds)
            found = [x.grad for x in wanted]
        del outputs, seeds, given
        gradient_of = dict(zip(map(id, wanted), found, strict=True))
        laid = [_laid(gradient_of.get(id(x)), x) for x in kept.inputs]
        kept.inputs = ()
        return laid

    def weight_gradients(self, kept: KeptMicrobatch) -> None:
        """The gradients of weights that have waited."""
        if kept.rest is not None:
            kept.rest.weight_gradients()
            kept.rest = None


def _laid(gradient: torch.Tensor | None, x: Tensor) -> Tensor | None:
    """A gradient in the layout of what it is for; zeros where a stage has not used what it got."""
    if not x.requires_grad:
        return None
    if gradient is None:
        with torch.no_grad():
            return public(torch.zeros_like(x))
    found = aligned(gradient.detach(), x._layout)
    assert found is not None
    return public(found)
