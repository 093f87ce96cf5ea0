"""After some training steps every call of a step is known: it is repeated, and nothing is looked at again."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from examples.models import gpt2
from tests.tensor.seen import note_looks
from weft import P
from weft.runtime import machine


@pytest.fixture(params=["separate", "unified"], scope="module", autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that were looked at."""
    return note_looks(monkeypatch)


@pytest.mark.parametrize("foreach", [False, True])
def test_the_fourth_step_looks_at_nothing(foreach: bool, looked_at: list[str]) -> None:
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    model = weft.nn.shard_module(gpt2.GPT2(11, 6, 8, 4, 1), mesh, gpt2.LAYOUTS["tp"])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    tokens, targets = weft.shard((torch.randint(0, 11, (4, 6)), torch.randint(0, 11, (4, 6))), mesh, P("dp"))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    for _ in range(3):
        step()
    looked_at.clear()
    step()
    assert looked_at == []


def test_neither_does_one_of_mixed_precision_on_what_needs_no_gradient(looked_at: list[str]) -> None:
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    plain = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    layouts = {"1.*": P("tp"), "3.weight": P(None, "tp")}
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, layouts)
    given = torch.randn(4, 6, 8)
    x = weft.shard(given, mesh, P("dp"))

    def step(model: nn.Module, x: torch.Tensor) -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model(x).float().square().mean().backward()

    for _ in range(3):
        step(model, x)
    looked_at.clear()
    step(model, x)
    assert looked_at == []
    step(plain, given)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=5e-2, atol=1e-3)
