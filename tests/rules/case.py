"""`Case`: one function of tensors that must equal plain torch in every layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.sharding.mesh import DeviceMesh

from .harness import MESHES, Function, check

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """A function, what it is given, and how `check` tries it; the page of layouts shows what it moves."""

    function: Function
    tensors: tuple[torch.Tensor, ...]
    limit: int = 6
    pending: bool = True
    grad: bool = True
    meshes: Sequence[DeviceMesh] = MESHES
    rtol: float = 1e-9
    atol: float = 1e-9

    def check(self) -> None:
        """In every layout, the function gives what it gives on one device, forward and in its gradients."""
        check(
            self.function,
            *self.tensors,
            grad=self.grad,
            pending=self.pending,
            limit=self.limit,
            meshes=self.meshes,
            rtol=self.rtol,
            atol=self.atol,
        )
