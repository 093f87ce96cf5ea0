"""Every block of the page on other libraries runs; `make test` leaves the page to this."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.docs.pages import run_page

for library in ("transformers", "accelerate", "lightning", "peft"):
    pytest.importorskip(library, reason=f"needs {library}: make test-models")

PAGE = Path(__file__).parents[2] / "docs" / "ecosystem.md"


def test_the_page_runs(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("lightning").setLevel(logging.ERROR)
    monkeypatch.chdir(tmp_path)
    run_page(PAGE.read_text(), "docs/ecosystem.md")
