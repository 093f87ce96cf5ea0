"""Gradients of compiled programs are those of programs that are not, for whoever looks at them, and however."""

from __future__ import annotations

import collections
import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import weft
from weft import P
from weft.engine.memory import memory_of
from weft.runtime.machine import use_separate_memory

MESH = weft.make_mesh({"dp": 2, "tp": 2})


@dataclass(frozen=True)
class Case:
    """A model, the same compiled, and a batch."""

    model: nn.Module
    compiled: Callable[..., weft.Tensor]
    x: weft.Tensor
    wanted: list[torch.Tensor]
    """The gradients without a compiler."""


@pytest.fixture(scope="module", params=[True, False], ids=["separate", "unified"])
def compiled_once(request: pytest.FixtureRequest) -> Iterator[Case]:
    torch._dynamo.reset()
    use_separate_memory(request.param)
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).double()
    model = weft.nn.shard_module(model, MESH, {"1.*": P("tp"), "3.weight": P(None, "tp")})
    x = weft.shard(torch.randn(4, 6, dtype=torch.float64), MESH, P("dp"))
    yield Case(model, torch.compile(model, backend="aot_eager", fullgraph=True), x, expected(model, x))
    use_separate_memory(False)


@pytest.fixture
def case(compiled_once: Case) -> Case:
    """The same with no gradients left."""
    compiled_once.model.zero_grad(set_to_none=True)
    return compiled_once


def expected(model: nn.Module, x: weft.Tensor) -> list[torch.Tensor]:
    """The gradients without a compiler."""
    return [grad.full_tensor() for grad in torch.autograd.grad(model(x).square().sum(), list(model.parameters()))]


def check(model: nn.Module, wanted: list[torch.Tensor], times: float = 1) -> None:
    for p, grad in zip(model.parameters(), wanted, strict=True):
        assert isinstance(p.grad, weft.Tensor)
        assert p.grad is p.grad
        assert p.grad._layout is p._layout
        torch.testing.assert_close(p.grad.full_tensor(), grad * times, rtol=1e-9, atol=1e-12)


def test_gradients_are_kept(case: Case) -> None:
    model, compiled, x, wanted = case.model, case.compiled, case.x, case.wanted
    for inputs in (None, list(model.parameters())):
        compiled(x).square().sum().backward(inputs=inputs)
        check(model, wanted)
        model.zero_grad(set_to_none=True)
        assert all(p.grad is None for p in model.parameters())


def test_torch_keeps_them_plain_in_one_memory(case: Case) -> None:
    case.compiled(case.x).square().sum().backward()
    held = {type(vars(torch._C.TensorBase)["grad"].__get__(p)) for p in case.model.parameters()}
    assert held == {weft.Tensor if memory_of(case.x._layout).pieces_are_shards else torch.Tensor}


def test_gradients_that_are_asked_for(case: Case) -> None:
    model, compiled, x, wanted = case.model, case.compiled, case.x, case.wanted
    found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    for p, grad, wanted in zip(model.parameters(), found, case.wanted, strict=True):
        assert isinstance(grad, weft.Tensor)
        assert grad._layout is p._layout
        assert p.grad is None
        torch.testing.assert_close(grad.full_tensor(), wanted, rtol=1e-9, atol=1e-12)


def test_asking_for_gradients_amid_a_backward_pass(case: Case) -> None:
    """One pass keeps gradients, and another inside of it gives them."""
    model, compiled, x, wanted = case.model, case.compiled, case.x, case.wanted
    found: list[tuple[torch.Tensor, ...]] = []

    def ask(_: torch.Tensor) -> None:
        with torch.enable_grad():
            found.append(torch.autograd.grad(compiled(x).square().sum(), list(model.parameters())))

    y = compiled(x)
    y.register_hook(ask)
    z = compiled(x * 1)
    (y.square().sum() + z.square().sum()).backward()
    check(model, wanted, 2)
    for grad, same in zip(found[0], wanted, strict=True):
        assert isinstance(grad, weft.Tensor)
        torch.testing.assert_close(grad.full_tensor(), same, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["cc", "ce", "ec", "cece"])
def test_gradients_of_several_passes_add_up(case: Case, order: str) -> None:
    for read in (False, True):
        for way in order:
            (case.compiled if way == "c" else case.model)(case.x).square().sum().backward()
            if read:
                assert all(isinstance(p.grad, weft.Tensor) for p in case.model.parameters())
        check(case.model, case.wanted, len(order))
        case.model.zero_grad(set_to_none=True)


@pytest.mark.parametrize("order", ["ce", "ec"])
def test_adding_gradients_moves_nothing(case: Case, order: str) -> None:
    model, x = case.model, case.x
    ways = {"c": case.compiled, "e": model}
    moved = []
    for passes in ("c", "e", order):
        model.zero_grad(set_to_none=True)
        with weft.comm_log() as log:
            for way in passes:
                ways[way](x).square().sum().backward()
        moved.append(collections.Counter(log.counts()))
    assert moved[2] == moved[0] + moved[1]


def test_one_pass_through_compiled_code_and_other(case: Case) -> None:
    model, compiled, x, wanted = case.model, case.compiled, case.x, case.wanted
    (compiled(x).square().sum() + 2 * model(x).square().sum()).backward()
    check(model, wanted, 3)


