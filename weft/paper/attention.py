"""Attention on paper: the kernel that accelerators and hosts take, where torch would take none for tensors without values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

__all__ = ["FusedAttention"]

aten = torch.ops.aten


@final
class FusedAttention(TorchFunctionMode):
    """Inside, attention never holds the scores of all queries and keys.

    >>> x = torch.empty(1, 2, 8, 4, device="meta")
    >>> with FusedAttention():
    ...     scaled_dot_product_attention(x, x, x, is_causal=True).shape
    torch.Size([1, 2, 8, 4])
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func is scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))  # type: ignore[arg-type]
        return func(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if query.dim() != 4 or not query.is_meta or dropout_p:
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = attn_mask.to(query.dtype)
    found: torch.Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return found
