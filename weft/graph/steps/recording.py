"""A step as one launch: the eager step, written down as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import optree
import torch
from torch.autograd.graph import increment_version

from ...engine.total import note_write
from ...engine.views.copy_views import note_unseen_write
from ...runtime.accelerator_kernels import few_launches
from ...watch.comm_log import CommRecord, comm_log, log_again
from ..running.cuda_capture import without_warning
from .inputs import Batch, HeldLeaves, flattened
from .state import Lying

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

__all__ = ["Recording", "record"]


@dataclass(frozen=True, slots=True)
class Recording:
    """A step as one launch, with the memory of its batch, of its results and of the gradients it leaves."""

    launch: torch.cuda.CUDAGraph
    batch: HeldLeaves
    results: HeldLeaves
    state: Lying
    parameters: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    moved: tuple[CommRecord, ...] = field(repr=False)
    """What the step moves, for the logs."""

    def run(self, batch: Batch, *, is_first: bool = False) -> object:
        """The step with another batch; the first time is the one that has been logged while it was recorded."""
        self.batch.take(batch.tensors)
        note_write()
        note_unseen_write()
        self.launch.replay()
        increment_version(self.parameters)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
        if not is_first:
            log_again(self.moved)
        results = self.results.copy()
        return optree.tree_unflatten(results.tree, results.leaves)


def record(
    step: Callable[[Batch], object],
    batch: Batch,
    state: Lying,
    parameters: list[torch.Tensor],
    stream: torch.cuda.Stream,
    pool: _POOL_HANDLE,
) -> Recording:
    """Writes a step down without running it."""
    held = HeldLeaves.of(batch.leaves, batch.tree, copied=True)
    launch = torch.cuda.CUDAGraph()
    with (
        few_launches(),
        _fresh_casts(),
        without_warning(),
        comm_log() as log,
        torch.cuda.graph(launch, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        # The step gets copies: what it shares of them until somebody writes must not part the memory that batches come to.
        given = held.copy()
        leaves, tree = flattened(step(Batch(given.leaves, given.tree)))
    gradients = [parameter.grad for parameter in parameters]
    results = HeldLeaves.of(leaves, tree, copied=False)
    return Recording(launch, held, results, state, parameters, gradients, tuple(log.records))


@contextmanager
def _fresh_casts() -> Iterator[None]:
    """Inside, autocast starts with no parameter cast, and nobody finds afterwards what was cast in a recording."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
