"""Kernels of the host that lay results out otherwise than torch's own account of them, which knows no memory, says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch._prims_common import make_channels_last_strides_for, suggest_memory_format

from ...rules.registry import Spec
from ...runtime.strides import Strides, dense_strides, elementwise_strides, is_dense, row_major
from .fourier_strides import of_complex, of_half, of_real

__all__ = ["as_laid_by_kernel", "is_elementwise"]

aten = torch.ops.aten
Op = torch._ops.OpOverload
Laid = Callable[[Sequence[torch.Tensor], Spec], Strides | None]
"""(tensors of the call, without memory; a result) -> the strides that it really has; None: those that torch says."""


def is_elementwise(func: Op) -> bool:
    """Whether the strides of an op's results are those of any elementwise op."""
    if func is aten.clone.default:
        return False  # keeps the strides of dims of size 1, too
    return (torch.Tag.pointwise in func.tags and func not in _LAID) or func in _UNTAGGED


_UNTAGGED = frozenset(
    {
        aten.complex.default,
        aten.floor_divide.default,
        aten.masked_fill_.Scalar,
        aten.masked_fill_.Tensor,
        aten.polar.default,
        aten.elu_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardswish_backward.default,
        aten.hardtanh_backward.default,
        aten.softplus_backward.default,
    }
)
"""Ops of which torch does not say that they are elementwise, and whose account without memory is another than its kernels'."""


def as_laid_by_kernel(
    func: Op, args: Sequence[object], tensors: Sequence[torch.Tensor], specs: Sequence[Spec | None]
) -> list[Spec | None]:
    """The results of a call with the strides that kernels of the host give them."""
    by_arguments = _LAID_BY_ARGUMENTS.get(func)
    if by_arguments is not None and len(args) > 1:
        (spec,) = specs
        assert spec is not None
        return [replace(spec, strides=by_arguments(args, tensors[0], spec.shape) or spec.strides)]
    laid = _LAID.get(func)
    if laid is None:
        return list(specs)
    return [spec if spec is None else replace(spec, strides=laid(tensors, spec) or spec.strides) for spec in specs]


def _row_major(_: Sequence[torch.Tensor], spec: Spec) -> Strides:
    return row_major(spec.shape)


