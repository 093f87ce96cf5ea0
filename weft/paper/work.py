"""What one op on one device takes: operations of arithmetic, and bytes that its kernel reads and writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ..caches import cached
from ..rules.call import Args, Kwargs, Op

__all__ = ["OpWork", "tensors_in", "work_of", "written_by"]

aten = torch.ops.aten


class OpWork(NamedTuple):
    """Operations, and bytes read and written; `dtype` is what it computes in."""

    flops: int
    nbytes: int
    dtype: torch.dtype


_NOTHING = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.empty_permuted.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
        aten._lazy_clone.default,
        aten.lift_fresh.default,
        aten._fused_sdp_choice.default,
        aten.record_stream.default,
    }
)
"""Ops for which no kernel runs."""

_PICKS = frozenset(
    {
        aten.embedding.default,
        aten.index_select.default,
        aten.gather.default,
        aten.index.Tensor,
        aten._unsafe_index.Tensor,
        aten.take.default,
    }
)
"""Ops that read of their first tensor only what they give."""


def tensors_in(*trees: object) -> list[torch.Tensor]:
    """The tensors among arguments or results, in lists too.

    >>> len(tensors_in([torch.ones(1), 2], {"x": torch.ones(1)}))
    2
    """
    found: list[torch.Tensor] = []
    for tree in trees:
        if isinstance(tree, torch.Tensor):
            found.append(tree)
        elif isinstance(tree, (list, tuple)):
            for each in tree:
                if isinstance(each, torch.Tensor):
                    found.append(each)
                elif isinstance(each, (list, tuple, dict)):
                    found += tensors_in(each)
        elif isinstance(tree, dict) and tree:
            found += tensors_in(*tree.values())
    return found


def work_of(func: Op, args: Args, kwargs: Kwargs, result: object) -> OpWork | None:
    """What an op takes that gave this result; None where no kernel runs.

    >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
    >>> work_of(aten.mm.default, (a, b), {}, a @ b)
    OpWork(flops=48, nbytes=104, dtype=torch.float32)
    >>> work_of(aten.einsum.default, ("mk,kn->mn", [a, b]), {}, a @ b).flops
    48
    """
    if func in _NOTHING or is_view(func):
        return None
    given, made = tensors_in(args, kwargs), tensors_in(result)
    written = sum(map(_nbytes, made)) if made else sum(map(_nbytes, given[:1]))
    read = sum(map(_nbytes, given))
    if func in _PICKS and given:
        read += min(0, written - _nbytes(given[0]))
    first = next((x for x in (*given, *made) if x.is_floating_point()), None)
    count = _counter(func)
    flops = 0 if count is None else count(*args, **kwargs, out_val=result)
    return OpWork(flops, read + written, torch.float32 if first is None else first.dtype)


def _nbytes(x: torch.Tensor) -> int:
    """The bytes of a tensor, of which elements that are one count once."""
    return math.prod(size for size, step in zip(x.shape, x.stride(), strict=True) if step) * x.itemsize


@cached(8192)
def is_view(func: Op) -> bool:
    """Whether all that an op gives shows what it was given.

    >>> is_view(aten.t.default), is_view(aten.add_.Tensor), is_view(aten.add.Tensor)
    (True, False, False)
    """
    returns = func._schema.returns
    return func is aten._unsafe_view.default or (
        bool(returns) and all(each.alias_info is not None and not each.alias_info.is_write for each in returns)
    )


@cached(8192)
def _written_arguments(func: Op) -> tuple[tuple[int, str], ...]:
    return tuple(
        (at, argument.name)
        for at, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written_by(func: Op, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors that an op writes to.

    >>> x = torch.ones(2)
    >>> written_by(aten.add_.Tensor, (x, x), {})[0] is x
    True
    """
    if not func._schema.is_mutable:
        return []
    return tensors_in([args[at] if at < len(args) else kwargs.get(name) for at, name in _written_arguments(func)])


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object) -> int:
    flops: int = sdpa_flop_count(query.shape, _for_each_head(key, query), _for_each_head(value, query))
    return flops


def _attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
) -> int:
    given = _for_each_head(key, query), _for_each_head(value, query)
    flops: int = sdpa_backward_flop_count(grad.shape, query.shape, *given)
    return flops


def _for_each_head(x: torch.Tensor, query: torch.Tensor) -> tuple[int, ...]:
    """The shape of keys or values, as if each head of the queries had its own."""
    return (*x.shape[:1], query.shape[1], *x.shape[2:])


def _einsum(equation: str, tensors: list[torch.Tensor], *_: object, **__: object) -> int:
    """Two operations for each combination of indices: products whose dims were merged are computed so."""
    sizes: dict[str, int] = {}
    names = equation.replace(" ", "").partition("->")[0].split(",")
    for dims, x in zip(names, tensors, strict=True):
        sizes.update(zip(dims, x.shape, strict=False))
    return 2 * math.prod(sizes.values())


def _product(first: torch.Tensor, *_: object, out_val: torch.Tensor, **__: object) -> int:
    """Two operations for each product that is summed over the last dim of the first tensor."""
    return 2 * out_val.numel() * first.shape[-1]


_MORE: dict[Op, Callable[..., int]] = {
    aten.einsum.default: _einsum,
    aten.linear.default: _product,
    aten.matmul.default: _product,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}
"""Operations of what torch's own table leaves out."""


@cached(8192)
def _counter(func: Op) -> Callable[..., int] | None:
    known: Callable[..., int] | None = _MORE.get(func) or flop_registry.get(func._overloadpacket)
    return known
