"""What the README and the tutorial say to run in one process also runs under torchrun, unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks_of

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
    # Each process writes to a file of its own: in one pipe, lines may break into one another.
    options = ["--standalone", "--nproc-per-node", "2", "--redirects", "3", "--log-dir", str(tmp_path / "logs")]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WEFT_DEVICES_PER_PROCESS": "4"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = [path.read_text() for path in sorted(tmp_path.glob("logs/**/stdout.log"))]
    errors = [path.read_text() for path in sorted(tmp_path.glob("logs/**/stderr.log"))]
    assert done.returncode == 0, "\n".join((done.stderr, *errors))
    assert [text.splitlines().count(line) for text in said] == [1, 1]
