"""Processes load their own rows, and have the same batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

PROGRAM = Path(__file__).with_name("several_processes.py")


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [2, 3])
def test_each_process_loads_its_rows(count: int, tmp_path: Path) -> None:
    with Processes([str(PROGRAM), str(tmp_path)], count) as started:
        ended = started.wait(100)
    assert [process.status for process in ended] == [0] * count, "\n".join(process.err for process in ended)
