"""The strides of Fourier transforms on the host: the library that computes them puts what it transforms last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch

from ...runtime.strides import Strides, dense_strides, row_major

__all__ = ["of_complex", "of_half", "of_real"]


def of_real(args: Sequence[object], x: torch.Tensor, shape: tuple[int, ...]) -> Strides:
    """Those of a transform of real numbers (`_fft_r2c`)."""
    *others, last = dims = _dims(args, x)
    return _packed(shape, (*_far_first(_left_alone(x.dim(), dims), x.stride()), *_far_first(others, x.stride()), last))


def of_complex(args: Sequence[object], x: torch.Tensor, shape: tuple[int, ...]) -> Strides:
    """Those of a transform of complex numbers (`_fft_c2c`)."""
    dims = _dims(args, x)
    return _packed(shape, _order(x, dims)) if dims else dense_strides(shape, x.stride())


def of_half(args: Sequence[object], x: torch.Tensor, shape: tuple[int, ...]) -> Strides:
    """Those of a transform to real numbers (`_fft_c2r`): one of complex numbers along all dims but the last goes before."""
    *others, last = _dims(args, x)
    strides = _packed(tuple(x.shape), _order(x, others)) if others else x.stride()
    return _packed(shape, (*_far_first(_left_alone(x.dim(), [last]), strides), last))


def _dims(args: Sequence[object], x: torch.Tensor) -> list[int]:
    return [d % x.dim() for d in cast("Sequence[int]", args[1])]


def _order(x: torch.Tensor, dims: Sequence[int]) -> list[int]:
    """The dims as the library puts them: those that it leaves alone, then those that it transforms."""
    return [*_far_first(_left_alone(x.dim(), dims), x.stride()), *_far_first(dims, x.stride())]


def _left_alone(rank: int, dims: Sequence[int]) -> list[int]:
    """The dims that are not transformed, as torch parts them from the others: the last of them take the places of these.

    >>> _left_alone(4, [1]), _left_alone(4, [0, 3])
    ([0, 3, 2], [2, 1])
    """
    parted, first, last = list(range(rank)), 0, rank
    while True:
        while first < last and parted[first] not in dims:
            first += 1
        last -= 1
        while first < last and parted[last] in dims:
            last -= 1
        if first >= last:
            return parted[:first]
        parted[first], parted[last] = parted[last], parted[first]
        first += 1


def _far_first(dims: Iterable[int], strides: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda d: -strides[d])


def _packed(shape: tuple[int, ...], order: Sequence[int]) -> Strides:
    """Strides of elements that lie side by side, the last dim of an order closest."""
    if not torch.backends.mkl.is_available():
        return row_major(shape)
    packed = dict(zip(order, row_major(tuple(shape[d] for d in order)), strict=True))
    return tuple(packed[d] for d in range(len(shape)))
