"""`shard_activations`: what goes into and comes out of submodules is brought to a layout, by the submodules' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

from ..engine.moves.movement import layout_of
from ..sharding.mapping import DeviceMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.spec import Spec
from ..tensor.movements import redistribute
from .patterns import Patterns

__all__ = ["shard_activations"]

Module = TypeVar("Module", bound=torch.nn.Module)


def shard_activations(
    module: Module,
    mesh: DeviceMesh,
    *,
    inputs: Mapping[str, Spec] | None = None,
    outputs: Mapping[str, Spec] | None = None,
) -> Module:
    """Brings the first argument, or the result, of submodules to a layout, by name patterns, and returns the module.

    Ops find layouts for themselves; this says where a movement pays off because several ops use its result. The patterns
    are those of `shard_module`, on the names of submodules. The hooks that do it are torch's own.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 4})
    >>> model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(8, 8))
    >>> model = weft.nn.shard_activations(weft.nn.shard_module(model, mesh, {}), mesh, inputs={"0": P("dp")})
    >>> model(torch.ones(4, 8)).mapping.spec
    P('dp', None)
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"shard_activations takes a torch.nn.Module, but got {type(module).__name__}")
    before, after = Patterns(mesh, inputs or {}), Patterns(mesh, outputs or {})
    named = {name: child for name, child in module.named_modules() if name}
    for patterns in (before, after):
        patterns.check_used(named, "submodule of this module")
    for name, child in named.items():
        if before.match(name) is not None:
            child.register_forward_pre_hook(_Argument(before.mapping(name)))
        if after.match(name) is not None:
            child.register_forward_hook(_ResultHook(after.mapping(name)))
    return module


class _Argument:
    """A hook that lays out the first argument."""

    def __init__(self, mapping: DeviceMapping) -> None:
        self.mapping = mapping

    def __call__(self, module: torch.nn.Module, args: tuple[object, ...]) -> tuple[object, ...]:
        return (_laid(args[0], self.mapping, module), *args[1:]) if args else args


class _ResultHook:
    """A hook that lays out the result, or the first of several."""

    def __init__(self, mapping: DeviceMapping) -> None:
        self.mapping = mapping

    def __call__(self, module: torch.nn.Module, _: tuple[object, ...], result: object) -> object:
        if isinstance(result, tuple) and result:
            return (_laid(result[0], self.mapping, module), *result[1:])
        return _laid(result, self.mapping, module)


def _laid(x: object, mapping: DeviceMapping, module: torch.nn.Module) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            f"shard_activations lays out a tensor, but {type(module).__name__} was given or returned a {type(x).__name__} first"
        )
    return x if layout_of(x) is mapping.layout(x.dim()) else redistribute(x, mapping, op="shard_activations")
