"""Linear layers for which nothing has to be brought come as one op, and do what the ops do that torch makes them of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

import weft
from weft import P
from weft.rules.ops.matmul import linear_backward
from weft.runtime import machine
from weft.runtime.machine import residence

from .seen import Seen

MESH = weft.make_mesh({"dp": 2, "tp": 2})
HOME = residence(MESH).device
LIBRARY = torch.library.Library("weft_test_linear", "FRAGMENT")
LIBRARY.define("tripled(Tensor x) -> Tensor")
LIBRARY.impl("tripled", lambda x: x * 3, "CompositeExplicitAutograd")
SPECS = [P(), P("dp"), P(None, "tp"), P("tp", "dp"), P(("dp", "tp"))]
SHAPES = [(4, 6), (4, 2, 6), (6,)]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, device=HOME)


def laid(x: torch.Tensor, spec: P) -> weft.Tensor:
    return weft.shard(x, MESH, P(*tuple(spec)[: x.dim()])).requires_grad_()


def gradients(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor]:
    given = [t for t in (x, weight, bias) if t is not None]
    y = linear(x, weight, bias)
    return [y, *torch.autograd.grad((y * y).sum(), given)]


def ops_of(*given: torch.Tensor | None) -> list[str]:
    """The ops that a layer and its gradients come as."""
    grad = linear(*given).detach()
    with Seen() as seen:
        y = linear(*given)
        torch.autograd.grad(y, [x for x in given if x is not None], grad)
    return seen.names


def test_a_layer_is_one_op_and_its_gradient_another() -> None:
    whole = laid(numbers(8, 6), P()), laid(numbers(8), P())
    split = laid(numbers(8, 6), P("tp")), laid(numbers(8), P("tp"))
    for weight, bias in (whole, split):
        for shape in ((4, 6), (4, 2, 6)):
            names = ops_of(laid(numbers(*shape), P("dp")), weight, bias)
            assert names == ["aten.linear.default", "aten.linear_backward.default"]


def test_layers_that_need_what_lies_elsewhere_come_in_parts() -> None:
    x, weight, bias = (laid(numbers(*shape), P("dp")) for shape in ((4, 2, 6), (8, 6), (8,)))
    assert "aten.addmm.default" in ops_of(x, weight, bias)
    assert "aten.mm.default" in ops_of(x, weight, None)


def test_gradients_in_merged_dims_move_at_the_same_time_in_every_memory() -> None:
    told = []
    for is_separate in (True, False):
        machine.use_separate_memory(is_separate)
        x, weight, bias = (laid(numbers(*shape), P(None, "tp")) for shape in ((12, 4), (4, 4), (4,)))
        grad = weft.shard(numbers(4, 3, 4), MESH, P(None, "tp"))
        with weft.comm_log() as log:
            linear(x * 2, weight, bias).view(4, 3, 4).backward(grad)
        told.append([(record.kind, record.op, record.shape) for record in log])
    assert told[0] == told[1]
    assert ("exchange", "reshape", (4, 3, 4)) in told[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_gives_what_plain_torch_gives_and_moves_what_its_parts_move(
    shape: tuple[int, ...], biased: bool
) -> None:
    plain = [numbers(*shape), numbers(8, 6), numbers(8) if biased else None]
    for first, second in product(SPECS, SPECS):
        given = [None if x is None else laid(x, spec) for x, spec in zip(plain, (first, second, second), strict=True)]
        expected = gradients(*(None if x is None else x.clone().requires_grad_() for x in plain))
        told = []
        for in_parts in (True, False, False):
            with weft.comm_log() as log, forward_ad.dual_level() if in_parts else nullcontext():
                found = gradients(*given)
            moved = sorted((record.kind, record.axes, record.total_bytes) for record in log.records)
            told.append((moved, [x._layout for x in found]))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.full_tensor(), other)
                assert one.stride() == other.stride()
        assert told[0] == told[1] == told[2]


def test_what_a_frozen_layer_need_not_keep_may_be_written_to() -> None:
    for frozen in ([1], [0], [0, 1], [1, 2]):
        given = [laid(numbers(*shape), P()) for shape in ((4, 6), (8, 6), (8,))]
        leaves = [x.requires_grad_(k not in frozen) for k, x in enumerate(given)]
        x, weight, bias = (x * 2 for x in leaves)
        y = linear(x, weight, bias)
        for other in [
            t for k, t in enumerate((weight, x)) if k in frozen
        ]:  # what only the gradient of a frozen one reads
            with torch.no_grad():
                other.mul_(0)
        wanted = [x for x in leaves if x.requires_grad]
        found = torch.autograd.grad(y.sum(), wanted)
        again = torch.autograd.grad(linear(*(x * 2 for x in leaves)).sum(), wanted)
        for one, other in zip(found, again, strict=True):
            torch.testing.assert_close(one.full_tensor(), other.full_tensor())


def test_layers_are_recomputed_as_they_were_computed() -> None:
    x, weight, bias = laid(numbers(4, 2, 6), P("dp")), laid(numbers(6, 6), P("tp")), laid(numbers(6), P("tp"))

    def twice(x: torch.Tensor) -> torch.Tensor:
        return linear(linear(x, weight, bias).tanh(), weight, bias)

    for _ in range(2):
        y = checkpoint(twice, x, use_reentrant=False)
        found = torch.autograd.grad(y.square().sum(), (x, weight, bias))
        expected = torch.autograd.grad(twice(x).square().sum(), (x, weight, bias))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.full_tensor(), other.full_tensor())


@pytest.mark.parametrize("shape", [(), (1,), (4, 8), (1, 8)], ids=str)
@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
def test_any_bias_that_torch_broadcasts(
    shape: tuple[int, ...], mode: Callable[[], AbstractContextManager[None]]
) -> None:
    x, weight, bias = numbers(4, 6), numbers(8, 6), numbers(*shape)
    with mode():
        found = linear(*(weft.shard(t, MESH, P()) for t in (x, weight, bias)))
        torch.testing.assert_close(found.full_tensor(), linear(x, weight, bias))
    if mode is nullcontext:
        sharded, plain = (
            torch.autograd.grad(linear(*given).square().sum(), given)
            for given in ([laid(t, P()) for t in (x, weight, bias)], [t.requires_grad_() for t in (x, weight, bias)])
        )
        for one, other in zip(sharded, plain, strict=True):
            torch.testing.assert_close(one.full_tensor(), other)


def in_forward_mode(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        y = linear(forward_ad.make_dual(x, x * 2), forward_ad.make_dual(w, w * 3))
        return forward_ad.unpack_dual(y).tangent


def forms() -> Iterator[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    yield lambda x, w: torch.func.jvp(linear, (x, w), (w[:4] * 2, w * 3))[1]
    yield in_forward_mode
    yield lambda x, w: torch.func.vmap(lambda row: linear(row, w))(x)
    yield lambda x, w: torch.func.hessian(lambda b: linear(x[:1], b[:2]).pow(3).sum())(w)
    yield lambda x, w: torch.func.grad(lambda b: torch.func.grad(lambda a: linear(a, b).pow(3).sum())(x).sum())(w)
    yield lambda x, w: linear(x, w[0])
    yield lambda x, w: linear(x.mT.clone().mT, w.mT.clone().mT)
    yield lambda x, w: linear(torch.complex(x, x), torch.complex(w, -w)).abs()


@pytest.mark.parametrize("form", list(forms()))
def test_what_is_made_of_layers(form: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    x, weight = numbers(4, 6), numbers(6, 6)
    for spec in SPECS:
        found, expected = [], []
        for given, of in ((x, expected), (weft.shard(x, MESH, spec), found), (weft.shard(x, MESH, spec), found)):
            w = (weight if of is expected else weft.shard(weight, MESH, P("tp"))).clone().requires_grad_()
            y = form(given, w)
            of += [y, *torch.autograd.grad(y.sum(), w)]
        for one, other in zip(found, expected * 2, strict=True):
            torch.testing.assert_close(one.full_tensor(), other)
            assert one.stride() == other.stride()


def test_only_wanted_gradients_are_computed() -> None:
    x, grad, weight = numbers(3, 4), numbers(3, 5), numbers(5, 4)
    assert [g is None for g in linear_backward(x, grad, weight, [False, True, False])] == [True, False, True]


def test_layers_are_cast_where_torch_casts_them() -> None:
    x = laid(torch.ones(4, 6, device=HOME), P("dp"))
    with torch.autocast(HOME.type, torch.bfloat16):
        assert linear(x, x).dtype == (x @ x.T).dtype == torch.bfloat16


def test_a_layer_in_inference_mode_says_nothing_of_one_that_is_trained() -> None:
    layouts = []
    for modes in ((torch.no_grad,), (torch.inference_mode, torch.no_grad), (torch.inference_mode, torch.no_grad)):
        for mode in modes:
            with mode():
                x, weight = weft.shard(numbers(4, 2, 32), MESH, P("dp")), weft.shard(numbers(32, 32), MESH, P("dp"))
                y = linear(x, weight)
                torch.testing.assert_close(y.full_tensor(), linear(x.full_tensor(), weight.full_tensor()))
        layouts.append(y._layout)
    assert layouts[0] == layouts[1] == layouts[2]


def stopping(key: str) -> set[str]:
    """The ops that stop at a dispatch key."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        table = dict(line.split(": ", 1) for line in torch._C._dispatch_dump_table(name).splitlines() if ": " in line)
        if not table[key].startswith("fallthrough"):
            found.add(name)
    return found


