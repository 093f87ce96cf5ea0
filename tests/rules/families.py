"""All cases of the rules' tests, by family: what the page of layouts is made of."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    test_attention,
    test_convolution,
    test_foreach,
    test_in_place,
    test_indexing,
    test_joining,
    test_linear_algebra,
    test_losses,
    test_matmul,
    test_normalization,
    test_pointwise,
    test_reductions,
    test_slicing,
    test_sorting,
    test_views,
)
from .case import Case

__all__ = ["FAMILIES"]

FAMILIES: Mapping[str, Mapping[str, Case]] = {
    "Elementwise": test_pointwise.ONE,
    "Elementwise, two tensors": test_pointwise.TWO,
    "Reductions of all dims": test_reductions.WHOLE,
    "Reductions and scans along the last dim": test_reductions.ALONG_LAST,
    "Products": test_matmul.TWO | test_matmul.THREE,
    "Linear algebra": test_linear_algebra.BATCHES | test_linear_algebra.SETS,
    "Views and reshapes": test_views.CASES,
    "Slices, pads, shifts": test_slicing.CASES | test_slicing.INTO,
    "Joins": test_joining.CASES,
    "Indexing": test_indexing.BY_INDEX | test_indexing.BY_PLACE | test_indexing.BY_MASK,
    "Ordering": test_sorting.CASES,
    "Softmax and norms": test_normalization.CASES,
    "Losses": test_losses.PAIRS | test_losses.CLASSES,
    "Attention": test_attention.CASES,
    "Convolution": test_convolution.CASES,
    "Pooling, resampling, windows": test_convolution.OVER_SPACE,
    "Lists of tensors": test_foreach.OF_LISTS,
    "Optimizers, one step": test_foreach.OF_OPTIMIZERS,
    "In place": test_in_place.CASES,
    "`out=`": test_in_place.WITH_OUT,
}
