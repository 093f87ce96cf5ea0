"""Combining on one GPU: several tensors into one, in one launch and with little work for the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..runtime.memory.accelerator import address
from .element import element
from .group import GpuGroup
from .launch import launches, start
from .signals import ORDINALS
from .work import KernelWork

__all__ = ["combine_into"]

_NAME = "combine_into"


def combine_into(output: torch.Tensor, inputs: Sequence[torch.Tensor], reduce_op: str = "sum") -> None:
    """Write the combination of 1 to 8 tensors, first to last, to one that lies apart from them on the same device.

    All are contiguous and of one shape and dtype; this is what `DistributedAllReduce` does for devices that share a GPU
    and an output, without its checks and its streams.

    >>> total = torch.empty(2)
    >>> combine_into(total, [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])])
    >>> total
    tensor([11., 22.])
    """
    if not output.numel():
        return
    kind = element(_NAME, output.dtype, reduce_op)
    work = KernelWork("combine", tuple(map(address, inputs)), (output.data_ptr(),), (0, output.nbytes))
    group = GpuGroup(tuple(range(len(inputs))), output.device, _other_stream(output.device), ORDINALS)
    start(launches([work], [group], (0,), (reduce_op, kind), meeting=False))
    if not output.is_inference():
        torch.autograd.graph.increment_version(output)


def _other_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The stream to change to; None where the current one is right."""
    if device.type == "cpu" or device.index == torch.cuda.current_device():
        return None
    return torch.cuda.current_stream(device)
