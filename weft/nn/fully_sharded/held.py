"""`Held`: parts of a module that are fully sharded, gathered once and reduced once for several runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch

from ...engine.programs.compiling import announce
from .block import Block
from .reducing import Scattered
from .siblings import Siblings

__all__ = ["Dropping", "Held", "siblings_of"]


@final
class Dropping:
    """A hook that lets go of what was gathered ahead, and of what was read, when the module has run."""

    def __init__(self, siblings: Siblings) -> None:
        self.siblings = siblings

    def __call__(self, *_: object) -> None:
        announce()  # what follows is called by compiled code, and not compiled
        self.siblings.end()


def siblings_of(module: torch.nn.Module) -> Siblings | None:
    """The blocks of a module that is fully sharded."""
    hooks = getattr(module, "_forward_hooks", {}).values()
    return next((hook.siblings for hook in hooks if isinstance(hook, Dropping)), None)


@final
class Held:
    """The fully sharded parts of a module: from now on, what a run gathers stays whole, and gradients stay as devices compute them.

    `end` begins to reduce them, once, and gives the memory back; `take` adds them to those of the parameters.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._before = [(siblings, siblings.is_syncing) for siblings in _parts(module)]
        self._scattered: list[tuple[Block, Scattered]] = []
        for siblings, _ in self._before:
            siblings.is_holding, siblings.is_syncing = True, False

    def end(self) -> None:
        """After the last run. What a caller wants to keep, by `no_sync`, is kept on."""
        for siblings, was_syncing in self._ended():
            if was_syncing:
                self._scattered += siblings.reduce_kept()

    def take(self) -> None:
        """Waits for the gradients."""
        while self._scattered:
            block, scattered = self._scattered.pop(0)
            block.take(scattered.wait())

    def abandon(self) -> None:
        """Where a run has failed: nothing is reduced, and other processes are not waited for."""
        for siblings, was_syncing in self._ended():
            if was_syncing:
                siblings.forget_kept()

    def _ended(self) -> Iterator[tuple[Siblings, bool]]:
        before, self._before = self._before, []
        for siblings, was_syncing in before:
            siblings.is_syncing = was_syncing
            siblings.let_go()
            yield siblings, was_syncing


def _parts(module: torch.nn.Module) -> Iterator[Siblings]:
    for child in module.modules():
        siblings = siblings_of(child)
        if siblings is not None:
            yield siblings
