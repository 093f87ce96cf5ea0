"""A few faults of each kind, at random moments; `python tests/checkpoint/faults.py` tries hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint import faults
from weft.checkpoint import CheckpointError

QUICK = [kind for kind in faults.KINDS if kind != "one of several processes killed"]


@pytest.fixture(params=["separate"], autouse=True)
def memory(request: pytest.FixtureRequest) -> str:
    """The tensors here are plain."""
    return request.param


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("kind", QUICK)
def test_the_last_complete_checkpoint_is_there(kind: str, tmp_path: Path) -> None:
    faults.tried(kind, 4, tmp_path)


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_the_last_complete_checkpoint_is_there_when_processes_are_killed(tmp_path: Path) -> None:
    faults.tried("one of several processes killed", 1, tmp_path)


def test_flipped_bits_are_found(tmp_path: Path) -> None:
    assert faults.flips(100, tmp_path) == 0


def test_a_wrong_checkpoint_would_be_noticed(tmp_path: Path) -> None:
    mixed = faults.state(1)
    mixed["tensors"]["3"][1] = 2
    faults.save(mixed, tmp_path)
    with pytest.raises(faults.WronglyAcceptedError, match="a load gave a mixture"):
        faults.generation_at(tmp_path)
    faults.save(faults.state(1), tmp_path)
    with pytest.raises(faults.WronglyAcceptedError, match="generation 2 was complete, but 1 is there"):
        faults.check_at_least(tmp_path, 2)
    (tmp_path / "index.json").unlink()
    with pytest.raises(CheckpointError):
        faults.generation_at(tmp_path)
