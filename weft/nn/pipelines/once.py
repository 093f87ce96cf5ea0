"""`reduced_once`: the gradients of all microbatches add up on each device before devices add up theirs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import final

import torch

from ...engine.held_gradient import keep_gradient
from ...engine.moves.adding_up import adding_up
from ...engine.moves.movement import aligned
from ...tensor.tensor import public

__all__ = ["reduced_once"]


@final
class reduced_once:  # noqa: N801 - read as a word: `with reduced_once(parameters):`
    """Inside, sums of gradients over devices are left pending; at the end they are taken, and added to what was there."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = list({id(x): x for x in parameters}.values())
        self._before: list[torch.Tensor | None] = []
        self._block = ExitStack()

    def __enter__(self) -> None:
        self._before = [x.grad for x in self._parameters]
        for x in self._parameters:
            keep_gradient(public(x), None)  # and not what is held back, which stays
        self._block.enter_context(adding_up())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.close()
        if error is not None:  # what the others have is not known: each keeps what it had
            for x, earlier in zip(self._parameters, self._before, strict=True):
                keep_gradient(public(x), earlier)
            return
        with torch.no_grad():
            for x, earlier in zip(self._parameters, self._before, strict=True):
                found = aligned(x.grad, public(x)._layout)
                total = found if earlier is None else earlier if found is None else earlier + found
                keep_gradient(public(x), total)
