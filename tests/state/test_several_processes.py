"""States go from process to process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

PROGRAM = str(Path(__file__).with_name("several_processes.py"))


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
def test_states_between_two_processes(memory: str) -> None:
    separate = "1" if memory == "separate" else "0"
    with Processes([PROGRAM], 2, {"WEFT_SEPARATE_MEMORY": separate}) as processes:
        ended = processes.wait(200)
    assert [process.out for process in ended] == ["done\n"] * 2, ended[0].err + ended[1].err
