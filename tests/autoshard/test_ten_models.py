"""Ten models in the layouts that are chosen for them do what one device does: losses, gradients, some steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.autoshard import ten_models
from tests.autoshard.ten_models import MODELS, chosen, differences, plain, yielded
from tests.multiprocess.launching import Processes
from weft.runtime import machine

PROGRAM = Path(ten_models.__file__)
pytestmark = pytest.mark.xdist_group("ten models")


@pytest.fixture(params=["separate", "unified"])
def mesh(request: pytest.FixtureRequest) -> Iterator[weft.DeviceMesh]:
    machine.use_separate_memory(request.param == "separate")
    yield weft.make_mesh({"dp": 2, "tp": 2})
    machine.use_separate_memory(False)


@pytest.mark.parametrize("name", MODELS)
def test_a_chosen_layout_does_what_one_device_does(name: str, mesh: weft.DeviceMesh) -> None:
    assert differences(yielded(*chosen(name).lay(MODELS[name], mesh)), plain(name)) == []


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_batch_are_split(name: str) -> None:
    layouts = chosen(name)
    for said in (layouts.patterns.values(), layouts.batch):
        assert any(axes is not None for spec in said for axes in spec), layouts


def test_a_long_sequence_is_split_over_all_devices() -> None:
    assert [set(spec[1]) for spec in chosen("Llama, long").batch] == [{"dp", "tp"}] * 2  # type: ignore[arg-type]


def test_a_wrong_value_would_be_seen() -> None:
    found = {name: x.clone() for name, x in plain("MLP").items()}
    assert differences(found, plain("MLP")) == []
    found["loss 1"] += 1e-7
    assert differences(found, plain("MLP")) == ["loss 1 is off by 1.00e-07"]


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
def test_four_processes_do_what_one_device_does(tmp_path: Path) -> None:
    file = tmp_path / "layouts"
    file.write_text(repr({name: chosen(name) for name in MODELS}))
    with Processes([str(PROGRAM), str(file)], 4) as processes:
        ended = processes.wait(200)
    assert [each.status for each in ended] == [0] * 4, "".join(each.err[-2000:] for each in ended)
    assert [json.loads(each.out) for each in ended] == [{name: [] for name in MODELS}] * 4
