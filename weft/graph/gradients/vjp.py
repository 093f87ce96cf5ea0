"""Torch's vector-Jacobian product of a kernel, and an op that asks for it when the graph runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..recording.op import Argument, Op
from ..recording.types import TensorType
from .movement_rows import Backward, Contribution, values_of

__all__ = ["at_run_time", "differentiable", "pulled_back", "results_of"]

Tensors: TypeAlias = tuple[torch.Tensor, ...]


def differentiable(kind: TensorType | torch.Tensor) -> bool:
    """Whether values of a type have gradients.

    >>> differentiable(torch.ones(2)), differentiable(torch.ones(2, dtype=torch.int64))
    (True, False)
    """
    return kind.dtype.is_floating_point or kind.dtype.is_complex


def results_of(op: Op, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> Tensors:
    """What an op gives, computed so that torch can differentiate it; empty where a result is no tensor.

    Of what its own backward functions take and give, such as the mean of a norm, torch treats some as constants. In
    their decompositions it does not.
    """
    kernel = op.kernel
    result: object = NotImplemented
    if isinstance(kernel, OpOverload) and (len(kernel._schema.returns) > 1 or "_backward" in op.name):
        result = decomposition_table.get(kernel, kernel)(*args, **kwargs)
    if result is NotImplemented:
        result = kernel(*args, **kwargs)
    several = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(r if isinstance(r, torch.Tensor) else torch.empty(0, dtype=torch.uint8) for r in several)


def pulled_back(
    op: Op, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], grads: Sequence[torch.Tensor | None]
) -> Tensors:
    """What the gradients of some of an op's results say about each float among its arguments.

    >>> pulled_back(Op("mul", torch.mul), (torch.tensor(2.0), torch.tensor(3.0)), {}, [torch.tensor(1.0)])
    (tensor(3.), tensor(2.))
    """
    # Torch's own trees, since torch's compiler can look through them.
    leaves, tree = tree_flatten((args, dict(kwargs)))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and differentiable(leaf)]

    def forward(*floats: torch.Tensor) -> Tensors:
        for i, x in zip(at, floats, strict=True):
            leaves[i] = x
        results = results_of(op, *tree_unflatten(leaves, tree))
        return tuple(r for r, grad in zip(results, grads, strict=True) if grad is not None)

    transpose = torch.func.vjp(forward, *[leaves[i] for i in at])[1]
    return tuple(transpose(tuple(grad for grad in grads if grad is not None)))


def at_run_time(back: Backward) -> Iterable[Contribution]:
    """What a call says about its arguments, from one op that asks torch when the graph runs."""
    call = back.call

    def backward(
        args: tuple[Argument, ...], kwargs: tuple[tuple[str, Argument], ...], *grads: torch.Tensor | None
    ) -> Tensors:
        return pulled_back(call.op, args, dict(kwargs), grads)

    backward.__name__ = backward.__qualname__ = f"{call.op.name}_backward"
    op = Op(backward.__name__, backward, pure=call.op.pure, opaque=True)
    floats = [value for value in values_of(call) if differentiable(value.type)]
    args = (call.args, tuple(sorted(call.kwargs.items())), *back.grads)
    made = back.results[0].graph.record(op, args, [value.type for value in floats], many=True)
    return zip(floats, made, strict=True)
