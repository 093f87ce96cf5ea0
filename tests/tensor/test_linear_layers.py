"""Linear layers and their gradients come as one op each, and do what the ops do that torch makes them of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft import P
from weft.engine.dispatch_keys import AS_ONE
from weft.rules.ops.matmul import linear_backward
from weft.runtime.machine import residence

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


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_layer_is_one_op_and_its_gradient_another() -> None:
    x, weight, bias = (laid(numbers(*shape), P("dp")) for shape in ((4, 2, 6), (8, 6), (8,)))
    grad = linear(x, weight, bias).detach()
    with Seen() as seen:
        torch.autograd.grad(linear(x, weight, bias), (x, weight, bias), grad)
    assert [name for name in seen.names if "linear" in name] == ["aten.linear.default", "aten.linear_backward.default"]
    assert not any("mm" in name or "view" in name for name in seen.names)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_any_layout_gives_what_plain_torch_gives_however_often(shape: tuple[int, ...], biased: bool) -> None:
    plain = [numbers(*shape), numbers(8, 6), numbers(8) if biased else None]
    for first, second in product(SPECS, SPECS):
        logs, layouts = [], []
        given = [None if x is None else laid(x, spec) for x, spec in zip(plain, (first, second, second), strict=True)]
        expected = gradients(*(None if x is None else x.clone().requires_grad_() for x in plain))
        for _ in range(3):
            with weft.comm_log() as log:
                found = gradients(*given)
            logs.append([(record.kind, record.axes, record.shape, record.total_bytes) for record in log.records])
            layouts.append([x._layout for x in found])
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.full_tensor(), other)
                assert one.stride() == other.stride()
        assert logs[0] == logs[1] == logs[2]
        assert layouts[0] == layouts[1] == layouts[2]


def forms() -> Iterator[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    yield lambda x, w: torch.func.jvp(linear, (x, w), (w[:4] * 2, w * 3))[1]
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


def test_autograd_knows_no_other_ops_of_sharded_tensors_than_of_plain_ones() -> None:
    different = []
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            table = dict(
                line.split(": ", 1) for line in torch._C._dispatch_dump_table(name).splitlines() if ": " in line
            )
            ours, host = (table.get(key, "").partition(".cpp:")[0] for key in ("AutogradLazy", "AutogradCPU"))
            if ours != host:
                different.append(name)
    assert sorted(different) == sorted(op.name() for op in AS_ONE)


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