def _row_major_of_complex(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    return row_major(spec.shape) if tensors[0].is_complex() else None


def _other_way_round(tensors: Sequence[torch.Tensor], _: Spec) -> Strides:
    """Those of an elementwise op whose kernel reads the last tensor first."""
    return elementwise_strides(tensors[::-1])


def _as_first(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """Those of a copy of the input, where the result has its shape."""
    x = tensors[0]
    return dense_strides(tuple(x.shape), x.stride()) if spec.shape == tuple(x.shape) else None


def _as_first_expanded(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """Those of a copy of the input where that is expanded, which torch 2.11 does not say."""
    return _as_first(tensors, spec) if 0 in tensors[0].stride() else None


def _as_suggested(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """Channels last where the input is, else row by row."""
    x = tensors[0]
    if spec.ndim != x.dim() or x.dim() not in (4, 5):
        return row_major(spec.shape)
    if suggest_memory_format(x) is torch.contiguous_format:
        return row_major(spec.shape)
    return tuple(make_channels_last_strides_for(spec.shape))


def _of_joined(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """Channels last where all tensors are, as they lie before they are of one dtype, which torch's account says of what they are then."""
    if len({x.dtype for x in tensors}) == 1:
        return None
    formats = {suggest_memory_format(x) for x in tensors if x.shape != (0,)}
    if len(formats) != 1 or torch.contiguous_format in formats:
        return row_major(spec.shape)
    return tuple(make_channels_last_strides_for(spec.shape))


def _of_batch_norm(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """Channels last also where dims of size 1 leave it open, unless the input lies row by row as well."""
    x, *others = tensors
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    may_be_last = last is not None and spec.ndim == x.dim() and all(y.is_contiguous() for y in others)
    if may_be_last and not x.is_contiguous() and x.is_contiguous(memory_format=last):  # type: ignore[arg-type]
        return tuple(make_channels_last_strides_for(spec.shape))
    return _as_suggested(tensors, spec)


def _of_convolution(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """Along one dim of space, another is put in, and what then looks like channels last is taken for it."""
    if any(x.dim() != spec.ndim for x in tensors[:2]):
        return None
    if spec.ndim == 5 and spec.dtype is torch.float64:
        return row_major(spec.shape)  # the library that takes volumes with channels last takes no doubles
    x, weight = tensors[:2]
    images = [x.contiguous().unsqueeze(2), weight.unsqueeze(2)] if spec.ndim == 3 else [x, weight]
    if all(suggest_memory_format(x) is torch.contiguous_format for x in images):
        return None
    if spec.ndim > 3:
        return tuple(make_channels_last_strides_for(spec.shape))
    batch, channel, _, place = make_channels_last_strides_for((*spec.shape[:2], 1, spec.shape[2]))
    return batch, channel, place


def _of_convolution_gradients(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """Those of a convolution of the input and the weight, whatever the gradient of its result is like."""
    return _of_convolution(tensors[1:], spec)


def _of_matrices(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """Column by column, as LAPACK does."""
    if spec.ndim != tensors[0].dim():
        return None
    *lead, rows, columns = spec.shape
    *strides, first, second = row_major((*lead, columns, rows))
    return *strides, second, first


def _of_attention(tensors: Sequence[torch.Tensor], spec: Spec) -> Strides | None:
    """As what asks, dims of size 1 too, which torch's account of it has lie otherwise."""
    asking = tensors[0]
    return asking.stride() if tuple(asking.shape) == spec.shape and is_dense(asking.shape, asking.stride()) else None


def _of_rolled(args: Sequence[object], x: torch.Tensor, shape: tuple[int, ...]) -> Strides | None:
    """Dim by dim, two parts are put together, or a copy is made row by row of what stays where it is."""
    shifts, dims = args[1], args[2] if len(args) > 2 else None
    if not isinstance(shifts, Sequence) or not isinstance(dims, Sequence) or not dims or not x.numel():
        return None
    for shift, dim in zip(shifts, dims, strict=True):
        size = shape[dim]
        start = -shift % size
        x = torch.cat(x.split([start, size - start], dim)[::-1], dim) if start else x.contiguous()
    return x.stride()


def _of_all(args: Sequence[object], _: torch.Tensor, shape: tuple[int, ...]) -> Strides | None:
    """Row by row where every element is left alone, along an empty list of dims."""
    return row_major(shape) if args[1] == [] else None


def _of_looked_up(args: Sequence[object], x: torch.Tensor, shape: tuple[int, ...]) -> Strides | None:
    """As those of an elementwise op on the dims that stay and on the indices, whose dims stand for those that are looked up."""
    given = args[1] if isinstance(args[1], Sequence) else ()
    indices = [index for index in given if isinstance(index, torch.Tensor)]
    at = [dim for dim, index in enumerate(given) if index is not None]
    if not x.is_meta or not indices or any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return None  # a kernel was asked, or elements say how many are named
    rank = max(index.dim() for index in indices)
    first = at[0] if at[-1] - at[0] + 1 == len(at) else 0  # indices that stand apart come first
    kept = [dim for dim in range(x.dim()) if dim not in at]
    behind = len(kept) - first
    looked_up = tuple(shape[first : first + rank])
    sizes, steps = [x.shape[dim] for dim in kept], [x.stride(dim) for dim in kept]
    rows = torch.empty_strided(
        (*sizes[:first], *looked_up, *sizes[first:]), (*steps[:first], *(0,) * rank, *steps[first:]), device="meta"
    )
    spread = [torch.empty_strided(index.shape, index.stride(), device="meta").expand(looked_up) for index in indices]
    # As torch does it: the strides that dims of size 1 get here count where the dims that stay have size 1.
    beside = [index.reshape((1,) * first + looked_up + (1,) * behind) for index in spread]
    return elementwise_strides([rows, *beside])


_LAID: dict[Op, Laid] = {
    aten.angle.default: _row_major_of_complex,
    aten.threshold_backward.default: _other_way_round,
    **dict.fromkeys(
        (
            aten.masked_fill.Scalar,
            aten.masked_fill.Tensor,
            aten.pow.Scalar,
            aten.mvlgamma.default,
            aten.isin.Tensor_Tensor,
            aten.isin.Tensor_Scalar,
            aten.log_sigmoid_forward.default,
            aten.mse_loss_backward.default,
            aten.smooth_l1_loss_backward.default,
            aten.huber_loss_backward.default,
            aten._log_softmax_backward_data.default,
            aten.normal.Tensor_Tensor,
            aten.poisson.default,
            aten._standard_gamma.default,
            aten.nonzero_static.default,
            aten.im2col.default,
            aten.nll_loss2d_forward.default,
        ),
        _row_major,
    ),
    **dict.fromkeys(
        (
            aten.pixel_shuffle.default,
            aten.pixel_unshuffle.default,
            aten.channel_shuffle.default,
            aten.max_unpool2d.default,
            aten.reflection_pad2d.default,
            aten.replication_pad2d.default,
            aten.replication_pad2d_backward.default,
            aten.reflection_pad3d.default,
            aten.replication_pad3d.default,
        ),
        _as_suggested,
    ),
    **dict.fromkeys(
        (
            aten.native_batch_norm.default,
            aten._native_batch_norm_legit.default,
            aten._native_batch_norm_legit.no_stats,
            aten._native_batch_norm_legit_no_training.default,
            aten._batch_norm_with_update.default,
            aten._batch_norm_no_update.default,
        ),
        _of_batch_norm,
    ),
    **dict.fromkeys(
        (
            aten.index_fill.int_Scalar,
            aten.index_fill.int_Tensor,
            aten.binary_cross_entropy.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
        ),
        _as_first,
    ),
    **dict.fromkeys((aten.select_scatter.default, aten.slice_scatter.default), _as_first_expanded),
    aten.cat.default: _of_joined,
    aten.convolution.default: _of_convolution,
    aten.convolution_backward.default: _of_convolution_gradients,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _of_attention,
    **dict.fromkeys((aten._linalg_svd.default, aten.linalg_eig.default), _of_matrices),
}

_LAID_BY_ARGUMENTS: dict[Op, Callable[[Sequence[object], torch.Tensor, tuple[int, ...]], Strides | None]] = {
    aten._fft_r2c.default: of_real,
    aten._fft_c2c.default: of_complex,
    aten._fft_c2r.default: of_half,
    aten.roll.default: _of_rolled,
    aten.index.Tensor: _of_looked_up,
    aten._unsafe_index.Tensor: _of_looked_up,
    aten.all.dims: _of_all,
    aten.any.dims: _of_all,
}
