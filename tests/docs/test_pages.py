"""Every code block of the README and the docs runs, and prints what the page shows."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from tests.docs.pages import blocks_of, pages, run_page

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"(?<![\w./-])weft(?:\.[A-Za-z_]\w*)+(?![\w/])")
PAGES = {str(path.relative_to(ROOT)): path for path in pages(ROOT) if "_build" not in path.parts}
# Its libraries are not in this environment: tests/models, which `make test-models` runs, has the test of this page.
ELSEWHERE = {"docs/ecosystem.md"}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "docs/compile.md" and torch.__version__ < "2.13":
        pytest.skip("the page says that graphs break before torch 2.13 where it shows that they do not")
    monkeypatch.chdir(tmp_path)
    run_page(PAGES[page].read_text(), page)


@pytest.mark.parametrize("page", PAGES)
def test_the_names_on_the_page_exist(page: str) -> None:
    named = {name for code in re.findall(r"`([^`\n]+)`", PAGES[page].read_text()) for name in NAME.findall(code)}
    assert [name for name in sorted(named) if not exists(name)] == []


def exists(name: str) -> bool:
    """Whether a dotted name of Weft's leads to something."""
    value: object = weft
    path = "weft"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(value, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        value = getattr(value, part, None)
    return True


def test_a_name_that_is_nowhere_would_be_seen() -> None:
    assert exists("weft.nn.shard_module")
    assert not exists("weft.nn.shard_modules")
    assert not exists("weft.sharding.missing.thing")


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", PAGES[page].read_text(), flags=re.M | re.S)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if target and not (PAGES[page].parent / target).exists()] == []


def test_the_readme_opens_with_an_example_and_its_output() -> None:
    first = blocks_of(PAGES["README.md"].read_text())[0]
    assert first.output
    assert len(first.code.splitlines()) <= 12


def fenced(*blocks: tuple[str, str]) -> str:
    return "\n\n".join(f"```{info}\n{body}\n```" for info, body in blocks)


GOOD = {
    "shared names": fenced(("python", "x = 1"), ("python", "assert x == 1")),
    "output": fenced(("python", "print(1)"), ("text", "1")),
    "session": fenced(("python", "x = 1"), ("pycon", ">>> y = x + 1\n>>> y\n2"), ("python", "assert y == 2")),
    "other languages": fenced(("console", "$ false"), ("text", "raise")),
    "a command": fenced(("console", "$ weft plan --mesh d=2 --shape 4 --from d --to - --json  # quietly")),
    "left out with a reason": fenced(("python no-run: needs a cluster", "raise ValueError")),
    "in a list": "- so:\n\n  ```python\n  if True:\n      x = 1\n  ```\n",
}

BAD = {
    "a block that raises": (fenced(("python", "raise KeyError('oops')")), KeyError, "oops"),
    "wrong output": (fenced(("python", "print(1)"), ("text", "2")), AssertionError, "page:2: the page shows"),
    "no output": (fenced(("python", ""), ("text", "2")), AssertionError, "but the block prints"),
    "wrong session": (fenced(("pycon", ">>> 1\n2")), AssertionError, "Expected:"),
    "left out without a reason": (
        fenced(("python no-run", "")),
        ValueError,
        "line 1: a block is marked 'python no-run'",
    ),
    "another spelling": (fenced(("py", "")), ValueError, "use python, pycon or python no-run: <why>"),
    "not marked": (fenced(("", "x")), ValueError, "line 1: a block is not marked: use python, pycon, console or text"),
    "a command that fails": (fenced(("console", "$ weft plan")), AssertionError, "Missing option"),
    "wrong output of a command": (
        fenced(("console", "$ weft plan --mesh d=2 --shape 4 --from d --to -\nnothing")),
        AssertionError,
        "but the command prints",
    ),
    "in a list": ("- so:\n\n  ```python\n  assert False, 'in a list'\n  ```\n", AssertionError, "in a list"),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_good_page_passes(case: str) -> None:
    run_page(GOOD[case], "page")


@pytest.mark.parametrize("case", BAD)
def test_a_bad_page_fails(case: str) -> None:
    text, error, message = BAD[case]
    with pytest.raises(error, match=re.escape(message)):
        run_page(text, "page")


FAKE = """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
"""


def test_dtensor_s_program_prints_what_ours_does() -> None:
    text = PAGES["docs/coming-from-dtensor.md"].read_text()
    theirs, ours = (re.search(rf"```{kind}\n(.*?)```", text, re.S) for kind in ("python no-run.*?", "python"))
    command = [sys.executable, "-W", "ignore", "-c", FAKE + theirs[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = next(block.output for block in blocks_of(text) if block.code == ours[1])
    assert done.stdout == shown


def test_a_traceback_shows_the_line_of_the_page() -> None:
    with pytest.raises(KeyError) as caught:
        run_page("# Title\n\n" + fenced(("python", "x = 1\nraise KeyError")), "page.md")
    last = caught.traceback[-1]
    assert (Path(last.path).name, last.lineno + 1) == ("page.md", 5)
