"""`shard_optimizer`: the state of an optimizer is split over an axis, and each device updates its part (ZeRO-1 and 2)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar, final

import torch

from ..engine.moves.movement import moved
from ..engine.sharded import ShardedTensor
from ..engine.total import own_pieces
from ..sharding.mapping import named_mapping
from ..tensor.leaf_gradient import gradient_in
from ..tensor.tensor import Tensor, public
from ..watch import comm_log
from .gathering import Gathering
from .splitting import check_axis, split_further

__all__ = ["shard_optimizer"]

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
_OP = "shard_optimizer"


def shard_optimizer(optimizer: Optimizer, axis: str = "dp") -> Optimizer:
    """Splits an optimizer's state and its work over a mesh axis along which the parameters are whole, and returns it.

    Each device keeps the state of its part of every parameter and updates that part; then the parts are gathered, all in
    one exchange. Gradients arrive reduced and split (`parameter.grad` has that layout), so a step moves what a
    reduce-scatter and an all-gather move, no more than the all-reduce that it replaces. The bits are those of the optimizer
    as it was, for optimizers that treat each element by itself (SGD, Adam, AdamW, RMSprop, …). Parameters that the axis
    splits already stay as they are.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 4})
    >>> model = weft.nn.shard_module(torch.nn.Linear(8, 8), mesh, {})
    >>> optimizer = weft.nn.shard_optimizer(torch.optim.AdamW(model.parameters()), "dp")
    >>> model(weft.shard(torch.ones(4, 8), mesh, weft.P("dp"))).sum().backward()
    >>> optimizer.step()
    >>> state = next(iter(optimizer.state.values()))
    >>> state["exp_avg"].mapping.spec, model.weight.mapping.spec
    (P('dp', None), P())
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{_OP} takes a torch.optim.Optimizer, but got {type(optimizer).__name__}")
    if any(isinstance(each, _Gathered) for each in optimizer._optimizer_step_post_hooks.values()):
        raise ValueError(f"{_OP} has split this optimizer before: call it once")
    for group in optimizer.param_groups:
        for x in group["params"]:
            _check(x, axis)
    parts = [_UpdatedPart(x, axis) for group in optimizer.param_groups for x in group["params"] if _is_whole(x, axis)]
    by_whole = {id(part.whole): part for part in parts}
    for group in optimizer.param_groups:
        group["params"] = [by_whole[id(x)].part if id(x) in by_whole else x for x in group["params"]]
    for part in parts:
        if part.whole in optimizer.state:
            optimizer.state[part.part] = part.split_state(optimizer.state.pop(part.whole))
    return _followed(optimizer, parts, axis)


def _followed(optimizer: Optimizer, parts: list[_UpdatedPart], axis: str) -> Optimizer:
    """The optimizer of some parts, whose steps and copies the parameters follow."""
    optimizer.register_step_pre_hook(_Prepared(parts))
    optimizer.register_step_post_hook(_Gathered(parts, axis))
    zero_grad = optimizer.zero_grad

    def zero_all(set_to_none: bool = True) -> None:
        zero_grad(set_to_none)
        for part in parts:
            part.drop_gradient(set_to_none)

    def copied(memo: dict[int, object]) -> Optimizer:
        """Torch copies the state, and none of the hooks."""
        other = type(optimizer).__new__(type(optimizer))
        memo[id(optimizer)] = other
        other.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
        return _followed(other, [part.copied(memo) for part in parts], axis)

    optimizer.zero_grad = zero_all  # type: ignore[method-assign]
    optimizer.__deepcopy__ = copied  # type: ignore[attr-defined]
    return optimizer


def _check(x: torch.Tensor, axis: str) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{_OP} splits parameters on a mesh, but one of shape {tuple(x.shape)} is plain: use weft.nn.shard_module(model, mesh, {{}}) first"
        )
    check_axis(x.mesh, axis, _OP)


def _is_whole(x: Tensor, axis: str) -> bool:
    return x.dim() > 0 and axis not in x._layout.dim_of


