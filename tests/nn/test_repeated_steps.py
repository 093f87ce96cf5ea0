"""After some training steps every call of a step is known: it is repeated, and nothing is looked at again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

import weft
from examples.models import gpt2
from weft import P
from weft.engine import dispatch
from weft.runtime import machine


@pytest.fixture(params=["separate", "unified"], scope="module", autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


@pytest.mark.parametrize("foreach", [False, True])
def test_the_fourth_step_looks_at_nothing(foreach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
    seen: list[str] = []
    at_length = dispatch._at_length

    def looked_at(call, key):
        seen.append(str(call))
        return at_length(call, key)

    monkeypatch.setattr(dispatch, "_at_length", looked_at)
    step()
    assert seen == []
