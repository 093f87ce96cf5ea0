"""Parameters of a compiled model are compared at once before each run; whatever becomes of one shows in the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from weakref import ref

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import weft
from weft import P
from weft.engine.programs import leaves
from weft.runtime.machine import use_separate_memory
from weft.sharding.layout import Layout
from weft.tensor.leaf_gradient import gradient_in

MESH = weft.make_mesh({"dp": 2, "tp": 2})
BY_TAGS = torch._dynamo.config.patch(use_recursive_dict_tags_for_guards=True)
"""As torch before 2.13 has it: tags of dicts tell whether parameters are what they were."""


@pytest.fixture(params=["apart", "one"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    torch._dynamo.reset()
    use_separate_memory(request.param == "apart")
    yield
    use_separate_memory(False)


def made(seed: int = 0) -> nn.Sequential:
    """Two layers, one of them split."""
    torch.manual_seed(seed)
    return weft.nn.shard_module(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), MESH, {"0.*": P("tp")})


def batch(model: nn.Module) -> weft.Tensor:
    x = torch.arange(16.0).reshape(4, 4) / 8
    return weft.shard(x.to(next(model.parameters()).dtype), MESH, P("dp"))


def given(model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor]) -> list[object]:
    """A loss, and the gradient of each parameter in the layout that it has."""
    model.zero_grad()
    loss = run(batch(model)).square().sum()
    if loss.requires_grad:
        loss.backward()
    found: list[object] = [loss.full_tensor().detach()]
    for p in model.parameters():
        found += [None] if p.grad is None else [str(p.grad.mapping), p.grad.full_tensor()]
    return found


def other(model: nn.Sequential, spec: P) -> nn.Parameter:
    return nn.Parameter(weft.shard(model[0].weight.detach().full_tensor() * 2, MESH, spec))


def freeze(model: nn.Sequential) -> None:
    for p in model[0].parameters():
        p.requires_grad = False


def move(model: nn.Sequential) -> None:
    model[0].weight.data = weft.shard(model[0].weight.detach(), MESH, P(None, "dp"))


def replace(model: nn.Sequential) -> None:
    model[0].weight = other(model, P(None, "tp"))


def replace_layer(model: nn.Sequential) -> None:
    model[0] = made(1)[2].to(model[0].weight.dtype)


def direct(model: nn.Sequential) -> None:
    gradient_in(model[0].weight, Layout(MESH, ((), ("dp",))))


def swap(model: nn.Sequential) -> None:
    torch.utils.swap_tensors(model[0].weight, other(model, P(None, "tp")))


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "frozen": lambda model: model[0].requires_grad_(False),
    "frozen by its attribute": freeze,
    "moved": move,
    "replaced": replace,
    "replaced with its layer": replace_layer,
    "in doubles": lambda model: model.double(),
    "its gradient elsewhere": direct,
    "swapped": swap,
    "written to": lambda model: model[0].weight.detach().mul_(2),
    "loaded": lambda model: model.load_state_dict(made(2).state_dict()),
}


def agree(model: nn.Sequential, compiled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for found, expected in zip(given(model, compiled), given(model, model), strict=True):
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(found, expected)
        else:
            assert found == expected


SWAPS = {"in doubles", "swapped"}
"""What torch 2.13 does to no tensors that it compares by tags: it holds them weakly."""


@pytest.mark.parametrize("change", CHANGES)
def test_what_becomes_of_a_parameter_shows(change: str) -> None:
    then = list(CHANGES)[list(CHANGES).index(change) - 3]
    with nullcontext() if SWAPS & {change, then} and torch.__version__ >= "2.13" else BY_TAGS:
        _changed(change, then)


def _changed(change: str, then: str) -> None:
    model = made()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        agree(model, compiled)
    for each in (change, then):
        CHANGES[each](model)
        agree(model, compiled)


@BY_TAGS
def test_who_watches_is_told_of_what_moves_and_nobody_else_later() -> None:
    model = made()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        for _ in range(3):
            agree(model, compiled)
        with weft.comm_log() as log:
            given(model, compiled)
        with weft.comm_log() as expected:
            given(model, model)
        assert sum(r.total_bytes for r in log) == sum(r.total_bytes for r in expected) > 0


@BY_TAGS
def test_parameters_that_stay_what_they_are_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of several modules that run one program."""
    models = [made(), made(1)]
    backend = CompileCounterWithBackend("aot_eager")
    compiled = [torch.compile(model, backend=backend, fullgraph=True) for model in models]
    for _ in range(3):
        for model, run in zip(models, compiled, strict=True):
            given(model, run)
    asked = []
    state = leaves._State
    monkeypatch.setattr(leaves, "_State", lambda module: asked.append(module) or state(module))
    for _ in range(3):
        for model, run in zip(models, compiled, strict=True):
            given(model, run)
    assert not asked
    replace(models[0])
    given(models[0], compiled[0])
    assert asked
    assert backend.frame_count == 2


class Equal(nn.Linear):
    """Modules that are one to `==`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 1


@BY_TAGS
def test_a_program_is_asked_with_other_modules_and_with_none() -> None:
    def scaled(model: nn.Module | None, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if model is None else model(x)

    run = torch.compile(scaled, backend="aot_eager", fullgraph=True)
    models = [weft.nn.shard_module(Equal(4, 4), MESH, {"weight": P("tp")}) for _ in range(2)]
    x = batch(models[0])
    for turn in range(4):
        for model in (*models, None):
            torch.testing.assert_close(run(model, x).full_tensor(), scaled(model, x).full_tensor())
        if turn == 1:
            models[0].weight.data = weft.shard(models[0].weight.detach() * 2, MESH, P(None, "dp"))


@BY_TAGS
def test_what_is_known_of_a_module_goes_with_it() -> None:
    model = made()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    given(model, compiled)
    memory = ref(model[0].weight._value)
    model[0].weight = other(model, P("tp"))
    assert memory() is None


def test_a_module_whose_parameters_were_given_other_memory_can_be_converted() -> None:
    model = made()
    for p in model.parameters():
        p.data = p.detach() * 2
    expected = [p.full_tensor().double() for p in model.parameters()]
    for p, value in zip(model.double().parameters(), expected, strict=True):
        torch.testing.assert_close(p.full_tensor(), value)
