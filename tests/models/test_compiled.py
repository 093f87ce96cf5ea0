"""Models of `transformers` compile as one graph, loss and logits, and train as they do without."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs transformers: make test-models")

import torch

import weft
from tests.models.compiled import COMPILED, apart
from tests.models.layouts import LAYOUTS
from tests.multiprocess.launching import Processes

PROGRAM = str(Path(__file__).with_name("compiled.py"))


@pytest.mark.parametrize("name", COMPILED)
def test_a_model_is_one_graph(name: str) -> None:
    torch._dynamo.reset()
    steps = 10 if name == "Llama" else 3
    assert apart(name, LAYOUTS["dp x tp"].mesh(weft.devices()), steps) < 1e-5


@pytest.mark.multiprocess
@pytest.mark.timeout(400)
def test_two_processes_train_ten_steps_compiled() -> None:
    with Processes([PROGRAM, "Llama"], 2, fresh=True) as processes:
        ended = processes.wait(300)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err
