"""Which ops torch is seen to call on sharded tensors."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

import weft


class Seen(TorchDispatchMode):
    """The ops on sharded tensors, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names += [str(func)] if weft.Tensor in types else []
        return func(*args, **(kwargs or {}))
