"""Where there is a GPU, it stands in for as many as the tests need, and plain tensors are made on it too."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.overrides import TorchFunctionMode

_DRAWS = (torch.rand, torch.randn, torch.randint, torch.randperm)


class DrawOnHost(TorchFunctionMode):
    """What is drawn from a seeded host generator is drawn there, and then moved: the same numbers as without a GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if func in _DRAWS and generator is not None and generator.device.type == "cpu" and "device" not in kwargs:
            return func(*args, **kwargs, device="cpu").to(torch.get_default_device())
        return func(*args, **kwargs)


def on_host() -> AbstractContextManager[object]:
    """Where plain tensors are made in host memory all the same: list ops on a GPU do not see what they themselves write."""
    return torch.device("cpu") if torch.cuda.is_available() else nullcontext()


def prefer_gpu() -> None:
    """Make plain tensors on the GPU from now on, if there is one."""
    os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "64")
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
        DrawOnHost().__enter__()
