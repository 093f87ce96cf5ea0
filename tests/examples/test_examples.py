"""Every example runs as it stands, and compares its own result with that of one device."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.notebooks import NAMES

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {path.stem: path for path in sorted(EXAMPLES.glob("*.py")) if path.stem != "__init__"}
LISTED = {*NAMES, "demo"}


def test_the_examples_are_there() -> None:
    assert set(SCRIPTS) >= LISTED


def test_the_page_lists_them() -> None:
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (yes)? *\|$", page, re.M)
    assert {name: bool(notebook) for name, notebook in rows} == {name: name in NAMES for name in SCRIPTS}


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "demo"])
def test_the_example_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as when it is started as a script
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(SCRIPTS[name])])
    runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_example_compares_with_one_device(name: str) -> None:
    text = SCRIPTS[name].read_text()
    assert re.search(r"assert_close\(|assert .*(==|<)|allclose\(", text), f"{name} compares nothing"
    assert '"""' in text.split("\n", 1)[0], f"{name} does not say what it shows"


def test_the_demonstration_shows_and_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = runpy.run_path(str(SCRIPTS["demo"]), run_name="demo")
    names["main"](["--steps", "3", "--out", str(tmp_path / "demo.svg")])
    shown = capsys.readouterr().out
    assert "step 3: loss" in shown
    assert "lower bound" in shown
    root = ElementTree.fromstring((tmp_path / "demo.svg").read_text())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 3]
