"""Convolution and pooling of split space: what plain torch gives, and only the borders that windows reach over move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as nn
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.sharding.geometry import box
from weft.sharding.layout import Layout
from weft.sharding.placements import ReduceOp
from weft.tensor.tensor import Tensor
from weft.watch.comm_log import CommRecord

from .harness import GRID, LINE, laid, memory


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Window:
    """What an op does along one dim."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    def read(self, results: tuple[int, int], size: int) -> set[int]:
        """From the first to the last index that some results read."""
        reads = [
            o * self.stride - self.padding + k * self.dilation for o in range(*results) for k in range(self.kernel)
        ]
        return {i for i in range(min(reads, default=0), max(reads, default=-1) + 1) if 0 <= i < size}


def halos(
    window: Window, x: Layout, shape: Sequence[int], y: Layout, results: Sequence[int], dims: Sequence[int]
) -> list[int]:
    """For each device, how many elements it must receive of `x` to compute its part of `y`, counted one by one."""
    counts = []
    for slot in range(x.mesh.num_devices):
        held, made = box(x, shape, slot), box(y, results, slot)
        needed = held_of_those = 1
        for dim in range(len(shape)):
            own = set(range(*held[dim]))
            wanted = window.read(made[dim], shape[dim]) if dim in dims else own
            needed *= len(wanted)
            held_of_those *= len(wanted & own)
        counts.append(needed - held_of_those)
    return counts


Function = Callable[..., torch.Tensor]


def grown(
    function: Function, tensors: Sequence[torch.Tensor], layouts: Sequence[Layout], separate: bool
) -> tuple[Tensor, list[Tensor], list[CommRecord], list[CommRecord]]:
    """A result, the gradients of a sum with weights, and what was logged forward and backward."""
    with memory(separate):
        ours = [laid(x, layout).requires_grad_() for x, layout in zip(tensors, layouts, strict=True)]
        with weft.comm_log() as forward:
            out = function(*ours)
        assert isinstance(out, Tensor)
        cotangent = laid(numbers(*out.shape, seed=9), out._layout.resolved)
        with weft.comm_log() as backward:
            grads = torch.autograd.grad([out], ours, [cotangent])
        whole = [x.detach().full_tensor() for x in (out, *grads)]  # type: ignore[attr-defined]
        plain = [x.clone().requires_grad_() for x in tensors]
        right = function(*plain)
        right = [right, *torch.autograd.grad([right], plain, [numbers(*out.shape, seed=9)])]
        for a, b in zip(whole, right, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-9, atol=1e-9)
        return out, list(grads), list(forward), list(backward)  # type: ignore[arg-type]


def exchanged(records: Sequence[CommRecord]) -> list[tuple[int, int]]:
    return [(r.bytes_received, r.total_bytes) for r in records if r.kind == "exchange"]


WINDOWS = st.builds(
    Window, kernel=st.integers(1, 4), stride=st.integers(1, 4), padding=st.integers(0, 2), dilation=st.integers(1, 2)
)
SPLITS = st.sampled_from(
    [
        Layout(LINE, [(), (), ("x",)]),
        Layout(GRID, [(), (), ("a",)]),
        Layout(GRID, [(), (), ("b", "a")]),
        Layout(GRID, [("b",), (), ("a",)]),
    ]
)


@settings(max_examples=40, deadline=None)
@given(window=WINDOWS, layout=SPLITS, size=st.integers(1, 23))
def test_a_convolution_of_split_space_is_that_of_the_whole(window: Window, layout: Layout, size: int) -> None:
    if size + 2 * window.padding <= (window.kernel - 1) * window.dilation:
        size += 8
    x, w, b = numbers(2, 3, size), numbers(4, 3, window.kernel, seed=1), numbers(4, seed=2)
    function = partial(nn.conv1d, stride=window.stride, padding=window.padding, dilation=window.dilation)
    whole = [Layout.replicated(layout.mesh, 3), Layout.replicated(layout.mesh, 1)]
    logs = []
    for separate in (False, True):
        out, _, forward, backward = grown(function, [x, w, b], [layout, *whole], separate)
        logs.append([(r.kind, r.bytes_received, r.total_bytes) for r in (*forward, *backward)])
        if out._layout.splits[2]:
            received = [8 * n for n in halos(window, layout, x.shape, out._layout, out.shape, [2])]
            halo = [(max(received), sum(received))] if any(received) else []
            assert exchanged(forward) == halo
            assert halo == [] or halo[0] in exchanged(backward), "the gradient of the weight reads the same"
            assert all(r.kind == "exchange" for r in forward)
            assert {r.kind for r in backward} <= {"exchange", "all_reduce"}
    assert logs[0] == logs[1], "one memory tells what separate ones move"


