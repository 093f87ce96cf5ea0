"""Dtypes: torch's names and sizes, known without torch."""

import numpy as np
import pytest
import torch

from weft.sharding.dtype import DType


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_names_and_sizes_are_those_of_torch(dtype):
    theirs = getattr(torch, dtype.name)
    assert DType.of(theirs) is dtype
    assert dtype.itemsize == theirs.itemsize
    assert dtype.is_floating_point == theirs.is_floating_point
    assert DType.of(dtype) is DType.of(dtype.name) is DType.of(dtype.short) is DType.of(f"torch.{dtype.name}") is dtype
    assert eval(repr(dtype)) is dtype


@pytest.mark.parametrize(
    "name",
    ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int64", "float16", "float32", "float64", "complex64"],
)
def test_numpy_says_the_same_names(name):
    assert DType.of(np.dtype(name)) is DType.of(np.dtype(name).type) is DType[name]


@pytest.mark.parametrize("bad", ["float31", "", None, 4, float, int, np.dtype("U3"), torch.qint8])
def test_an_unknown_dtype_lists_the_known_ones(bad):
    with pytest.raises(TypeError) as raised:
        DType.of(bad)
    assert f"unknown dtype {bad!r}: use one of bool, uint8, uint16," in str(raised.value)
    assert "or a short name such as 'f32'" in str(raised.value)
