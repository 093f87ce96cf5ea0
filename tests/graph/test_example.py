"""The example runs, and says that the graph equals plain torch."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "graph_transformer.py"


def test_the_transformer_equals_plain_torch(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "largest difference from plain torch" in printed
    assert printed.count("e-1") == 3
