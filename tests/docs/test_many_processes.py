"""What the README and the tutorial say to run in one process also runs in two processes that a launcher starts, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import blocks_of
from tests.multiprocess.launching import Processes

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "README": (ROOT / "README.md", slice(1, None), "loss 81, after 40 steps 6"),
    "tutorial": (ROOT / "docs" / "tutorial.md", slice(None), "P(None, 'tp') on tp=8"),
}
"""The page, which of its blocks make the program, and a line that every process prints."""


@pytest.mark.multiprocess
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_runs_in_two_processes(name: str, tmp_path: Path) -> None:
    page, which, line = PROGRAMS[name]
    program = tmp_path / "train.py"
    blocks = [block.code for block in blocks_of(page.read_text()) if block.kind == "python"]
    program.write_text("\n".join(blocks[which]))
    with Processes([str(program)], 2, {"WEFT_DEVICES_PER_PROCESS": "4"}) as started:
        ended = started.wait(240)
    assert [process.status for process in ended] == [0, 0], "\n".join(process.err for process in ended)
    assert [process.out.splitlines().count(line) for process in ended] == [1, 1]