@final
class _UpdatedPart:
    """A parameter, and the part of it that each device updates."""

    def __init__(self, whole: Tensor, axis: str) -> None:
        self.whole = whole
        self.layout = split_further(whole._layout, tuple(whole.shape), axis)
        self.part = torch.nn.Parameter(self._slice(whole), requires_grad=whole.requires_grad)
        self._watch()
        if whole.grad is not None:
            whole.grad = None if whole.grad is None else self._slice(public(whole.grad))
            self._take(whole)

    def _watch(self) -> None:
        """Lets gradients of the whole arrive split, and go to the part."""
        self._version = self.whole._version
        gradient_in(self.whole, self.layout)
        if self.whole.requires_grad:
            self.whole.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]

    def copied(self, memo: dict[int, object]) -> _UpdatedPart:
        """The same of copies."""
        other = copy.copy(self)
        other.whole, other.part = copy.deepcopy((self.whole, self.part), memo)
        other._watch()
        if self._version != self.whole._version:
            other._version = -1  # the value was changed by others, and the part does not know yet
        return other

    def _slice(self, x: Tensor) -> Tensor:
        """The part of a tensor that is whole along the axis: nothing moves."""
        with torch.no_grad(), comm_log.paused():
            return public(moved(public(x.detach()), self.layout, _OP, asked=named_mapping(self.layout)))

    def split_state(self, state: dict[str, object]) -> dict[str, object]:
        """The state of the parameter as it was, split like its part."""
        return {
            name: self._slice(value) if isinstance(value, Tensor) and value.shape == self.whole.shape else value
            for name, value in state.items()
        }

    def _take(self, whole: torch.Tensor) -> None:
        self.part.grad = whole.grad

    def prepare(self) -> None:
        """Before a step: the part has the gradient, and the value if that was changed by others."""
        if self.whole.grad is not self.part.grad:
            grad = self.whole.grad
            self.part.grad = None if grad is None else moved(public(grad), self.layout, _OP)
        if self.whole._version != self._version:
            with torch.no_grad():
                self.part.copy_(self._slice(self.whole))

    def note(self) -> None:
        """After a step: the whole is what the parts are."""
        self._version = self.whole._version

    def drop_gradient(self, set_to_none: bool) -> None:
        """No gradient any more, or zeros."""
        if set_to_none:
            self.whole.grad = None
        elif self.whole.grad is not None:
            self.whole.grad.zero_()


@final
class _Prepared:
    """What happens before a step."""

    def __init__(self, parts: list[_UpdatedPart]) -> None:
        self._parts = parts

    def __call__(self, *_: object) -> None:
        for part in self._parts:
            part.prepare()


@final
class _Gathered:
    """What happens after a step: the parameters are made whole of their parts, in one exchange."""

    def __init__(self, parts: list[_UpdatedPart], axis: str) -> None:
        self._meshes: dict[object, list[_UpdatedPart]] = {}
        for part in parts:
            self._meshes.setdefault(part.layout.mesh, []).append(part)
        self._axis = axis
        self._plans: list[Callable[[], None]] | None = None

    def __call__(self, *_: object) -> None:
        if self._plans is None:
            self._plans = [self._plan(parts) for parts in self._meshes.values()]
        with torch.no_grad():
            for gather in self._plans:
                gather()

    def _plan(self, parts: list[_UpdatedPart]) -> Callable[[], None]:
        layouts = [part.layout for part in parts]
        shapes = [tuple(part.whole.shape) for part in parts]
        gathering = Gathering(layouts, shapes, [(part.whole.dtype,) * 2 for part in parts], self._axis, _OP)

        def gather() -> None:
            if comm_log.is_logging():
                gathering.log()
            wholes: list[ShardedTensor] = [part.whole for part in parts]
            for whole in wholes:
                own_pieces(whole)
            gathering.fill([public(part.part) for part in parts], [whole._value.pieces for whole in wholes])
            for part in parts:
                torch.autograd.graph.increment_version(part.whole)
                part.note()
            comm_log.note_end()

        return gather
