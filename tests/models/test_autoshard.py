"""Models of `transformers` in the layouts that are chosen for them do what they do in plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason="needs transformers: make test-models")

import weft
from tests.models.catalogue import MODELS
from tests.models.doubling import in_float64
from tests.models.running import differences, run, yielded
from weft.paper.machine import Machine
from weft.planning import Link

NAMES = ("Llama", "GPT-2", "BERT", "T5", "ViT")


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", NAMES)
def test_a_chosen_layout_does_what_the_plain_model_does(name: str) -> None:
    case = replace(MODELS[name], generates=False)
    link = Link(0.0, 1e10)  # movements begin at once, so that small models are worth splitting
    topology = weft.Topology(link, link, link, link)
    machine = replace(Machine.preset("h100"), topology=topology, launch=0.0, bandwidth=1e9)
    with in_float64():
        model, inputs = case.fresh().train(), dict(case.inputs())
        mesh = weft.make_mesh({"dp": 2, "tp": 2})
        choice = weft.nn.autoshard(model, mesh, inputs, topology=machine, loss=lambda found: found.loss)  # type: ignore[attr-defined]
        assert choice.patterns
        batch = choice.shard_batch(inputs)
        assert isinstance(batch, dict)
        found = yielded(choice.apply(), batch, generates=False)
    assert differences(found, run(case, None)) == []
