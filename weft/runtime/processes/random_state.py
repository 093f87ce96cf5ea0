"""Random numbers agree: processes that join take the random state of the first one."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch._C._distributed_c10d import Store

__all__ = ["share_random_state"]


def share_random_state(store: Store, process: int, timeout: timedelta) -> None:
    """Gives the random state of the first process to the others; CUDA's generators start anew from its seed everywhere."""
    state, seed = "random state", "seed"
    if process == 0:
        store.set(state, bytes(torch.get_rng_state().numpy()).hex())
        store.set(seed, str(torch.initial_seed()))
    else:
        store.wait([state, seed], timeout)
        given = bytearray.fromhex(store.get(state).decode())
        torch.set_rng_state(torch.frombuffer(given, dtype=torch.uint8))
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(int(store.get(seed)))
