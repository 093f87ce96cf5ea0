"""`Tied`: one parameter that stages on several meshes use. It lives on one of them; the others get a copy for each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from ...engine.held_gradient import keep_gradient
from ...engine.moves.movement import aligned
from ...engine.sharded import ShardedTensor
from ...sharding.mesh import DeviceMesh
from ...tensor.movements import redistribute
from ...tensor.tensor import Tensor, public
from .activation import absent
from .ownership import is_here

__all__ = ["Tied", "untie"]

Place = tuple[DeviceMesh, torch.nn.Module, str]
"""Where a copy stands: its mesh, the module that uses it, and its name there."""


@final
class Tied:
    """A parameter, and where copies of it stand. A copy is a buffer that no checkpoint holds."""

    def __init__(self, parameter: torch.nn.Parameter, copies: Sequence[Place]) -> None:
        self._parameter, self._copies = parameter, tuple(copies)
        self._values: list[Tensor] = []

    def bring(self, *, with_gradient: bool) -> None:
        """Gives each stage the value that the parameter has now."""
        self._values = []
        for mesh, owner, name in self._copies:
            mapping = public(self._parameter).mapping.to_mesh(mesh)
            value = public(redistribute(self._parameter.detach(), mapping, op="tied parameter"))
            if with_gradient and self._parameter.requires_grad:
                value.requires_grad_()
            owner._buffers[name] = value
            self._values.append(value)

    def collect(self) -> None:
        """Adds the gradients of all copies to the parameter's."""
        parameter = public(self._parameter)
        if not parameter.requires_grad:
            return
        for value, (mesh, _, _) in zip(self._values, self._copies, strict=True):
            if is_here(mesh):
                found = aligned(value.grad, value._layout)
                gradient = public(torch.zeros_like(value) if found is None else found)
            else:
                gradient = absent(value._layout, tuple(value.shape), value.dtype)
            moved = redistribute(gradient, parameter.mapping, op="tied parameter")
            with torch.no_grad():
                keep_gradient(parameter, moved if parameter.grad is None else parameter.grad + moved)
        self._values = []


def untie(stages: Sequence[torch.nn.Module], meshes: Sequence[DeviceMesh]) -> list[Tied]:
    """Finds parameters that stages on different meshes share, and makes all uses but those on one mesh copies.

    A parameter stays where it lies, if it lies on one of the meshes already, else on that of the first stage that uses it.
    """
    uses: dict[int, list[tuple[int, torch.nn.Module, str]]] = {}
    parameters: dict[int, torch.nn.Parameter] = {}
    for number, stage in enumerate(stages):
        for owner in stage.modules():
            for name, parameter in owner._parameters.items():
                if parameter is not None:
                    parameters[id(parameter)] = parameter
                    uses.setdefault(id(parameter), []).append((number, owner, name))
    found = []
    for key, places in uses.items():
        parameter = parameters[key]
        home = parameter.mesh if isinstance(parameter, ShardedTensor) else meshes[places[0][0]]
        copies = [(meshes[number], owner, name) for number, owner, name in places if meshes[number] != home]
        if not copies or len(copies) == len(places):
            continue
        for _, owner, name in copies:
            del owner._parameters[name]
            owner.register_buffer(name, None, persistent=False)
        found.append(Tied(parameter, copies))
    return found
