"""`full_state_dict`: the state of a module as plain tensors, for libraries that save and load these."""

from __future__ import annotations

import torch

from ...tensor.tensor import Tensor
from ..shares import check_has_values, settled

__all__ = ["full_state_dict"]


def full_state_dict(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What `module.state_dict()` says, with whole plain tensors in host memory; tied parameters are one tensor.

    Every process calls this, and has room for all of it: `weft.checkpoint.save` gathers nothing.

    >>> import torch, weft
    >>> model = weft.nn.shard_module(torch.nn.Linear(4, 2), weft.make_mesh({"tp": 2}), {"weight": weft.P("tp")})
    >>> type(weft.checkpoint.full_state_dict(model)["weight"])
    <class 'torch.Tensor'>
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"full_state_dict takes a torch.nn.Module, but got {type(module).__name__}")
    whole: dict[int, torch.Tensor] = {}
    result: dict[str, torch.Tensor] = {}
    for name, x in module.state_dict(keep_vars=True).items():
        if isinstance(x, torch.Tensor) and id(x) not in whole:
            whole[id(x)] = _whole(name, x)
        result[name] = whole[id(x)] if isinstance(x, torch.Tensor) else x
    return result


def _whole(name: str, x: torch.Tensor) -> torch.Tensor:
    """The value in host memory that belongs to nobody else."""
    check_has_values({name: x})
    value = settled(x.detach())
    value = value.full_tensor() if isinstance(value, Tensor) else value
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)
