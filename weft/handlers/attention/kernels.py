"""Torch's attention kernels as one device runs them on a block of scores: a result, and the logarithm of what it was divided by.

Results of blocks are merged by these logarithms. The gradients of a block follow from its own queries, keys and values, and
from the result and the logarithms of whole rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from ...rules.call import BoundCall, Op
from ...rules.ops.attention import row_aligned
from ...runtime.strides import dense_strides

__all__ = ["BACKWARD", "FORWARD", "NEEDS_ALIGNED", "Kernel", "QueryRows", "rows_named"]

aten = torch.ops.aten

Attended = tuple[torch.Tensor, torch.Tensor]
"""A result, and one logarithm for each query."""


class QueryRows(NamedTuple):
    """What gradients are computed from besides keys and values: all that there is for each query."""

    grad: torch.Tensor
    query: torch.Tensor
    out: torch.Tensor
    logarithms: torch.Tensor

    def part(self, start: int, stop: int) -> QueryRows:
        """That of some queries."""
        return QueryRows(*(x[:, :, start:stop] for x in self))


Forward = Callable[[BoundCall, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, bool], Attended]
Backward = Callable[
    [BoundCall, QueryRows, torch.Tensor, torch.Tensor, torch.Tensor | None, bool], tuple[torch.Tensor, ...]
]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of torch's kernels."""

    forward: Forward
    """(call, query, key, value, mask, whether causal) -> what it gives."""
    backward: Backward
    """(call of its gradient, rows, key, value, mask, whether causal) -> the gradients of query, key and value."""
    gradient: Op
    mask: str | None = None
    """The argument that is a mask, if it takes one."""
    nothing: tuple[int, ...] = ()
    """Which of its other results are no tensors."""


def _cpu(
    call: BoundCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> Attended:
    out, rows = _run(call.replaced(query=q, key=k, value=v, is_causal=causal, attn_mask=mask))
    return out, rows


def _cpu_backward(
    call: BoundCall, rows: QueryRows, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, ...]:
    return _run(call.replaced(**_named(rows), key=k, value=v, is_causal=causal, attn_mask=mask))


def _flash(
    call: BoundCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> Attended:
    out, rows, *_ = _run(call.replaced(query=q, key=k, value=v, is_causal=causal))
    return out, rows


def _flash_backward(
    call: BoundCall, rows: QueryRows, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, ...]:
    lengths = {"max_q": rows.query.shape[2], "max_k": k.shape[2]}
    here = _without_dropout(call, rows).replaced(**_named(rows), **lengths, key=k, value=v, is_causal=causal)
    return _run(here)


def _efficient(
    call: BoundCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> Attended:
    bias = _aligned(mask, q, k)
    given = {"query": q, "key": k, "value": v, "attn_bias": bias}
    out, rows, *_ = _run(call.replaced(**given, compute_log_sumexp=True, is_causal=causal))
    return out, rows[:, :, : q.shape[2]]


def _efficient_backward(
    call: BoundCall, rows: QueryRows, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, ...]:
    # The kernel reads its own result as it wrote it: the features of all heads of a query side by side.
    named = _named(rows) | {"out": rows.out.transpose(1, 2).contiguous().transpose(1, 2)}
    named["grad_out_"] = named.pop("grad_out")
    named["logsumexp"] = functional.pad(rows.logarithms, (0, -rows.logarithms.shape[2] % _ROUNDED))
    bias = _aligned(mask, rows.query, k)
    here = _without_dropout(call, rows).replaced(**named, key=k, value=v, attn_bias=bias, is_causal=causal)
    return _run(here.replaced(grad_input_mask=[True, True, True, False]))[:3]


_ROUNDED = 32
"""What the efficient kernel rounds the count of logarithms up to."""
NEEDS_ALIGNED = (
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
)
"""The efficient kernel and its gradient."""


def _aligned(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A mask as the efficient kernel reads it: of all scores, its rows at addresses that it likes."""
    if mask is None:
        return None
    return row_aligned(mask.expand(*query.shape[:3], key.shape[2]))


def _cudnn(
    call: BoundCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> Attended:
    given = {"query": q, "key": k, "value": v, "attn_bias": mask}
    out, rows, *_ = _run(call.replaced(**given, compute_log_sumexp=True, is_causal=causal))
    return out, rows.squeeze(-1)


def _cudnn_backward(
    call: BoundCall, rows: QueryRows, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, ...]:
    # Torch keeps cuDNN's plans by the strides of queries, keys and values, and takes one for gradients and results of any strides:
    # they are given in those that follow from the queries', as the kernel's own result has them.
    alike = {"grad_out": _laid_like(rows.grad, rows.query), "out": _laid_like(rows.out, rows.query)}
    named = _named(rows) | alike | {"logsumexp": rows.logarithms.contiguous().unsqueeze(-1)}
    named |= {"max_q": rows.query.shape[2], "max_k": k.shape[2]}
    here = _without_dropout(call, rows).replaced(**named, key=k, value=v, attn_bias=mask, is_causal=causal)
    return _run(here)


def _laid_like(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A tensor without gaps, its dims in memory in the order of the queries'."""
    strides = dense_strides(tuple(x.shape), query.stride())
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _run(call: BoundCall) -> tuple[torch.Tensor, ...]:
    made = call.on(call.tensors)
    assert isinstance(made, tuple)
    return made


def _named(rows: QueryRows) -> dict[str, object]:
    return {
        "grad_out": rows.grad,
        "query": rows.query,
        "out": rows.out,
        "logsumexp": rows.logarithms.contiguous(),
    }


def rows_named(call: BoundCall) -> tuple[str, str, str]:
    """The arguments of a gradient that have queries and features, in the order of `QueryRows`."""
    return "grad_out_" if call.has("grad_out_") else "grad_out", "query", "out"


def _without_dropout(call: BoundCall, rows: QueryRows) -> BoundCall:
    """A call with states of a generator that no kernel reads where nothing is dropped, on the device of the rows."""
    states = {}
    for name in ("philox_seed", "philox_offset"):
        state = call.tensor(name)
        states[name] = torch.zeros(state.shape, dtype=state.dtype, device=rows.query.device)
    return call.replaced(**states)


FORWARD: dict[Op, Kernel] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: Kernel(
        _cpu, _cpu_backward, aten._scaled_dot_product_flash_attention_for_cpu_backward.default, mask="attn_mask"
    ),
    aten._scaled_dot_product_flash_attention.default: Kernel(
        _flash, _flash_backward, aten._scaled_dot_product_flash_attention_backward.default, nothing=(2, 3, 4, 5)
    ),
    aten._scaled_dot_product_efficient_attention.default: Kernel(
        _efficient,
        _efficient_backward,
        aten._scaled_dot_product_efficient_attention_backward.default,
        mask="attn_bias",
    ),
    aten._scaled_dot_product_cudnn_attention.default: Kernel(
        _cudnn,
        _cudnn_backward,
        aten._scaled_dot_product_cudnn_attention_backward.default,
        mask="attn_bias",
        nothing=(2, 3, 4, 5, 8),
    ),
}
"""Bound: torch's kernels. Cleared: never."""
BACKWARD: dict[Op, Kernel] = {kernel.gradient: kernel for kernel in FORWARD.values()}
"""Bound: torch's kernels. Cleared: never."""
