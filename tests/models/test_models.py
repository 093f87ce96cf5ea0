"""Models of `transformers`, sharded, do what they do in plain torch: outputs, gradients, three steps, generation."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: make test-models")

import weft
from tests.models.catalogue import MODELS
from tests.models.layouts import LAYOUTS, laid, sharded
from tests.models.running import Found, differences, run
from tests.multiprocess.launching import Processes

PROGRAM = Path(__file__).with_name("processes.py")
PATIENCE = 900


@cache
def plain(name: str) -> Found:
    return run(MODELS[name], None)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_sharded_model_does_what_the_plain_one_does(name: str, layout: str, memory: str) -> None:
    assert differences(run(MODELS[name], LAYOUTS[layout].mesh(weft.devices())), plain(name)) == []


@cache
def found_by_processes(layout: str) -> list[dict[str, list[str]]]:
    """What each of two processes says of each model; all models run in one launch."""
    with tempfile.TemporaryDirectory() as folder:
        per_process = LAYOUTS[layout].devices // 2
        command = [str(PROGRAM), folder, str(per_process), layout, *MODELS]
        with Processes(command, 2, fresh=True) as started:
            ended = started.wait(PATIENCE)
        found = []
        for process, how in enumerate(ended):
            files = {name: Path(folder, f"{process} {name}.json") for name in MODELS}
            missing = [f"it ended with {how.status}: {how.err[-4000:]}"]
            found.append({n: json.loads(file.read_text()) if file.exists() else missing for n, file in files.items()})
    return found


@pytest.mark.multiprocess
@pytest.mark.timeout(PATIENCE + 100)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_two_processes_do_what_one_does(name: str, layout: str) -> None:
    assert [said[name] for said in found_by_processes(layout)] == [[], []]


def test_a_wrong_value_would_be_seen() -> None:
    found = {name: x.clone() for name, x in plain("Llama").items()}
    assert differences(found, plain("Llama")) == []
    found["loss 2"] += 1e-7
    assert differences(found, plain("Llama")) == ["loss 2 is off by 1.00e-07"]


def test_the_matrices_are_split_and_so_is_the_batch() -> None:
    mesh = LAYOUTS["dp x tp"].mesh(weft.devices())
    model = sharded(MODELS["Llama"].fresh(), mesh)
    split = [name for name, x in model.named_parameters() if not x.mapping.is_fully_replicated]
    assert split == [name for name, x in model.named_parameters() if x.dim() == 2]
    assert laid(MODELS["Llama"].inputs(), mesh)["input_ids"].local_shards[0].shape == torch.Size([2, 6])
