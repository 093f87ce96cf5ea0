"""Every notebook runs, and shows what its cells show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.notebooks import NOTEBOOKS, executed, written


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_shows_what_it_does(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    assert written(executed(json.loads(text))) == text, "write it with: python -m tests.docs.notebooks"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_a_notebook_that_shows_something_else_is_seen() -> None:
    cell = {
        "cell_type": "code",
        "execution_count": 1,
        "metadata": {},
        "outputs": [],
        "source": ["x = 1\n", "print(x)\n", "x + 1"],
    }
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    outputs = executed(notebook)["cells"][0]["outputs"]
    assert outputs[0]["text"] == ["1\n"]
    assert outputs[1]["data"] == {"text/plain": ["2"]}
    assert executed(notebook) != notebook
    with pytest.raises(NameError, match="undefined"):
        executed({**notebook, "cells": [{**cell, "source": ["undefined"]}]})
