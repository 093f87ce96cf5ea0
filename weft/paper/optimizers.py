"""Optimizers on paper: they tell what they hold, and take the way that they take on accelerators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .recorder import Recorder
from .work import tensors_in

__all__ = ["watched_optimizers"]

_LISTS = "_get_foreach_kernels_supported_devices"
"""What torch asks for the devices on which optimizers compute on all parameters at once."""


@contextmanager
def watched_optimizers(recorder: Recorder, *, on_accelerators: bool) -> Iterator[None]:
    """Inside, the recorder is told what optimizers hold; on accelerators they compute on lists of parameters."""

    def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for x in group["params"]:
                recorder.mark(x, "parameters")
                if x.grad is not None:
                    recorder.mark(x.grad, "gradients")

    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for state in optimizer.state.values():
            for x in tensors_in(state):
                recorder.mark(x, "optimizer state")

    known: Callable[[], list[str]] = getattr(torch_optimizer, _LISTS)
    hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    if on_accelerators:
        setattr(torch_optimizer, _LISTS, lambda: [*known(), "meta"])
    try:
        yield
    finally:
        setattr(torch_optimizer, _LISTS, known)
        for hook in hooks:
            hook.remove()
