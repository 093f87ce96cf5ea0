"""Processes that save and load together: every form, in the background too, and what happens when one of them cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import weft
from tests.checkpoint.several_processes import WEIGHT
from tests.multiprocess.launching import Processes

PROGRAM = Path(__file__).with_name("several_processes.py")
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(240)]


@pytest.fixture(params=["separate"], autouse=True)
def memory(request: pytest.FixtureRequest) -> str:
    """Processes have memories apart in any case."""
    return request.param


def found(mode: str, folder: Path, count: int = 2) -> str:
    """What all processes have found, which is the same."""
    with Processes([str(PROGRAM), mode, str(folder)], count) as started:
        ended = started.wait(200)
    assert [each.status for each in ended] == [0] * count, "\n".join(each.err for each in ended)
    (said,) = {each.out for each in ended}
    return said


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning")
def test_every_form_goes_from_one_layout_to_another(tmp_path: Path) -> None:
    assert found("forms", tmp_path, 3) == f"found {[True] * 12 + [3, True, True]}\n"
    assert weft.checkpoint.verify(tmp_path / "weft").files == 3
    assert torch.equal(weft.checkpoint.load(tmp_path / "weft")["weight"], WEIGHT)
    assert torch.equal(load_file(tmp_path / "whole.safetensors")["weight"], WEIGHT)
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) == 2
    there = {"model": {"weight": torch.zeros(8, 6), "bias": torch.zeros(8)}, "step": 0}
    dcp.load(there, checkpoint_id=tmp_path / "dcp")
    assert torch.equal(there["model"]["weight"], WEIGHT)


def test_a_save_in_the_background_disturbs_nobody(tmp_path: Path) -> None:
    assert found("in_the_background", tmp_path) == "found [True, True, ['i', 't', 't']]\n"


def test_a_save_goes_on_when_the_program_has_left_the_other_processes(tmp_path: Path) -> None:
    assert found("left", tmp_path) == "found ['i', 't', 't']\n"
    assert torch.equal(weft.checkpoint.load(tmp_path / "weft")["weight"], WEIGHT)


def test_a_save_after_one_that_failed(tmp_path: Path) -> None:
    assert found("failed_before", tmp_path) == "found [[False, False, True, False], [1, 3, 4]]\n"


def test_a_keeper_of_several_processes(tmp_path: Path) -> None:
    assert found("keeping", tmp_path, 3) == "found [6, [4, 6], True, True]\n"
    assert found("fewer", tmp_path, 2) == "found [6, True]\n"


def test_a_keeper_whose_first_process_looks_elsewhere(tmp_path: Path) -> None:
    assert found("elsewhere_first", tmp_path) == "found [[True, True], 0, 3]\n"


def test_a_plan_needs_no_word_from_the_others(tmp_path: Path) -> None:
    assert found("silent", tmp_path) == "found True\n"


def test_the_first_process_may_be_the_last_to_save(tmp_path: Path) -> None:
    assert found("first_is_late", tmp_path) == "found True\n"


def test_a_process_that_cannot_write(tmp_path: Path) -> None:
    said = found("failing", tmp_path)
    assert (
        said.count("process 1 could not write its files: [Errno 28] No space left on device. The old checkpoint") == 2
    )
    assert said.count("the processes save different states, 'more[2:4]' is not in all of them. The old checkpoint") == 2
    assert said.count("'here.it' of process 1 is not in that of process 0, and would be lost. The old checkpoint") == 4
    assert "{'log': [1], 'best': 2}" in said
    assert said.endswith("], True, ['i', 't', 't']]\n")


def test_what_one_process_finds_damaged_all_raise(tmp_path: Path) -> None:
    assert found("damaged", tmp_path) == "found [True, True]\n"


def test_processes_share_the_work_of_checking(tmp_path: Path) -> None:
    said = found("checking", tmp_path, 3)
    assert said == f"found {[[1, 1, 1], [1, 1, 1], 3, [3, 0, 0], *[True] * 6]}\n"


def test_all_processes_load_the_same_checkpoint_while_it_is_replaced(tmp_path: Path) -> None:
    assert found("replaced", tmp_path) == "found [True, True, True]\n"


def test_all_processes_load_the_same_file_of_others_while_it_is_replaced(tmp_path: Path) -> None:
    assert found("overtaken", tmp_path) == "found [1.0]\n"


def test_what_one_process_cannot_save_or_load_all_raise(tmp_path: Path) -> None:
    unfit, nowhere, misfit = (True, False, False), (False, True, False), (False, False, True)
    assert (
        found("differing", tmp_path)
        == f"found {[[True, True], [True, True], unfit, unfit, nowhere, misfit, False, 1]}\n"
    )


def test_what_one_process_has_against_a_save_all_raise(tmp_path: Path) -> None:
    assert found("unfit", tmp_path) == f"found {[[True] * 7, [True] * 2, True]}\n"


def test_what_one_process_has_against_a_call_all_raise(tmp_path: Path) -> None:
    assert found("against", tmp_path) == f"found {[set(), {'raised'}, False, True]}\n"


def test_what_cannot_be_noted_of_a_save_that_is_complete(tmp_path: Path) -> None:
    assert found("unnoted", tmp_path) == f"found {['nothing was wrong', True] * 2}\n"


def test_folders_that_are_not_one_and_options_that_differ(tmp_path: Path) -> None:
    assert found("elsewhere", tmp_path) == f"found {[True] * 5}\n"


def test_a_lost_process_gets_its_state_from_a_replica(tmp_path: Path) -> None:
    said = found("recovered", tmp_path, 4)
    assert said.startswith("found [3, True, ")
    assert "a part of 'layer.weight' was only in processes that have lost it: load the last checkpoint" in said
    assert "processes 0 and 1 have kept different states" in said
    assert "every process has lost its state" in said
    assert said.endswith("{'step': 1}]\n")