@settings(max_examples=40, deadline=None)
@given(window=WINDOWS, layout=SPLITS, size=st.integers(1, 17), beyond=st.integers(0, 2))
def test_a_transposed_convolution_of_split_space_is_that_of_the_whole(
    window: Window, layout: Layout, size: int, beyond: int
) -> None:
    beyond = min(beyond, max(window.stride, window.dilation) - 1)
    reach = (window.kernel - 1) * window.dilation + 1 + beyond
    while (size - 1) * window.stride - 2 * window.padding + reach < 1:
        size += 1
    x, w, b = numbers(2, 3, size), numbers(3, 4, window.kernel, seed=1), numbers(4, seed=2)
    options = {"padding": window.padding, "output_padding": beyond, "dilation": window.dilation}
    whole = [Layout.replicated(layout.mesh, 3), Layout.replicated(layout.mesh, 1)]
    logs = []
    for separate in (False, True):
        out, grads, forward, backward = grown(
            partial(nn.conv_transpose1d, stride=window.stride, **options), [x, w, b], [layout, *whole], separate
        )
        logs.append([(r.kind, r.bytes_received, r.total_bytes) for r in (*forward, *backward)])
        assert out._layout.splits[2] == grads[0]._layout.splits[2] == layout.splits[2]
        assert {r.kind for r in forward} <= {"exchange"}
        assert {r.kind for r in backward} <= {"exchange", "all_reduce"}
        # Backward, a device reads of the gradient what its part of the input went to.
        flow = Layout(layout.mesh, [layout.splits[0], (), layout.splits[2]])
        received = [8 * n for n in halos(window, flow, out.shape, flow, (2, 4, size), [2])]
        assert exchanged(backward) == ([(max(received), sum(received))] if any(received) else [])
    assert logs[0] == logs[1], "one memory tells what separate ones move"


POOLS: dict[str, Callable[[Window, bool], Function]] = {
    "max": lambda w, up: partial(
        nn.max_pool1d, kernel_size=w.kernel, stride=w.stride, padding=w.padding, dilation=w.dilation, ceil_mode=up
    ),
    "mean": lambda w, up: partial(
        nn.avg_pool1d, kernel_size=w.kernel, stride=w.stride, padding=w.padding, ceil_mode=up
    ),
    "mean, padding not counted": lambda w, up: partial(
        nn.avg_pool1d,
        kernel_size=w.kernel,
        stride=w.stride,
        padding=w.padding,
        ceil_mode=up,
        count_include_pad=False,
    ),
}


