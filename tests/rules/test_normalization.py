"""Normalizations in every layout, and what they move."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nn

import weft
from weft.engine.dispatch import planned
from weft.rules.call import BoundCall
from weft.sharding.layout import Layout

from .case import Case
from .harness import GRID, LINE, check, laid, memory, moved_bytes, moves


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def batch_norm(x: torch.Tensor, w: torch.Tensor | None = None, b: torch.Tensor | None = None) -> torch.Tensor:
    return nn.batch_norm(x, None, None, w, b, training=True)


NORMS = {
    "softmax, first dim": (lambda x: x.softmax(0), (2, 5, 4)),
    "softmax": (lambda x: x.softmax(1), (2, 5, 4)),
    "softmax, last dim": (lambda x: x.softmax(2), (2, 5, 4)),
    "log_softmax, first dim": (lambda x: x.log_softmax(0), (2, 5, 4)),
    "log_softmax": (lambda x: x.log_softmax(1), (2, 5, 4)),
    "log_softmax, last dim": (lambda x: x.log_softmax(2), (2, 5, 4)),
    "softmin": (lambda x: nn.softmin(x, 1), (2, 5, 4)),
    "layer_norm, no scale": (lambda x: nn.layer_norm(x, (4,)), (2, 5, 4)),
    "layer_norm, no shift": (lambda x, w: nn.layer_norm(x, (4,), w), (2, 5, 4), (4,)),
    "layer_norm": (lambda x, w, b: nn.layer_norm(x, (4,), w, b), (2, 5, 4), (4,), (4,)),
    "layer_norm over two dims": (lambda x, w, b: nn.layer_norm(x, (3, 4), w, b), (2, 3, 4), (3, 4), (3, 4)),
    "rms_norm": (lambda x, w: nn.rms_norm(x, (4,), w), (2, 5, 4), (4,)),
    "group_norm, no scale": (lambda x: nn.group_norm(x, 2), (5, 4, 3)),
    "group_norm": (lambda x, w, b: nn.group_norm(x, 2, w, b), (2, 4, 3), (4,), (4,)),
    "group_norm of images": (lambda x, w, b: nn.group_norm(x, 4, w, b), (2, 8, 2, 2), (8,), (8,)),
    "instance_norm": (nn.instance_norm, (2, 4, 5)),
    "batch_norm of rows, no scale": (batch_norm, (5, 4)),
    "batch_norm of rows": (batch_norm, (5, 4), (4,), (4,)),
    "batch_norm, no scale": (batch_norm, (4, 4, 3)),
    "batch_norm": (batch_norm, (4, 4, 3), (4,), (4,)),
    "batch_norm of images": (batch_norm, (2, 3, 2, 2), (3,), (3,)),
}
CASES = {
    name: Case(function, tuple(numbers(*shape, seed=i) for i, shape in enumerate(shapes)))
    for name, (function, *shapes) in NORMS.items()
}
CASES["batch_norm, fixed statistics"] = Case(
    lambda x, m, v, w, b: nn.batch_norm(x, m.detach(), v.detach(), w, b, training=False),
    (numbers(5, 4, 3), numbers(4), numbers(4).square() + 1, numbers(4), numbers(4)),
    pending=False,
    limit=5,
)


@pytest.mark.parametrize("name", CASES)
def test_norms(name: str) -> None:
    CASES[name].check()


@pytest.mark.parametrize("separate", [False, True])
def test_batch_norm_keeps_running_statistics(separate: bool) -> None:
    x = numbers(5, 4, 3)
    plain = torch.nn.BatchNorm1d(4).double()
    plain(x)
    with memory(separate):
        for layout in (Layout(LINE, [("x",), (), ()]), Layout.replicated(LINE, 3), Layout(LINE, [(), ("x",), ()])):
            module = torch.nn.BatchNorm1d(4).double()
            for name, value in [*module.named_buffers(), *module.named_parameters()]:
                if value.dim():
                    table = module._buffers if name in module._buffers else module._parameters
                    new = laid(value, Layout.replicated(LINE, 1))
                    table[name] = new if name in module._buffers else torch.nn.Parameter(new)
            module(laid(x, layout))
            torch.testing.assert_close(module.running_mean.full_tensor(), plain.running_mean)
            torch.testing.assert_close(module.running_var.full_tensor(), plain.running_var)


@pytest.mark.parametrize("separate", [False, True])
def test_a_split_batch_moves_nothing(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(4, 6, 8), Layout(GRID, [("a",), ("b",), ()])).requires_grad_()
        w = laid(numbers(8), Layout.replicated(GRID, 1)).requires_grad_()
        assert moved_bytes(lambda: nn.layer_norm(x, (8,), w, w)) == 0
        assert moved_bytes(lambda: nn.rms_norm(x, (8,), w)) == 0
        assert moved_bytes(lambda: x.softmax(-1)) == 0
        out = nn.layer_norm(x, (8,), w, w)
        assert out._layout is x._layout
        assert moves(lambda: out.sum().backward()).keys() <= {"all_reduce"}


class FusedNorm(torch.autograd.Function):
    """What torch calls on GPUs; on CPUs it says it by other ops before Weft sees it."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out, scale = planned(BoundCall(torch.ops.aten._fused_rms_norm.default, (x, [4096], w, 1e-5)))
        ctx.save_for_backward(x, w, scale)
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w, scale = ctx.saved_tensors
        args = (grad, x, [4096], scale, w, [True, True])
        return planned(BoundCall(torch.ops.aten._fused_rms_norm_backward.default, args))


