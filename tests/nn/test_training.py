"""In every layout, a model trains as on one device."""

from __future__ import annotations

from functools import lru_cache

import pytest

import weft
from tests.nn.training import CASES, MESH, STEPS, layouts, losses, model_of
from weft.runtime.machine import use_separate_memory


@lru_cache
def on_one_device(name: str) -> list[float]:
    return losses(CASES[name], model_of(CASES[name]), None)


EVERY = [(name, layout) for name, case in CASES.items() for layout in layouts(case)]


@pytest.mark.parametrize(("name", "layout"), EVERY, ids=[f"{name}-{layout}" for name, layout in EVERY])
def test_losses_are_those_of_one_device(name: str, layout: str) -> None:
    patterns, spec = layouts(CASES[name])[layout]
    model = weft.nn.shard_module(model_of(CASES[name]), MESH, patterns)
    assert losses(CASES[name], model, spec) == pytest.approx(on_one_device(name), rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_devices_with_memories_of_their_own_train_alike(name: str) -> None:
    expected = on_one_device(name)[:3]
    use_separate_memory(True)
    try:
        patterns, spec = layouts(CASES[name])["dp x tp"]
        model = weft.nn.shard_module(model_of(CASES[name]), MESH, patterns)
        assert losses(CASES[name], model, spec, 3) == pytest.approx(expected, rel=1e-9)
    finally:
        use_separate_memory(False)


def test_a_wrong_gradient_would_show() -> None:
    expected = on_one_device("mlp")
    model = model_of(CASES["mlp"])
    weft.nn.shard_module(model, MESH, {})
    model.head.weight.register_hook(lambda grad: grad * (1 + 1e-6))
    assert len(expected) == STEPS
    assert losses(CASES["mlp"], model, None) != pytest.approx(expected, rel=1e-9)
