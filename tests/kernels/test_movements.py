"""Broadcast, all-gather and all-to-all put the right bytes in the right places, whatever the shapes and memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.participants import (
    ALL_DTYPES,
    DEVICE,
    contexts,
    laid,
    poisoned,
    same,
    signals,
    synchronize,
    values,
)
from weft.kernels import DistributedAllGather, DistributedAllToAll, DistributedBroadcast

counts = st.integers(1, 8)
dtypes = st.sampled_from(ALL_DTYPES)
layouts = st.sampled_from(["plain", "offset", "gaps"])
shapes = st.lists(st.integers(0, 14), min_size=1, max_size=3)
few = settings(max_examples=25)


@st.composite
def launches_of_their_own(draw: st.DrawFn, count: int) -> list[int]:
    return draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count)) if draw(st.booleans()) else []


@few
@given(st.data(), counts, shapes, dtypes, layouts, layouts)
def test_broadcast_gives_every_device_the_input(data, count, shape, dtype, how, lying):
    alone = data.draw(launches_of_their_own(count))
    source = laid(values(shape, dtype, seed=1), how)
    outputs = [poisoned(shape, dtype, lying) for _ in range(count)]
    DistributedBroadcast.execute(outputs, source, signals(count), contexts(count, alone))
    synchronize()
    assert all(same(output, source) for output in outputs)


@few
@given(st.data(), counts, shapes, dtypes, layouts, st.integers(-3, 2))
def test_all_gather_concatenates(data, count, shape, dtype, how, axis):
    alone = data.draw(launches_of_their_own(count))
    dim = axis % len(shape)
    inputs = []
    for i in range(count):
        mine = [*shape]
        mine[dim] = data.draw(st.integers(0, 9))
        inputs.append(laid(values(mine, dtype, seed=i), how))
    expected = torch.cat(inputs, dim)
    outputs = [poisoned(expected.shape, dtype, how) for _ in range(count)]
    DistributedAllGather.execute(outputs, inputs, signals(count), contexts(count, alone), axis=dim)
    synchronize()
    assert all(same(output, expected) for output in outputs)


@few
@given(st.data(), counts, shapes, dtypes, layouts, st.integers(-3, 2))
def test_all_to_all_transposes_parts(data, count, shape, dtype, how, axis):
    alone = data.draw(launches_of_their_own(count))
    dim = axis % len(shape)
    inputs = [laid(values(shape, dtype, seed=i), how) for i in range(count)]
    parts = [given.tensor_split(count, dim) for given in inputs]
    expected = [torch.cat([parts[i][j] for i in range(count)], dim) for j in range(count)]
    outputs = [poisoned(want.shape, dtype, how) for want in expected]
    DistributedAllToAll.execute(outputs, inputs, signals(count), contexts(count, alone), axis=dim)
    synchronize()
    assert all(same(output, want) for output, want in zip(outputs, expected, strict=True))


@pytest.mark.parametrize("extra", [0, 1, 7, 8])
def test_a_message_of_many_blocks_and_some_bytes_arrives_whole(extra):
    source = values([300_000 + extra], torch.int8, seed=3)
    outputs = [poisoned(source.shape, torch.int8) for _ in range(2)]
    DistributedBroadcast.execute(outputs, source, signals(2), contexts(2))
    synchronize()
    assert all(same(output, source) for output in outputs)


def test_nothing_beyond_an_output_is_written():
    room = torch.full((64,), 77, dtype=torch.int8, device=DEVICE)
    for size in range(0, 24, 3):
        room.fill_(77)
        DistributedBroadcast.execute(
            [room[3 : 3 + size]], values([size], torch.int8, seed=size), signals(1), contexts(1)
        )
        synchronize()
        assert bool((room[:3] == 77).all())
        assert bool((room[3 + size :] == 77).all())


def test_an_output_may_be_the_input():
    tensors = [values([1000], torch.float32, seed=i) for i in range(4)]
    expected = tensors[2].clone()
    DistributedBroadcast.execute(tensors, tensors[2], signals(4), contexts(4), root=2)
    synchronize()
    assert all(same(tensor, expected) for tensor in tensors)


def test_outputs_may_be_one_tensor():
    shared = poisoned([1000], torch.float32)
    source = values([1000], torch.float32, seed=0)
    DistributedBroadcast.execute([shared] * 8, source, signals(8), contexts(8))
    synchronize()
    assert same(shared, source)


def test_an_input_may_lie_in_its_output():
    expected = values([8, 25], torch.float32, seed=0)
    outputs = [poisoned([8, 25], torch.float32) for _ in range(4)]
    inputs = []
    for i in range(4):
        outputs[i][2 * i : 2 * i + 2] = expected[2 * i : 2 * i + 2]
        inputs.append(outputs[i][2 * i : 2 * i + 2])
    DistributedAllGather.execute(outputs, inputs, signals(4), contexts(4))
    synchronize()
    assert all(same(output, expected) for output in outputs)


def test_an_input_that_would_be_overwritten_is_read_first():
    room = values([1000], torch.float32, seed=0)
    expected = room[:900].clone()
    DistributedBroadcast.execute([room[100:], poisoned([900], torch.float32)], room[:900], signals(2), contexts(2))
    synchronize()
    assert same(room[100:], expected)
    tensors = [values([64], torch.float32, seed=i) for i in range(4)]
    swapped = [torch.cat([tensors[i][16 * j : 16 * j + 16] for i in range(4)]) for j in range(4)]
    DistributedAllToAll.execute(tensors, tensors, signals(4), contexts(4))
    synchronize()
    assert all(same(tensor, want) for tensor, want in zip(tensors, swapped, strict=True))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.complex128, torch.float16])
def test_any_dtype_moves(dtype):
    source = torch.arange(50, device=DEVICE).to(dtype)
    outputs = [torch.zeros_like(source) for _ in range(3)]
    DistributedBroadcast.execute(outputs, source, signals(3), contexts(3))
    synchronize()
    assert all(torch.equal(o.view(torch.uint8), source.view(torch.uint8)) for o in outputs)


def test_a_conjugate_view_moves_as_what_it_shows():
    source = values([40], torch.complex64, seed=0).conj()
    outputs = [poisoned([40], torch.complex64) for _ in range(2)]
    DistributedBroadcast.execute(outputs, source, signals(2), contexts(2))
    synchronize()
    assert same(outputs[1], source.resolve_conj())


def test_buffers_are_ready_again_at_once():
    buffers, who = signals(4), contexts(4)
    for seed in range(20):
        source = values([33], torch.float32, seed=seed)
        outputs = [poisoned([33], torch.float32) for _ in range(4)]
        DistributedBroadcast.execute(outputs, source, buffers, who, trace_name="again", target="gpu")
        synchronize()
        assert all(same(output, source) for output in outputs)


def test_autograd_notices_that_outputs_changed():
    weight = values([4], torch.float32, seed=0).requires_grad_()
    output = poisoned([4], torch.float32)
    loss = (weight * output).sum()
    DistributedBroadcast.execute([output], values([4], torch.float32, seed=1), signals(1), contexts(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
