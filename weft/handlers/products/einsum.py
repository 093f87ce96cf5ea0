"""Sums of products in letters, which are said as products of many dims where they are such.

Torch says `einsum` by a product whose batch is merged into one dim, as it says products of many dims. Those come as one op
where nothing has to be brought (`whole_products`), so that these do, too. What the factors have in common leads, as in torch's own way,
and so do the dims of the result in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...caches import cached
from ...engine.dispatch_keys import say_first
from ...engine.sharded import ShardedTensor


class _Product(NamedTuple):
    """How the dims of both factors go, and those of their product; the second factor is the first of it where its dim comes first."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]
    is_swapped: bool


@cached(4096)
def _product_of(equation: str) -> _Product | None:
    """The product that an equation of two factors says; None: it is none of matrices that have a batch in common.

    >>> _product_of("bqhd,bkhd->bhqk")
    _Product(left=(0, 2, 1, 3), right=(0, 2, 3, 1), out=(0, 1, 2, 3), is_swapped=False)
    >>> _product_of("bsd,hde->bhse") is None
    True
    """
    given, arrow, out = equation.replace(" ", "").partition("->")
    factors = given.split(",")
    if not arrow or len(factors) != 2 or not (given + out).replace(",", "").isalpha() or not set(out) <= set(given):
        return None
    is_swapped = next((name in factors[1] for name in out if (name in factors[0]) is not (name in factors[1])), False)
    left, right = reversed(factors) if is_swapped else factors
    batch = [name for name in out if name in left and name in right]
    rows, columns = ([name for name in out if name in one and name not in batch] for one in (left, right))
    summed = [name for name in left if name in right and name not in out]
    kinds = (batch, rows, columns, summed)
    if not batch or [len(names) for names in kinds[1:]] != [1, 1, 1]:
        return None
    if any(
        len(names) != size for names, size in ((left, len(batch) + 2), (right, len(batch) + 2), (out, len(batch) + 2))
    ):
        return None  # summed over in one factor alone, or read along a diagonal
    lying = [*batch, *rows, *columns]
    return _Product(
        tuple(left.index(name) for name in (*batch, *rows, *summed)),
        tuple(right.index(name) for name in (*batch, *summed, *columns)),
        tuple(lying.index(name) for name in out),
        is_swapped,
    )


def _as_product(equation: str, tensors: Sequence[torch.Tensor], path: object = None) -> object:
    """What an equation of two sharded factors gives, where it says a product of matrices; else `NotImplemented`."""
    said = _product_of(equation) if len(tensors) == 2 else None
    if said is None or not all(isinstance(x, ShardedTensor) for x in tensors):
        return NotImplemented
    x, y = reversed(tensors) if said.is_swapped else tensors
    if x.dim() != len(said.left) or y.dim() != len(said.right):
        return NotImplemented
    x, y = x.permute(said.left), y.permute(said.right)
    if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
        return NotImplemented  # broadcast, or wrong
    return (x @ y).permute(said.out)


say_first(torch.ops.aten.einsum.default, _as_product)
