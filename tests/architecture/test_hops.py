"""Hops: through how many modules a call goes, the first time and when it is repeated."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
import torch

import weft
from weft import P
from weft.rules.call import BoundCall
from weft.runtime import machine
from weft.watch.policy import Warned

FIRST = {"unified": 9, "separate": 10}
"""Modules that are handed a first `x @ w` that leaves a sum pending: see decision 34."""
ENTERED = {"weft.engine.running.on_totals": 2}
"""How often they are handed it by another module, where that is more than once: there what repeats it is made, and then run."""
REPEATED = 5
"""Modules that run at all when it is repeated."""


def module_of(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def modules(run: Callable[[], object], counts: Callable[[FrameType], bool]) -> Counter[str]:
    """The modules of Weft with functions that are called by `run`, and count; and how often from another module."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        module = module_of(frame)
        if event == "call" and module.startswith("weft.") and counts(frame):
            found[module] += module_of(frame.f_back) != module

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def is_handed_a_call(frame: FrameType) -> bool:
    """Whether one of the arguments of a function is a bound call; its own methods answer questions about it."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [frame.f_locals.get(name) for name in names if name != "self"]
    return any(isinstance(value, BoundCall) for value in given)


@pytest.fixture(params=["unified", "separate"])
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


def test_a_product_passes_few_modules(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Warned, "count", 0)  # nobody asks to be warned
    mesh = weft.make_mesh({"hops": 2})
    x, w = weft.shard(torch.ones(4, 8), mesh, P(None, "hops")), weft.shard(torch.ones(8, 4), mesh, P("hops"))
    first = modules(lambda: x @ w, is_handed_a_call)
    assert "weft.engine.op_plan" in first
    assert len(first) <= FIRST[memory], sorted(first)
    assert {module: count for module, count in first.items() if count > ENTERED.get(module, 1)} == {}
    repeated = modules(lambda: x @ w, lambda _: True)
    assert "weft.engine.dispatch" in repeated
    assert len(repeated) <= REPEATED, sorted(repeated)
