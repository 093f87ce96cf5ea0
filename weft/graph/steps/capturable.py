"""Optimizers in recordings: what they count and scale by has to lie on the GPU, where a replay changes it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

__all__ = ["LearningRates", "hyperparameters", "make_capturable", "why_not_capturable", "without_warning"]


def why_not_capturable(optimizer: Optimizer) -> str:
    """Why the steps of an optimizer cannot be recorded; nothing if they can.

    >>> weights = [torch.nn.Parameter(torch.ones(2))]
    >>> why_not_capturable(torch.optim.AdamW(weights))
    ''
    >>> why_not_capturable(torch.optim.Adagrad(weights))
    'Adagrad counts its steps on the host: use an optimizer with capturable=True, or SGD'
    """
    if type(optimizer) is SGD or all("capturable" in group for group in optimizer.param_groups):
        return ""
    return f"{type(optimizer).__name__} counts its steps on the host: use an optimizer with capturable=True, or SGD"


def make_capturable(optimizer: Optimizer, device: torch.device) -> None:
    """Makes an optimizer count its steps on a device from now on."""
    for group in optimizer.param_groups:
        if group.get("capturable", True):
            continue
        group["capturable"] = True
        for parameter in group["params"]:
            of = optimizer.state.get(parameter, {})
            if isinstance(of.get("step"), torch.Tensor):
                of["step"] = of["step"].to(device)


def hyperparameters(optimizer: Optimizer) -> tuple[object, ...]:
    """What a recording of an optimizer holds for good: all that its groups say, but learning rates that it reads anew.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)
    >>> 0.5 in hyperparameters(optimizer)[0]
    True
    """
    return tuple(
        tuple(
            id(value) if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name != "params" and not (name == "lr" and _reads_rate(optimizer, group))
        )
        for group in optimizer.param_groups
    )


def _reads_rate(optimizer: Optimizer, group: dict[str, object]) -> bool:
    """Whether a recording reads a group's learning rate where a replay can change it: not all optimizers can."""
    return isinstance(optimizer, (Adam, AdamW)) and bool(group["capturable"]) and isinstance(group["lr"], float)


@final
class LearningRates:
    """The learning rates of an optimizer, on a device: a schedule changes them between two replays."""

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self._tensors: dict[int, torch.Tensor] = {}
        self._said: dict[int, float] = {}

    def update(self) -> None:
        """Says on the device what the optimizer's groups say."""
        for at, group in enumerate(self._optimizer.param_groups):
            if not _reads_rate(self._optimizer, group):
                continue
            rate = group["lr"]
            if at not in self._tensors:
                self._tensors[at] = torch.full((), rate, dtype=torch.float32, device=self._device)
            elif self._said[at] != rate:
                self._tensors[at].fill_(rate)
            self._said[at] = rate

    @contextmanager
    def as_tensors(self) -> Iterator[None]:
        """Inside, the optimizer reads them from the device."""
        groups = self._optimizer.param_groups
        for at, tensor in self._tensors.items():
            groups[at]["lr"] = tensor
        try:
            yield
        finally:
            for at in self._tensors:
                groups[at]["lr"] = self._said[at]


@contextmanager
def without_warning() -> Iterator[None]:
    """Inside, torch does not mind that a capturable optimizer runs without being recorded, as it does to warm up."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This instance was constructed with capturable=True", UserWarning)
        yield
