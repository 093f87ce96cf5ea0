"""All-reduce and reduce-scatter give the one right answer, the same bits on every device and every time."""

from __future__ import annotations

from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.participants import DEVICE, contexts, laid, poisoned, same, signals, synchronize, values
from weft.kernels import DistributedAllReduce, DistributedReduceScatter
from weft.kernels.program import INTERPRETED

COMBINE = {"sum": torch.add, "mean": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul}
KINDS = [
    (dtype, op)
    for dtypes, ops in (
        ((torch.float64, torch.float32, torch.float16, torch.bfloat16), ("sum", "mean", "max", "min", "prod")),
        ((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8), ("sum", "max", "min", "prod")),
        ((torch.complex64, torch.complex128), ("sum", "mean")),
        ((torch.bool,), ("max", "min", "prod")),
    )
    for dtype in dtypes
    for op in ops
]

counts = st.integers(1, 8)
kinds = st.sampled_from(KINDS)
layouts = st.sampled_from(["plain", "offset", "gaps"])
shapes = st.lists(st.integers(0, 14), min_size=1, max_size=3)
few = settings(max_examples=25)


def reference(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """First to last, halves in float32, rounded once: what every output must be, bit for bit."""
    dtype = inputs[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else torch.uint8 if dtype == torch.bool else dtype
    # On the CPU: there torch divides, where its GPU kernels multiply by the inverse of a number.
    total = reduce(COMBINE[op], [given.cpu().to(wide) for given in inputs])
    if op == "mean":
        reals = torch.view_as_real(total) if dtype.is_complex else total
        reals /= len(inputs)
    if dtype == torch.bfloat16 and INTERPRETED:
        # GPUs round to the nearest bfloat16, Triton's interpreter cuts.
        total = (total.view(torch.int32) & ~0xFFFF).view(torch.float32)
    return total.to(dtype).to(DEVICE)


@few
@given(st.data(), counts, shapes, kinds, layouts, layouts)
def test_all_reduce_is_the_reference_on_every_device(data, count, shape, kind, how, lying):
    dtype, op = kind
    alone = data.draw(st.lists(st.integers(0, count - 1), unique=True)) if data.draw(st.booleans()) else []
    inputs = [laid(values(shape, dtype, seed=i), how) for i in range(count)]
    outputs = [poisoned(shape, dtype, lying) for _ in range(count)]
    DistributedAllReduce.execute(outputs, inputs, signals(count), contexts(count, alone), reduce_op=op)
    synchronize()
    expected = reference(inputs, op)
    assert all(same(output, expected) for output in outputs)


@few
@given(st.data(), counts, shapes, kinds, layouts, st.integers(-3, 2))
def test_reduce_scatter_leaves_each_device_its_part(data, count, shape, kind, how, axis):
    dtype, op = kind
    dim = axis % len(shape)
    alone = data.draw(st.lists(st.integers(0, count - 1), unique=True)) if data.draw(st.booleans()) else []
    inputs = [laid(values(shape, dtype, seed=i), how) for i in range(count)]
    expected = reference(inputs, op).tensor_split(count, dim)
    outputs = [poisoned(part.shape, dtype, how) for part in expected]
    DistributedReduceScatter.execute(outputs, inputs, signals(count), contexts(count, alone), axis=dim, reduce_op=op)
    synchronize()
    assert all(same(output, part) for output, part in zip(outputs, expected, strict=True))


@pytest.mark.parametrize(("dtype", "op"), KINDS)
def test_every_kind_of_reduction(dtype, op):
    inputs = [values([515], dtype, seed=i) for i in range(3)]
    outputs = [poisoned([515], dtype) for _ in range(3)]
    DistributedAllReduce.execute(outputs, inputs, signals(3), contexts(3), reduce_op=op)
    synchronize()
    assert all(same(output, reference(inputs, op)) for output in outputs)


@pytest.mark.parametrize("op", ["max", "min", "sum"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_nan_anywhere_is_the_answer(op, at):
    inputs = [values([100], torch.float32, seed=i) for i in range(3)]
    inputs[at][17] = torch.nan
    outputs = [poisoned([100], torch.float32) for _ in range(3)]
    DistributedAllReduce.execute(outputs, inputs, signals(3), contexts(3), reduce_op=op)
    synchronize()
    for output in outputs:
        assert output.isnan().nonzero().tolist() == [[17]]


def test_halves_are_added_in_float32():
    # 2048 + 1 is not a float16, and neither is 256 + 1 a bfloat16: added in halves, the ones would vanish.
    for dtype, big in ((torch.float16, 2048.0), (torch.bfloat16, 256.0)):
        inputs = [torch.full((5,), big if i == 0 else 1.0, dtype=dtype, device=DEVICE) for i in range(5)]
        outputs = [poisoned([5], dtype) for _ in range(5)]
        DistributedAllReduce.execute(outputs, inputs, signals(5), contexts(5))
        synchronize()
        assert outputs[4].tolist() == [big + 4] * 5


@pytest.mark.parametrize("alone", [[], [0, 1, 2, 3]])
@pytest.mark.parametrize("size", [1000, 70_000])
def test_an_output_may_be_its_input(alone, size):
    tensors = [values([size], torch.float32, seed=i) for i in range(4)]
    expected = reference(tensors, "sum")
    DistributedAllReduce.execute(tensors, tensors, signals(4), contexts(4, alone))
    synchronize()
    assert all(same(tensor, expected) for tensor in tensors)


def test_an_output_may_be_its_part_of_the_input():
    inputs = [values([10, 7], torch.float32, seed=i) for i in range(4)]
    expected = reference(inputs, "sum").tensor_split(4)
    outputs = [given.tensor_split(4)[i] for i, given in enumerate(inputs)]
    DistributedReduceScatter.execute(outputs, inputs, signals(4), contexts(4))
    synchronize()
    assert all(same(output, part) for output, part in zip(outputs, expected, strict=True))


def test_an_input_that_would_be_overwritten_is_read_first():
    room = values([1100], torch.float32, seed=0)
    inputs = [room[:1000], values([1000], torch.float32, seed=1)]
    expected = reference(inputs, "sum")
    outputs = [room[100:], poisoned([1000], torch.float32)]
    DistributedAllReduce.execute(outputs, inputs, signals(2), contexts(2))
    synchronize()
    assert all(same(output, expected) for output in outputs)
