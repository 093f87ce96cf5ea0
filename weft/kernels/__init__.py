"""Collectives between GPUs as Triton programs: one call serves all devices, one launch all that share a GPU.

    check -> plain tensors -> `KernelWork` (plain numbers) for each `GpuGroup` of devices on one GPU -> one launch each

Every collective has one static `execute(outputs, input or inputs, signal_buffers, dev_ctxs_input, *, ...)`.

>>> import torch
>>> contexts = [DeviceContext("cpu")] * 4  # GPUs: DeviceContext("cuda:0"), ...
>>> signals = [signal_buffer(context.device) for context in contexts]
>>> outputs = [torch.empty(3) for _ in contexts]
>>> DistributedBroadcast.execute(outputs, torch.arange(3.0), signals, contexts)
>>> outputs[3]
tensor([0., 1., 2.])
"""

from __future__ import annotations

try:
    import triton  # noqa: F401
except ModuleNotFoundError as missing:
    raise ImportError(
        "weft.kernels needs Triton, which is not installed. A torch built for GPUs brings it; "
        "otherwise install it with: pip install 'triton>=3.6'"
    ) from missing

from .collectives.all_gather import DistributedAllGather
from .collectives.all_reduce import DistributedAllReduce
from .collectives.all_to_all import DistributedAllToAll
from .collectives.broadcast import DistributedBroadcast
from .collectives.open_collective import MAX_GPUS
from .collectives.reduce_scatter import DistributedReduceScatter
from .context import DeviceContext
from .signals import SIGNAL_BYTES, signal_buffer

__all__ = [
    "MAX_GPUS",
    "SIGNAL_BYTES",
    "DeviceContext",
    "DistributedAllGather",
    "DistributedAllReduce",
    "DistributedAllToAll",
    "DistributedBroadcast",
    "DistributedReduceScatter",
    "signal_buffer",
]
