"""Every notebook runs, and shows what its cells show."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.docs.notebooks import EXAMPLES, NOTEBOOKS, executed, made, notebook_of_page, notebook_of_script, written


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_shows_what_it_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])  # as Jupyter starts beside the notebook
    assert written(executed(made(name))) == NOTEBOOKS[name].read_text(), "write it with: python -m tests.docs.notebooks"


def test_every_notebook_is_tested() -> None:
    assert sorted((EXAMPLES / "notebooks").glob("*.ipynb")) == sorted(NOTEBOOKS.values())


def sources(notebook: dict) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def test_a_page_becomes_a_notebook() -> None:
    page = "# Title\n\nSee [this](that.md).\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```console\n$ ls\n```\n"
    assert sources(notebook_of_page(page)) == [
        ("markdown", "# Title\n\nSee [this](../../docs/that.md)."),
        ("code", "print(1)"),
        ("markdown", "```console\n$ ls\n```"),
    ]


def test_a_script_becomes_a_notebook() -> None:
    script = (
        '"""A sum.\n\n    python sum.py\n\nOf two.\n"""\n\nfrom __future__ import annotations\n\nimport math\n\n\n'
        'def add(a, b):\n    """Adds."""\n    return a + b\n\n\ndef main():\n    """Adds one and two."""\n    x = add(1, 2)\n\n'
        "    for i in range(2):\n        print(x)\n\n        print(i)\n\n\nif __name__ == '__main__':\n    main()\n"
    )
    assert sources(notebook_of_script(script, "sum")) == [
        ("markdown", "# A sum\n\nOf two.\n\nThe program `examples/sum.py`, piece by piece."),
        ("code", "import math"),
        ("code", 'def add(a, b):\n    """Adds."""\n    return a + b'),
        ("markdown", "Adds one and two."),
        ("code", "x = add(1, 2)"),
        ("code", "for i in range(2):\n    print(x)\n\n    print(i)"),
    ]


def test_the_notebooks_are_read_as_they_are_written() -> None:
    for path in NOTEBOOKS.values():
        assert written(json.loads(path.read_text())) == path.read_text()


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