@pytest.mark.parametrize("name", POOLS)
@settings(max_examples=40, deadline=None)
@given(window=WINDOWS, layout=SPLITS, size=st.integers(1, 23), rounds_up=st.booleans())
def test_pools_of_split_space_are_those_of_the_whole(
    name: str, window: Window, layout: Layout, size: int, rounds_up: bool
) -> None:
    dilation = window.dilation if name == "max" else 1
    window = Window(window.kernel, window.stride, min(window.padding, window.kernel // 2), dilation)
    if size + 2 * window.padding <= (window.kernel - 1) * window.dilation:
        size += 8
    function = POOLS[name](window, rounds_up)
    logs = []
    for separate in (False, True):
        out, _, forward, backward = grown(function, [numbers(2, 3, size)], [layout], separate)
        logs.append([(r.kind, r.bytes_received, r.total_bytes) for r in (*forward, *backward)])
        if out._layout.splits[2]:
            received = [8 * n for n in halos(window, layout, (2, 3, size), out._layout, out.shape, [2])]
            assert exchanged(forward) == ([(max(received), sum(received))] if any(received) else [])
            assert {r.kind for r in (*forward, *backward)} <= {"exchange"}
    assert logs[0] == logs[1], "one memory tells what separate ones move"


IMAGES = {
    "both sides": Layout(GRID, [(), (), ("a",), ("b",)]),
    "one side": Layout(GRID, [(), (), (), ("b",)]),
    "batch and rows": Layout(GRID, [("b",), (), ("a",), ()]),
    "channels and rows": Layout(GRID, [(), ("a",), ("b",), ()]),
    "rows twice": Layout(GRID, [(), (), ("b", "a"), ()]),
}
OF_IMAGES: dict[str, tuple[Function, Window]] = {
    "conv2d": (lambda x, w: nn.conv2d(x, w, None, 1, 1), Window(3, 1, 1, 1)),
    "conv2d, strided": (lambda x, w: nn.conv2d(x, w, None, 2, 1), Window(3, 2, 1, 1)),
    "conv2d, groups": (lambda x, w: nn.conv2d(x, w[:, :2], None, 1, 1, groups=2), Window(3, 1, 1, 1)),
    "conv_transpose2d": (lambda x, w: nn.conv_transpose2d(x, w, None, 1, 1), Window(3, 1, 1, 1)),
    "max_pool2d": (lambda x, w: nn.max_pool2d(x, 3, 2, 1) * w.sum(), Window(3, 2, 1, 1)),
    "avg_pool2d": (lambda x, w: nn.avg_pool2d(x, 3, 2, 1, divisor_override=5) * w.sum(), Window(3, 2, 1, 1)),
}


@pytest.mark.parametrize("name", OF_IMAGES)
@pytest.mark.parametrize("where", IMAGES)
def test_images_exchange_borders_and_corners(name: str, where: str) -> None:
    function, window = OF_IMAGES[name]
    layout = IMAGES[where]
    x, w = numbers(4, 4, 13, 10), numbers(4, 4, 3, 3, seed=1)
    channels = [(), layout.splits[1], (), ()] if name == "conv2d" else [()] * 4
    for separate in (False, True):
        out, grads, forward, _ = grown(function, [x, w], [layout, Layout(GRID, channels)], separate)
        assert grads[0]._layout.splits[2:] == layout.splits[2:]
        if name == "conv2d, groups" and layout.splits[1]:
            continue  # a split of channels that are grouped otherwise is gathered first
        assert out._layout.splits[2:] == layout.splits[2:]
        dims = [d for d in (2, 3) if layout.splits[d]]
        other = Layout(GRID, [out._layout.splits[0], layout.splits[1], *out._layout.splits[2:]])
        # Dims of space that are whole are looked at whole, so only split ones count; channels are those of the input.
        results = (4, 4, *out.shape[2:])
        received = [8 * n for n in halos(window, layout, x.shape, other, results, dims)]
        assert exchanged(forward) == [(max(received), sum(received))]


def test_volumes() -> None:
    layout = Layout(GRID, [(), (), ("a",), (), ("b",)])
    x, w = numbers(1, 2, 9, 4, 8), numbers(3, 2, 3, 2, 3, seed=1)
    for function in (
        lambda x, w: nn.conv3d(x, w, None, (2, 1, 1), (1, 0, 2)),
        lambda x, w: nn.max_pool3d(x, 3, 2, 1, ceil_mode=True) * w.sum(),
        lambda x, w: nn.avg_pool3d(x, 3, 2, 1, True, False) * w.sum(),
    ):
        for separate in (False, True):
            out, _, forward, backward = grown(function, [x, w], [layout, Layout.replicated(GRID, 5)], separate)
            assert out._layout.splits == layout.splits
            assert {r.kind for r in forward} == {"exchange"}
            assert {r.kind for r in backward} <= {"exchange", "all_reduce"}


@pytest.mark.parametrize("separate", [False, True])
def test_places_of_maxima_are_those_in_the_whole(separate: bool) -> None:
    x = numbers(2, 3, 10, 9).round()
    x[0] = -torch.inf
    x[1, 1, 4] = torch.nan
    right = nn.max_pool2d(x, 3, 2, 1, 2, return_indices=True)
    with memory(separate):
        for layout in (Layout(GRID, [(), (), ("a",), ("b",)]), Layout(LINE, [(), (), (), ("x",)])):
            values, places = nn.max_pool2d(laid(x, layout), 3, 2, 1, 2, return_indices=True)
            assert values._layout is places._layout is layout
            torch.testing.assert_close(values.full_tensor(), right[0], equal_nan=True)
            assert torch.equal(places.full_tensor(), right[1])


@pytest.mark.parametrize("separate", [False, True])
def test_short_numbers_are_pooled_as_torch_does(separate: bool) -> None:
    x = numbers(2, 3, 16).bfloat16()
    with memory(separate):
        ours = nn.avg_pool1d(laid(x, Layout(LINE, [(), (), ("x",)])), 3, 2, 1, count_include_pad=False)
        torch.testing.assert_close(ours.full_tensor(), nn.avg_pool1d(x, 3, 2, 1, count_include_pad=False))


@pytest.mark.parametrize("separate", [False, True])
def test_gradients_of_weights_are_pending_sums_over_space(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(2, 3, 12), Layout(GRID, [("b",), (), ("a",)]))
        w = laid(numbers(4, 3, 3), Layout.replicated(GRID, 3))
        grad = laid(numbers(2, 4, 10), x._layout)
        args = ([4], [1], [0], [1], False, [0], 1, [True, True, True])
        back, scale, shift = torch.ops.aten.convolution_backward.default(grad, x, w, *args)
        assert back._layout is x._layout
        assert scale._layout.pending == shift._layout.pending == (("a", ReduceOp.SUM), ("b", ReduceOp.SUM))


@pytest.mark.parametrize("separate", [False, True])
def test_pending_tensors_are_resolved_where_they_lie(separate: bool) -> None:
    x, w = numbers(2, 3, 12), numbers(4, 3, 3, seed=1)
    with memory(separate):
        ours = laid(x, Layout(GRID, [(), (), ("a",)], {"b": ReduceOp.SUM}))
        with weft.comm_log() as log:
            out = nn.conv1d(ours, laid(w, Layout.replicated(GRID, 3)))
        torch.testing.assert_close(out.full_tensor(), nn.conv1d(x, w))
        assert out._layout is Layout(GRID, [(), (), ("a",)])
        assert log.counts() == {"all_reduce": 1, "exchange": 1}


@pytest.mark.parametrize("separate", [False, True])
def test_windows_as_wide_as_the_whole_move_what_gathering_does(separate: bool) -> None:
    x, w = numbers(2, 3, 12), numbers(4, 3, 23, seed=1)
    with memory(separate):
        with weft.comm_log() as log:
            out = nn.conv1d(laid(x, Layout(LINE, [(), (), ("x",)])), laid(w, Layout.replicated(LINE, 3)), padding=11)
        torch.testing.assert_close(out.full_tensor(), nn.conv1d(x, w, padding=11))
        assert [(r.kind, r.bytes_received, r.total_bytes) for r in log] == [("exchange", 8 * 48, 3 * 8 * 48)]
        assert out._layout.splits[2] == ("x",)


@pytest.mark.parametrize("separate", [True, False])
def test_means_of_whole_numbers_are_rounded_once(separate: bool) -> None:
    """Not for each contribution to a pending sum."""
    parts = [torch.randint(0, 99, (2, 3, 4, 6), generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    pending = weft.PlacementMapping(weft.make_mesh({"x": 2}), [weft.Partial("sum")])
    with memory(separate):
        for dtype, pool in (
            (torch.int64, lambda x: nn.avg_pool2d(x, 2)),
            (torch.int64, lambda x: nn.avg_pool1d(x[0], 3, 1)),
            (torch.uint8, lambda x: nn.interpolate(x, scale_factor=2, mode="bilinear")),
        ):
            given = [part.to(dtype) for part in parts]
            assert torch.equal(pool(weft.from_local(given, pending)).full_tensor(), pool(given[0] + given[1]))


@pytest.mark.parametrize("separate", [False, True])
def test_what_torch_refuses_is_refused(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(2, 3, 12), Layout(LINE, [(), (), ("x",)]))
        with pytest.raises(RuntimeError, match="padding should be at most half of kernel size"):
            nn.max_pool1d(x, 3, 1, 2)
        with pytest.raises(
            RuntimeError, match=r"Kernel size can't be greater than actual input size|Output size is too small"
        ):
            nn.conv1d(x, numbers(4, 3, 13))
        with pytest.raises(RuntimeError, match=r"expected input|Invalid channel"):
            nn.conv1d(x, numbers(4, 2, 3))


@pytest.mark.parametrize("separate", [False, True])
def test_what_is_exchanged_is_reported(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(2, 3, 12), Layout(LINE, [(), (), ("x",)]))
        with weft.reshard_policy("raise"), pytest.raises(weft.errors.ReshardError, match=r"192 bytes .* \(exchange\)"):
            nn.conv1d(x, numbers(4, 3, 5), padding=2)