def test_no_other_op_stops_where_these_do() -> None:
    layers = {f"aten::{kind}.input" for kind in ("gru", "lstm", "rnn_relu", "rnn_tanh")}
    cells = {f"aten::{kind}_cell" for kind in ("gru", "lstm", "rnn_relu", "rnn_tanh")}
    norms = {f"aten::linalg_{kind}.out" for kind in ("norm", "matrix_norm", "multi_dot")}
    norms |= {"aten::linalg_norm.ord_str_out", "aten::linalg_matrix_norm.str_ord_out"}
    assert stopping("DeferredInit") == {"aten::linear", "aten::linear_backward", *layers, *cells, *norms}
    assert stopping("TESTING_ONLY_GenericWrapper") == {"aten::einsum", "aten::matmul", "aten::matmul_backward"}


def test_ops_without_a_formula_warn_as_on_plain_tensors() -> None:
    tripled = torch.ops.weft_test_linear.tripled.default
    for x in (torch.ones(4, device=HOME), weft.shard(torch.ones(4, device=HOME), MESH, P("dp"))):
        with pytest.warns(UserWarning, match="an autograd kernel was not registered"):
            tripled(x.requires_grad_()).sum().backward()


def test_plain_tensors_are_made_of_sharded_ones() -> None:
    x = laid(numbers(4, 6), P("dp"))
    assert type(x.new_tensor([1, 2])) is torch.Tensor
    assert x.new_tensor([1, 2]).dtype == x.new(2).dtype == x.dtype
    assert x.new_tensor(1).device == x.new(2, 3).device == x.device


@pytest.mark.parametrize("spec", [P(), P("tp")])
@pytest.mark.parametrize("added", ["bias", "addmm", "baddbmm"])
def test_what_is_added_to_a_product_with_what_only_some_devices_have_counts(added: str, spec: P) -> None:
    """Devices that have no rows to be summed up contribute what is added."""
    mesh = weft.make_mesh({"tp": 4})
    stack, first, second, bias = numbers(4, 4, 3), numbers(3, 8), numbers(8, 5), numbers(5)
    for k in range(4):

        def run(
            stack: torch.Tensor, first: torch.Tensor, second: torch.Tensor, bias: torch.Tensor, k: int = k
        ) -> torch.Tensor:
            x = stack[k] @ first
            if added == "bias":
                return linear(x, second.t(), bias)
            if added == "addmm":
                return torch.addmm(bias, x, second)
            return torch.baddbmm(bias, x[None], second[None])

        given = (stack, first, second, bias)
        specs = (P("tp"), P(None, "tp"), P("tp"), spec)
        sharded = [weft.shard(x, mesh, each) for x, each in zip(given, specs, strict=True)]
        torch.testing.assert_close(run(*sharded).full_tensor(), run(*given))
