"""Ops on lists of tensors, and optimizers: sharded parameters step as whole ones do, with their state in their layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

import weft
from weft.handlers.lists.races import KnownPlaces
from weft.handlers.split_dims.reductions import norm_terms
from weft.planning import plan_layouts
from weft.sharding.layout import Layout

from .case import Case
from .harness import GRID, LINE, laid, layouts, memory

G = torch.Generator().manual_seed(7)
SHAPES = [(5, 4), (3,), (), (2, 3, 2)]
VALUES = [torch.randn(shape, dtype=torch.float64, generator=G) for shape in SHAPES]
OTHERS = [torch.rand(shape, dtype=torch.float64, generator=G) + 0.5 for shape in SHAPES]


@pytest.fixture(params=[False, True], ids=["unified", "separate"])
def separate(request: pytest.FixtureRequest) -> Iterator[bool]:
    with memory(request.param):
        yield request.param


def _layouts(seed: int) -> list[Layout]:
    """One layout for each shape; a different choice for each seed."""
    mesh = GRID if seed % 2 else LINE
    return [
        layouts(mesh, len(shape), pending=seed > 3)[seed * 5 % len(layouts(mesh, len(shape), seed > 3))]
        for shape in SHAPES
    ]


LISTS: dict[str, Callable[[list[torch.Tensor], list[torch.Tensor]], object]] = {
    "add": lambda x, y: torch._foreach_add(x, y, alpha=2),
    "add a number": lambda x, _: torch._foreach_add(x, 2.0),
    "add numbers": lambda x, _: torch._foreach_add(x, [1.0, 2.0, 3.0, 4.0]),
    "mul by a tensor": lambda x, y: torch._foreach_mul(x, y[2]),
    "div": torch._foreach_div,
    "addcmul": lambda x, y: torch._foreach_addcmul(x, y, x, 0.5),
    "addcdiv": lambda x, y: torch._foreach_addcdiv(x, x, y, [1.0, 2.0, 3.0, 4.0]),
    "addcdiv by a tensor": lambda x, y: torch._foreach_addcdiv(
        x, x, y, torch.tensor([1.0, 2.0, 3.0, 4.0], device="cpu")
    ),
    "lerp": lambda x, y: torch._foreach_lerp(x, y, 0.3),
    "sqrt": lambda _, y: torch._foreach_sqrt(y),
    "maximum": torch._foreach_maximum,
    "pow": lambda _, y: torch._foreach_pow(y, 3),
    "pow of a number": lambda x, _: torch._foreach_pow(2.0, x),
    "norm": lambda x, _: torch._foreach_norm(x),
    "norm 1": lambda x, _: torch._foreach_norm(x, 1),
    "norm inf": lambda x, _: torch._foreach_norm(x, float("inf")),
    "max": lambda x, _: torch._foreach_max(x),
    "zero_": lambda x, _: torch._foreach_zero_(x),
    "mul_": torch._foreach_mul_,
    "mul_ by one": lambda x, y: torch._foreach_mul_(x, y[2]),
    "copy_": torch._foreach_copy_,
    "addcdiv_": lambda x, y: torch._foreach_addcdiv_(x, x, y, value=2.0),
    "clamp_max_": lambda x, _: torch._foreach_clamp_max_(x, 0.1),
}
if hasattr(torch, "_foreach_mm"):  # since torch 2.12
    LISTS["mm"] = lambda x, y: torch._foreach_mm([x[0]], [y[0].T])


def _of_lists(function: Callable[[list[torch.Tensor], list[torch.Tensor]], object]) -> Case:
    """A function of two lists, which it may write to, as one of tensors: what it gives, and the first list."""

    def whole(*tensors: torch.Tensor) -> object:
        copies = [x.clone() for x in tensors]
        half = len(copies) // 2
        given = function(copies[:half], copies[half:])
        assert [x._layout for x in copies if isinstance(x, weft.Tensor)] == [
            x._layout for x in tensors if isinstance(x, weft.Tensor)
        ]
        return [list(given) if isinstance(given, (list, tuple)) else [], copies[:half]]

    return Case(whole, (*VALUES, *OTHERS), grad=False, limit=4)


OF_LISTS = {name: _of_lists(function) for name, function in LISTS.items()}


@pytest.mark.parametrize("name", OF_LISTS)
def test_lists_of_tensors(name: str) -> None:
    OF_LISTS[name].check()


def test_lists_may_mix_plain_and_sharded_tensors(separate: bool) -> None:
    x = [laid(VALUES[0], layouts(GRID, 2)[3]), VALUES[1].clone()]
    torch._foreach_add_(x, [OTHERS[0], laid(OTHERS[1], layouts(GRID, 1)[1])])
    torch.testing.assert_close(x[0].full_tensor(), VALUES[0] + OTHERS[0])  # type: ignore[attr-defined]
    assert type(x[1]) is torch.Tensor, separate
    torch.testing.assert_close(x[1], VALUES[1] + OTHERS[1])


Optimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5, centered=True),
    "RMSprop foreach": lambda p: torch.optim.RMSprop(p, 0.1, foreach=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
}
if not torch.cuda.is_available():  # torch has this one for CPUs alone
    OPTIMIZERS["Adagrad fused"] = lambda p: torch.optim.Adagrad(p, 0.1, fused=True)


def _of_optimizer(make: Optimizer) -> Case:
    """One step of an optimizer: a parameter and its gradient to the parameter after it."""

    def stepped(p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        p = p.clone().requires_grad_()
        p.grad = grad.clone()
        loss = (p.detach() ** 2).sum()
        make([p]).step(lambda: loss)
        return p.detach()

    return Case(stepped, (VALUES[0], OTHERS[0]), grad=False, limit=4)


OF_OPTIMIZERS = {name: _of_optimizer(make) for name, make in OPTIMIZERS.items()}


CROSSED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "sums": lambda x, y: torch._foreach_add_([x, y], [y, x]),
    "sums with a part": lambda x, y: torch._foreach_add_([x, y[:2]], [y, x[1:3]]),
    "products": lambda x, y: torch._foreach_mul_([x, y], [y[:], x.t().t()]),
    "of three": lambda x, y: torch._foreach_addcmul_([x, y], [y, x], [y, y], 0.5),
    "towards": lambda x, y: torch._foreach_lerp_([x, y], [y + 1, x], 0.5),
    "copies": lambda x, y: torch._foreach_copy_([x, y], [y + 1, x]),
}


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("name", CROSSED)
def test_places_of_a_list_read_what_those_before_have_written(name: str) -> None:
    whole = [torch.arange(12.0).reshape(4, 3), torch.arange(12.0).reshape(4, 3) / 4 - 1]
    for one in layouts(GRID, 2):
        for other in layouts(GRID, 2)[::4]:
            given, plain = [laid(whole[0], one), laid(whole[1], other)], [x.clone() for x in whole]
            for _ in range(2):
                CROSSED[name](*given)
                CROSSED[name](*plain)
            assert all(torch.equal(x.full_tensor(), y) for x, y in zip(given, plain, strict=True)), (one, other)


@pytest.mark.parametrize("name", OF_OPTIMIZERS)
def test_a_step_from_any_layout(name: str) -> None:
    OF_OPTIMIZERS[name].check()


def _trained(optimizer: Optimizer, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    made = optimizer(parameters)

    def loss() -> torch.Tensor:
        made.zero_grad()
        total = sum(((p - y) ** 2).sum() * (k + 1) for k, (p, y) in enumerate(zip(parameters, OTHERS, strict=True)))
        assert isinstance(total, torch.Tensor)
        total.backward()
        clip_grad_norm_(parameters, 2.0)
        clip_grad_value_(parameters, 0.9)
        return total

    for _ in range(3):
        made.step(loss)
    return made


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_on_one_device(name: str) -> None:
    expected = [x.clone().requires_grad_() for x in VALUES]
    _trained(OPTIMIZERS[name], expected)
    for seed in (1, 2):
        theirs = _layouts(seed)
        ours: list[torch.Tensor] = [laid(v, layout).requires_grad_() for v, layout in zip(VALUES, theirs, strict=True)]
        made = _trained(OPTIMIZERS[name], ours)
        for x, right, layout in zip(ours, expected, theirs, strict=True):
            assert isinstance(x, weft.Tensor)
            torch.testing.assert_close(x.detach().full_tensor(), right.detach())
            for state in made.state[x].values():
                if isinstance(state, weft.Tensor) and state.shape == x.shape:
                    assert state._layout is layout


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_norms_of_all_gradients(order: float) -> None:
    right = get_total_norm(VALUES, order)
    for seed in (0, 1, 2, 5, 6):
        ours = [laid(v, layout) for v, layout in zip(VALUES, _layouts(seed), strict=True)]
        torch.testing.assert_close(get_total_norm(ours, order).full_tensor(), right)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, float("inf")])
def test_clipping_reduces_once_for_all_gradients(order: float) -> None:
    splits = [(("a",), ()), (("b",),), (), (("a",), (), ("b",))]
    plain = [torch.zeros(shape, dtype=torch.float64).requires_grad_() for shape in (*SHAPES, (1,))]
    ours = [
        laid(x, Layout(GRID, each)).requires_grad_() for x, each in zip(plain, [*splits, (("b", "a"),)], strict=True)
    ]
    for x, p, value in zip(plain, ours, [*VALUES, torch.ones(1).double()], strict=True):
        x.grad, p.grad = value.clone(), laid(value, p._layout)
    with weft.comm_log() as log:
        norm = clip_grad_norm_(ours, 0.5, order)
    torch.testing.assert_close(norm.full_tensor(), clip_grad_norm_(plain, 0.5, order))  # type: ignore[attr-defined]
    for x, p in zip(plain, ours, strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), x.grad)  # type: ignore[union-attr]
        assert p.grad._layout is p._layout  # type: ignore[union-attr]
    # Of powers, those of the gradients that are split are reduced; sums and maxima stay pending until all are stacked.
    shape = (4,) if order in (0.5, 2.0) else (5,)
    assert [record.shape for record in log] == [shape], str(log)
    assert log.total_bytes == plan_layouts(log[0].source, log[0].target, shape, 8).bytes_received.total


@pytest.mark.usefixtures("separate")
def test_norms_keep_their_dtype_and_mesh() -> None:
    rows = Layout(LINE, [("x",), ()])
    tensors = [laid(VALUES[0].to(dtype), rows) for dtype in (torch.float32, torch.bfloat16, torch.complex64)]
    tensors += [
        laid(VALUES[0], Layout(GRID, [("a",), ()])),
        VALUES[0],
        laid(VALUES[1] > 9, rows.without_dim(1)).double(),
    ]
    for dtype in (None, torch.float64):
        given = tensors if dtype is None else [x for x in tensors if not x.is_complex()]
        for x, norm in zip(given, torch._foreach_norm(given, 2, dtype=dtype), strict=True):
            whole = x.full_tensor() if isinstance(x, weft.Tensor) else x
            right = torch.linalg.vector_norm(whole, 2, dtype=dtype)
            assert isinstance(norm, weft.Tensor) == isinstance(x, weft.Tensor)
            torch.testing.assert_close(norm.full_tensor() if isinstance(norm, weft.Tensor) else norm, right)


def test_norms_of_known_lists(separate: bool) -> None:
    """Again and again, looked at or not, of this order or another: the same bits in the same layouts; in one memory, plain torch's."""
    for dtype in (torch.float64, torch.bfloat16, torch.complex64):
        plain = [torch.randn(5, 4, generator=G).to(dtype), torch.randn(3, generator=G).to(dtype)]
        ours = [laid(x, Layout(GRID, [("a",), *[()] * (x.dim() - 1)])) for x in plain]
        for order in (2.0, 1.0, 2.0, 2):
            with weft.comm_log() as log:
                logged = torch._foreach_norm(ours, order)
            with weft.comm_log() as again:
                seen = [logged, torch._foreach_norm(ours, order)]
            assert log.total_bytes == again.total_bytes
            assert log.total_bytes or order == 1.0
            seen += [torch._foreach_norm(ours, order), torch._foreach_norm(ours, order)]
            values = [x.full_tensor() for x in logged]
            for norms in seen:
                assert [x._layout for x in norms] == [x._layout for x in logged]
                assert all(torch.equal(x.full_tensor(), value) for x, value in zip(norms, values, strict=True))
            for value, right in zip(values, torch._foreach_norm(plain, order), strict=True):
                assert value.dtype == right.dtype
                if separate or order == 1.0:
                    torch.testing.assert_close(value, right)
                else:
                    assert torch.equal(value, right)