def fused_rms_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return FusedNorm.apply(x, w) + b


OVER_FEATURES = {
    "layer_norm": lambda x, w, b: nn.layer_norm(x, (4096,), w, b),
    "layer_norm, no scale": lambda x, w, b: nn.layer_norm(x, (4096,)) * w + b,
    "rms_norm": lambda x, w, b: nn.rms_norm(x, (4096,), w, 1e-5) + b,
    "rms_norm by hand": lambda x, w, b: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w + b,
    "rms_norm of GPUs": fused_rms_norm,
}


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", OVER_FEATURES)
def test_split_features_are_not_gathered(name: str, separate: bool) -> None:
    function = OVER_FEATURES[name]
    plain = [numbers(*shape, seed=i).requires_grad_() for i, shape in enumerate([(16, 8, 4096), (4096,), (4096,)])]
    reference = (lambda x, w, b: nn.rms_norm(x, (4096,), w, 1e-5) + b) if function is fused_rms_norm else function
    cotangent = numbers(16, 8, 4096, seed=3)
    expected = reference(*plain)
    expected.backward(cotangent)
    with memory(separate):
        for layout in (Layout(LINE, [(), (), ("x",)]), Layout(GRID, [("a",), (), ("b",)])):
            last = Layout(layout.mesh, [layout.splits[2]])
            given = [laid(x, where).requires_grad_() for x, where in zip(plain, (layout, last, last), strict=True)]
            with weft.comm_log() as log:
                out = function(*given)
                out.backward(laid(cotangent, layout))
            assert out._layout is layout
            assert "all_gather" not in log.counts()
            assert max(record.bytes_received for record in log) <= 4096 * 8, str(log)
            torch.testing.assert_close(out.detach().full_tensor(), expected.detach())
            for x, right in zip(given, plain, strict=True):
                assert x.grad._layout is x._layout
                torch.testing.assert_close(x.grad.full_tensor(), right.grad)


