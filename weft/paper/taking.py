"""Arguments on paper: copies of what a function is given, its tensors without values, laid out as they were."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import TypeVar

import torch

from ..engine.sharded import ShardedTensor, wrap
from ..runtime.holding import holding
from ..runtime.strides import dense_strides
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from ..sharding.mesh import DeviceMesh
from ..tensor.tensor import public
from .values import Values

__all__ = ["Taken", "taken"]

T = TypeVar("T")
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, torch.dtype, torch.device)


class Taken:
    """What a function is given on paper, and the tensors among it."""

    def __init__(self) -> None:
        self.memo: dict[int, object] = {}
        self.tensors: list[torch.Tensor] = []
        """Those on paper."""
        self.meshes: list[DeviceMesh] = []
        self._values = Values()

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor on paper; the same one for the same one."""
        known = self.memo.get(id(x))
        if isinstance(known, torch.Tensor):
            return known
        if not isinstance(x, ShardedTensor) and not (x.is_meta or x.is_cuda or x.dim() or x.requires_grad):
            self.memo[id(x)] = x.clone()  # a number of the host, such as the count of an optimizer's steps
            return x
        new = self._laid(x) if isinstance(x, ShardedTensor) else _plain(x)
        if isinstance(x, torch.nn.Parameter):
            asked = new._asked if isinstance(new, ShardedTensor) else None
            new = torch.nn.Parameter(new, requires_grad=x.requires_grad)
            if asked is not None:
                new._asked = asked  # type: ignore[attr-defined]
        elif x.requires_grad:
            new.requires_grad_()
        self.memo[id(x)] = new
        self.tensors.append(new)
        if not isinstance(x, ShardedTensor) and not x.is_meta and not x.requires_grad:
            self._values.know(new, x)
        if x.is_leaf and x.grad is not None:
            new.grad = self.take(x.grad)
        return new

    def _laid(self, x: ShardedTensor) -> torch.Tensor:
        layout, shape = x._layout, tuple(x.shape)
        if layout.mesh not in self.meshes:
            self.meshes.append(layout.mesh)
        strides = dense_strides(shape, x.stride())
        pieces = tuple(
            torch.empty_strided(own, dense_strides(own, strides), dtype=x.dtype, device="meta")
            for own in holding(layout).shapes(shape)
        )
        return public(wrap(pieces, layout, shape, asked=x._asked, dtype=x.dtype, strides=strides))


def _plain(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def taken(tree: T, found: Taken) -> T:
    """A copy of modules, optimizers, batches and what else a function is given; the originals stay as they are."""
    for x in _reached(tree):
        if isinstance(x, torch.Tensor):
            found.take(x)
        else:
            found.memo[id(x)] = x  # words are what they are
    return copy.deepcopy(tree, found.memo)


def closed_over(fn: T, found: Taken) -> T:
    """A function with copies of what it has from around it: modules, optimizers and tensors of its closure and its globals."""
    if isinstance(fn, types.FunctionType):
        named = {name: fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__}
        inside = [cell.cell_contents for cell in fn.__closure__ or () if cell != types.CellType()]
        kept = [value for value in (*named.values(), *inside) if _has_tensors(value)]
        if kept:
            for value in kept:
                taken(value, found)
            around = {name: copy.deepcopy(value, found.memo) for name, value in named.items() if _has_tensors(value)}
            cells = tuple(
                types.CellType(copy.deepcopy(cell.cell_contents, found.memo))
                if cell != types.CellType() and _has_tensors(cell.cell_contents)
                else cell
                for cell in fn.__closure__ or ()
            )
            made = types.FunctionType(
                fn.__code__, {**fn.__globals__, **around}, fn.__name__, fn.__defaults__, cells or None
            )
            made.__kwdefaults__ = fn.__kwdefaults__
            return made  # type: ignore[return-value]
        return fn
    return taken(fn, found)


def _has_tensors(value: object) -> bool:
    return isinstance(value, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor))


def _reached(tree: object) -> Iterator[torch.Tensor | DeviceMesh | DeviceMapping | Layout]:
    """All tensors, and all words of layouts, that can be reached from an object by containers and attributes."""
    seen: set[int] = set()
    left: list[object] = [tree]
    while left:
        value = left.pop()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (torch.Tensor, DeviceMesh, DeviceMapping, Layout)):
            yield value
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            left += value
        elif isinstance(value, types.MethodType):
            left.append(value.__self__)
        elif not callable(value) or hasattr(value, "__dict__"):
            left += getattr(value, "__dict__", {}).values()
