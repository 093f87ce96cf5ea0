"""Lets `torch.load` read files with sharded tensors with its default, `weights_only=True`: says what such files may name."""

from __future__ import annotations

import torch

from ..devices import CPU, Accelerator
from ..sharding.layout import Layout
from ..sharding.mapping import NamedMapping, PlacementMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.named import DimSpec, P
from ..sharding.placements import Partial, ReduceOp, Replicated, Sharded
from .pickling import rebuilt

__all__: list[str] = []

# Words, which cannot act, and the function that puts a tensor together of plain ones.
torch.serialization.add_safe_globals(
    [
        Accelerator,
        CPU,
        DeviceMesh,
        DimSpec,
        Layout,
        NamedMapping,
        P,
        Partial,
        PlacementMapping,
        ReduceOp,
        Replicated,
        Sharded,
        rebuilt,
    ]
)
