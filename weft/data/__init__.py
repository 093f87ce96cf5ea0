"""Data for sharded models: batches of which each process loads what its devices need.

>>> import torch, weft
>>> from torch.utils.data import DataLoader, TensorDataset
>>> loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=4)
>>> [x for (x,) in weft.data.batches(loader, weft.make_mesh({"dp": 2}), weft.P("dp"))][0]
Tensor(f32[4@dp] on dp=2)
[0., 1., 2., 3.]
"""

from .batches import Batches, batches
from .order import Order

__all__ = ["Batches", "Order", "batches"]
