"""The communication ops under one name, as `weft.ops`.

>>> import torch, weft
>>> weft.ops.shard is weft.shard
True
"""

from .tensor.collectives import all_gather, all_reduce, all_to_all, ppermute, reduce_scatter
from .tensor.movements import accelerator, cpu, distributed_broadcast, gpu, reshard, shard, to_device, transfer_to

__all__ = [
    "accelerator",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "cpu",
    "distributed_broadcast",
    "gpu",
    "ppermute",
    "reduce_scatter",
    "reshard",
    "shard",
    "to_device",
    "transfer_to",
]
