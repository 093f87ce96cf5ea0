"""The page of a report, opened from its file in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import weft
from tests.paper.browser import KEYS, Browser, browser
from tests.paper.llama import made, patterns, step
from tests.paper.test_dryrun import on, thought_of
from weft import P
from weft.drawing.page import Page


def data(path: Path) -> dict[str, object]:
    text = path.read_text().partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    found: dict[str, object] = json.loads(text)
    return found


def text(window: Browser, where: str) -> str:
    return str(window.run(f"return document.querySelector({where!r}).textContent"))


def test_a_page_has_everything_in_it(tmp_path: Path) -> None:
    report = weft.dryrun(step, *made("heads and replicas"), topology="h100")
    report.save(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    found = data(tmp_path / "step.html")
    assert found["peak"] == report.memory.peak
    moves = found["moves"]
    assert isinstance(moves, list)
    assert sum(each["bytes"] for each in moves) == report.bytes_received
    assert sum(each["count"] for each in moves) == len(report.movements)
    memory = found["memory"]
    assert isinstance(memory, list)
    assert max(sum(held) for _, held in memory) == report.memory.peak


def test_words_of_a_program_cannot_end_the_script() -> None:
    page = Page("</script><script>alert(1)</script>", "").html()
    assert "<script>alert" not in page


def test_a_trace_of_a_real_run_is_such_a_page_too(tmp_path: Path) -> None:
    x = weft.shard(torch.ones(8, 8), weft.make_mesh({"tp": 4}), P("tp"))
    with weft.trace(tmp_path / "run.html"):
        weft.all_gather(x)
    found = data(tmp_path / "run.html")
    moves, rows = found["moves"], found["rows"]
    assert isinstance(moves, list)
    assert isinstance(rows, list)
    assert [(each["kind"], each["bytes"], each["count"]) for each in moves] == [("all_gather", 192, 1)]
    assert [row["name"] for row in rows] == ["process 0"]
    assert "test_page.py:" in moves[0]["line"]


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_is_used_in_a_browser(tmp_path: Path, dark: bool) -> None:
    mesh = thought_of(dp=1280, tp=8)
    report = weft.dryrun(step, *on(mesh, patterns("tp", None), P("dp"), 1280), topology="h100")
    report.save(tmp_path / "step.html")
    with browser(tmp_path, dark=dark) as window:
        window.open(tmp_path / "step.html")
        assert text(window, "h1") == "A step on 10,240 h100"
        assert "dp=1280 × tp=8" in text(window, "#subtitle")
        assert "=" in text(window, "#at-memory")  # the worst moment is shown first
        count = window.run("return document.querySelectorAll('#moves tbody tr').length")
        assert isinstance(count, int)
        assert count > 5
        window.type("#filter", "all_reduce tp")
        fewer = window.run("return document.querySelectorAll('#moves tbody tr').length")
        assert isinstance(fewer, int)
        assert 0 < fewer < count
        kinds = window.run("return [...document.querySelectorAll('#moves tbody tr')].map(r => r.cells[4].textContent)")
        assert kinds == ["all_reduce"] * fewer
        before = text(window, "#at-time")
        window.type("#timeline", KEYS["ArrowRight"] * 3)
        assert text(window, "#at-time") != before
        assert "llama.py:" in text(window, "#at-time")
        window.type("#timeline", "++" + KEYS["PageDown"])
        before = text(window, "#at-memory")
        window.type("#memory", KEYS["ArrowLeft"] * 5)
        assert text(window, "#at-memory") != before
        drawn = "const c = document.getElementById('memory'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return new Set(d).size"
        colours = window.run(drawn)
        assert isinstance(colours, int)
        assert colours > 8
        assert window.errors() == []