def test_norms_of_known_lists_in_one_memory_are_one_call(separate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [laid(x, Layout(LINE, [("x",), *[()] * (x.dim() - 1)])) for x in VALUES if x.dim()]
    torch._foreach_norm(ours, 2.0)
    asked: list[object] = []

    def looked_at(*args: object) -> torch.Tensor:
        asked.append(args)
        return norm_terms(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("weft.handlers.split_dims.foreach_norm.norm_terms", looked_at)
    torch._foreach_norm(ours, 2.0)
    assert bool(asked) is separate


@pytest.mark.usefixtures("separate")
def test_stepping_moves_nothing() -> None:
    p = laid(VALUES[0], layouts(GRID, 2)[6]).requires_grad_()
    p.grad = laid(OTHERS[0], p._layout)
    for optimizer in (
        torch.optim.SGD([p], 0.1, momentum=0.9),
        torch.optim.AdamW([p], foreach=True),
        torch.optim.Adam([p], fused=True),
    ):
        with weft.comm_log() as log:
            optimizer.step()
        assert not log.records


def test_a_compiler_is_not_asked_for_addresses_of_what_a_list_writes_to() -> None:
    """On a GPU, an optimizer's step that had run before was compiled by the calls that were known then."""
    with FakeTensorMode():
        pieces = [torch.empty(3), torch.empty(2, 2)]
        assert KnownPlaces(pieces).race(pieces)
