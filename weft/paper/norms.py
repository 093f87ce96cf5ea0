"""Norms on paper: accelerators have one kernel for a root mean square norm, where torch takes several ops for tensors without values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast, final

import torch
from torch.nn.functional import rms_norm
from torch.overrides import TorchFunctionMode

from ..devices import Device
from ..engine.dispatch import planned
from ..engine.sharded import ShardedTensor
from ..rules.call import BoundCall

__all__ = ["FusedNorms"]

aten = torch.ops.aten

At = Callable[[Device], None]
"""What is told which device computes next."""


@final
class FusedNorms(TorchFunctionMode):
    """Inside, a root mean square norm keeps its input and one number for each row; `at` is told where it is computed.

    >>> x = torch.empty(2, 8, device="meta", requires_grad=True)
    >>> with FusedNorms(print):
    ...     type(torch.rms_norm(x, [8]).grad_fn).__name__
    '_NormBackward'
    """

    def __init__(self, at: At) -> None:
        super().__init__()
        self._at = at

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func is torch.rms_norm or func is rms_norm:
            return _norm(self._at, *args, **(kwargs or {}))  # type: ignore[arg-type]
        return func(*args, **(kwargs or {}))


def _norm(
    at: At,
    input: torch.Tensor,  # noqa: A002 - as torch calls it
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    if not input.is_meta or input.dtype.is_complex:
        return torch.rms_norm(input, list(normalized_shape), weight, eps)
    return cast(torch.Tensor, _Norm.apply(input, weight, list(normalized_shape), eps, at))  # type: ignore[no-untyped-call]


class _Saved(Protocol):
    """What autograd keeps for the way back."""

    shape: list[int]
    at: At
    saved_tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None: ...


class _Norm(torch.autograd.Function):
    """The norm as one kernel, and its gradient as another."""

    @staticmethod
    def forward(
        ctx: _Saved, x: torch.Tensor, weight: torch.Tensor | None, shape: list[int], eps: float | None, at: At
    ) -> torch.Tensor:
        call = BoundCall(aten._fused_rms_norm.default, (x, shape, weight, eps))
        if _is_sharded(call, at):
            out, scale = cast("tuple[torch.Tensor, ...]", planned(call))
        else:
            # As much is read and written.
            out, rows = x.clone(), x.shape[: x.dim() - len(shape)]
            scale = x.new_empty((*rows, *[1] * len(shape)), dtype=torch.promote_types(x.dtype, torch.float32))
        ctx.shape, ctx.at = shape, at
        ctx.save_for_backward(x, scale, weight)
        return out

    @staticmethod
    def backward(ctx: _Saved, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, scale, weight = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], ctx.needs_input_grad[1]]
        call = BoundCall(aten._fused_rms_norm_backward.default, (grad, x, ctx.shape, scale, weight, mask))
        found = planned(call) if _is_sharded(call, ctx.at) else call()
        of_input, of_weight = cast("tuple[torch.Tensor, ...]", found)
        return of_input if mask[0] else None, of_weight if mask[1] else None, None, None, None


def _is_sharded(call: BoundCall, at: At) -> bool:
    """Whether a call is one on shards; if so, says of which device."""
    meshes = [x.mesh for x in call.tensors if isinstance(x, ShardedTensor)]
    if meshes:
        at(meshes[0].devices[0])
    return bool(meshes)
