"""The `Trainer` of Transformers trains a sharded Llama, saves it and resumes, in one process and in two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytest.importorskip("transformers", reason="needs transformers: make test-models")

PROGRAM = Path(__file__).with_name("trainer_processes.py")


@pytest.mark.multiprocess
@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [1, 2])
def test_the_trainer_has_the_losses_of_the_plain_model(count: int, tmp_path: Path) -> None:
    """20 steps, saved after 10 and resumed from there; the program compares."""
    with Processes([str(PROGRAM), str(tmp_path)], count, {"HF_HUB_OFFLINE": "1"}, fresh=True) as started:
        ended = started.wait(300)
    assert [process.status for process in ended] == [0] * count, "\n".join(process.err for process in ended)