def test_batch_norm_by_the_name_that_it_has_on_gpus() -> None:
    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        name = "cudnn_batch_norm" if isinstance(x, weft.Tensor) else "native_batch_norm"
        return getattr(torch, name)(x, w, b, None, None, True, 0.1, 1e-5)[0]

    check(norm, numbers(5, 4, 3), numbers(4), numbers(4), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("separate", [False, True])
def test_batch_norm_of_a_split_batch_reduces_statistics_only(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(64, 4, 5), Layout(LINE, [("x",), (), ()]))
        w = laid(numbers(4), Layout.replicated(LINE, 1))
        assert moves(lambda: nn.batch_norm(x, None, None, w, w, training=True)).keys() == {"all_reduce"}


@pytest.mark.parametrize("separate", [False, True])
def test_a_step_of_batch_norm_reduces_each_sum_once(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(64, 4, 5), Layout(LINE, [("x",), (), ()])).requires_grad_()
        mean, variance, w, b = (laid(numbers(4, seed=seed), Layout.replicated(LINE, 1)) for seed in range(4))
        w.requires_grad_()
        b.requires_grad_()
        with weft.comm_log() as log:
            nn.batch_norm(x, mean, variance, w, b, training=True).square().mean().backward()
        # The mean, the variance, and both sums of the gradients together.
        assert [(record.kind, record.shape) for record in log] == [
            ("all_reduce", (1, 4, 1)),
            ("all_reduce", (4,)),
            ("all_reduce", (2, 4)),
        ]


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("write", ["nothing", "the result", "its data", "the view", "the base", "another"])
def test_what_was_computed_of_an_expanded_tensor_is_what_it_was_then(write: str, separate: bool) -> None:
    x, other = numbers(4, 1), numbers(4, 6, seed=1)
    with memory(separate):
        base = laid(x, Layout(LINE, [(), ()], {"x": weft.ReduceOp.SUM}))
        view = base.expand(4, 6)
        result, expected = -(view / 2) * 3, -(x.expand(4, 6) / 2) * 3
        if write in ("the result", "its data"):
            (result if write == "the result" else result.data).add_(1)
            expected = expected + 1
        elif write in ("the view", "the base"):
            (base if write == "the base" else view[:, :1]).add_(1)
        elif write == "another":
            laid(other, Layout.replicated(LINE, 2)).add_(1)
        split = laid(other, Layout(LINE, [(), ("x",)]))
        with weft.comm_log() as log:
            product = result * split
        torch.testing.assert_close(product.full_tensor(), expected * other)
        torch.testing.assert_close(result.full_tensor(), expected)
        if write == "nothing":
            assert [(record.kind, record.shape) for record in log] == [("all_reduce", (4, 1))]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_statistics_of_halves_have_one_dtype_on_all_devices(separate: bool, scaled: bool) -> None:
    """Devices without elements are told it by torch's account, which has another than the host's kernels."""
    x, scale = numbers(2, 4, 5).bfloat16(), torch.ones(4) if scaled else None
    norms = {
        "layers": lambda x: torch.native_layer_norm(x, [5], torch.ones(5) if scaled else None, None, 1e-5),
        "groups": lambda x: torch.native_group_norm(x, scale, scale, 2, 4, 5, 2, 1e-5),
        "batches": lambda x: torch.native_batch_norm(x, scale, scale, None, None, True, 0.1, 1e-5),
    }
    with memory(separate):
        for name, norm in norms.items():
            expected, given = norm(x), norm(laid(x, Layout(LINE, [("x",), (), ()])))
            for one, other in zip(expected, given, strict=True):
                assert {one.dtype} == {other.dtype, *(shard.dtype for shard in other.local_shards)}, name


@pytest.mark.parametrize("separate", [False, True])
def test_second_gradients_of_halves_where_devices_have_nothing(separate: bool) -> None:
    given, weight = numbers(2, 5).float(), numbers(4, 5, seed=1).float()

    def second(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = nn.layer_norm(nn.linear(x, weight), (4,))
        (first,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    expected = second(given.clone().requires_grad_())
    with memory(separate):
        x = laid(given, Layout(LINE, [("x",), ()])).requires_grad_()
        torch.testing.assert_close(second(x).full_tensor(), expected)