def test_hooks_see_sharded_gradients(case: Case) -> None:
    model, compiled, x, wanted = case.model, case.compiled, case.x, case.wanted
    seen: dict[str, list[torch.Tensor]] = {"hook": [], "after": [], "all": []}
    first, *others = model.parameters()
    handle = first.register_hook(lambda grad: seen["hook"].append(grad) or grad * 2)
    handles = [p.register_post_accumulate_grad_hook(lambda p: seen["after"].append(p.grad)) for p in others]
    several = torch.autograd.graph.register_multi_grad_hook(others[:2], seen["all"].extend)
    compiled(x).square().sum().backward()
    assert [len(each) for each in seen.values()] == [1, len(others), 2]
    for name, grads in seen.items():
        assert all(isinstance(grad, weft.Tensor) for grad in grads), name
    assert first.grad._layout is first._layout
    torch.testing.assert_close(first.grad.full_tensor(), wanted[0] * 2)
    for each in (handle, several, *handles):
        each.remove()
    model.zero_grad(set_to_none=True)
    compiled(x).square().sum().backward()
    check(model, wanted)


def test_gradients_of_which_hooks_hear_come_home(case: Case) -> None:
    model, x, wanted = case.model, case.x, case.wanted
    handle = model[0].weight.register_hook(lambda grad: None)
    model(x).square().sum().backward()
    check(model, wanted)
    handle.remove()


def test_gradients_of_gradients_are_refused(case: Case) -> None:
    norm, x = case.model[0], case.x
    with torch._functorch.config.patch(donated_buffer=False):  # as torch says to do, who means to differentiate again
        compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
        grads = torch.autograd.grad(compiled(x).square().sum(), list(norm.parameters()), create_graph=True)
        assert all(isinstance(grad, weft.Tensor) for grad in grads)
        with warnings.catch_warnings(action="ignore"):  # that the graph holds the gradients and they the graph
            compiled(x).square().sum().backward(create_graph=True)
    for grad in (grads[0], norm.weight.grad):
        with pytest.raises(RuntimeError, match=r"double backward|does not require grad"):  # the latter says torch 2.11
            grad.sum().backward()


def test_a_gradient_that_somebody_sets_stays_what_it_is(case: Case) -> None:
    model = case.model
    p = next(model.parameters())
    p.grad = given = torch.ones(6, dtype=torch.float64)
    assert p.grad is given
    del p.grad
    assert p.grad is None


def test_a_gradient_lies_as_its_tensor_did(case: Case) -> None:
    model, compiled, x, wanted = case.model, case.compiled, case.x, case.wanted
    compiled(x).square().sum().backward()
    p = model[1].weight
    before = p._layout
    shown = p.data
    p.data = shown.redistribute(weft.NamedMapping(MESH, P(None, "dp")))
    assert p.grad._layout is before
    torch.testing.assert_close(p.grad.full_tensor(), wanted[2], rtol=1e-9, atol=1e-12)
    model.zero_grad(set_to_none=True)
    compiled(x).square().sum().backward()  # which is another program
    assert p.grad._layout is p._layout
    torch.testing.assert_close(p.grad.full_tensor(), wanted[2], rtol=1e-9, atol=1e-12)
    p.data = shown.redistribute(weft.NamedMapping(MESH, P("tp")))


def test_a_tensor_that_needs_no_gradient_any_more(case: Case) -> None:
    model, compiled, x, wanted = case.model, case.compiled, case.x, case.wanted
    compiled(x).square().sum().backward()
    model.zero_grad(set_to_none=True)
    model[1].requires_grad_(False)
    compiled(x).square().sum().backward()
    assert [p.grad is None for p in model.parameters()] == [False, False, True, True, False, False]
    model.zero_grad(set_to_none=True)
    model[1].requires_grad_(True)
    compiled(x).square().sum().backward()
    check(model, wanted)


def test_a_model_is_copied_without_its_gradients(case: Case) -> None:
    model, compiled, x, wanted = case.model, case.compiled, case.x, case.wanted
    compiled(x).square().sum().backward()
    assert [parameter.grad for parameter in copy.deepcopy(model).parameters()] == [None] * len(wanted)
    check(model, wanted)


def test_an_optimizer_takes_the_same_steps(case: Case) -> None:
    model, compiled, x = case.model, case.compiled, case.x
    other = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (model, other)]
    for _ in range(3):
        for run, optimizer in zip((compiled, other), optimizers, strict=True):
            run(x).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
            optimizer.step()
            optimizer.zero_grad()
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), same.full_tensor(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled model", "model as it is"])
def test_a_step_that_is_compiled_is_compiled_once(case: Case, is_compiled: bool) -> None:
    """What leaves hold is compared before each step, and not by way of `x.grad`."""
    counter, model = CompileCounterWithBackend("aot_eager"), copy.deepcopy(case.model)
    run = torch.compile(model, backend="aot_eager") if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = torch.compile(optimizer.step, backend=counter)
    for _ in range(4):
        optimizer.zero_grad()
        run(case.x).square().mean().backward()
        step()
    assert counter.frame_count == 1
