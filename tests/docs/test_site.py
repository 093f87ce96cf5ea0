"""The site has every page and every public name; `make docs` builds it with warnings as errors."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import weft

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.M | re.S)
DIRECTIVE = re.compile(r"^\.\. (?:auto(module|function|class)|py:(function)):: ([\w.]+)", re.M)


def entries(page: Path) -> list[str]:
    """The pages that a page's tables of contents list, as paths under docs."""
    found = []
    for body in TOCTREE.findall(page.read_text()):
        for line in filter(None, map(str.strip, body.splitlines())):
            if line.startswith(":"):
                continue
            matches = sorted(page.parent.glob(f"{line}.md"))
            found += [str(match.relative_to(DOCS)) for match in matches] or [f"{line}.md, which does not exist"]
    return found


def reachable(page: Path) -> set[str]:
    found = set(entries(page))
    return found.union(*(reachable(DOCS / name) for name in found if (DOCS / name).exists()))


def documented() -> set[str]:
    """The full names that the reference pages document."""
    found = set()
    for page in (DOCS / "reference").glob("*.md"):
        for module, _, name in DIRECTIVE.findall(page.read_text()):
            found.add(name)
            if module == "module":
                found |= {f"{name}.{each}" for each in importlib.import_module(name).__all__}
    return found


def test_every_page_is_in_the_table_of_contents() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert reachable(DOCS / "index.md") == pages - {"index.md"}


def test_every_public_name_is_in_the_reference() -> None:
    names = documented()
    # A name at the door may be documented where it is at home.
    rooms = ("weft", "weft.sharding", "weft.planning", "weft.graph", "weft.state", "weft.errors")
    homes = {name: {f"{room}.{name}" for room in rooms} for name in weft.__all__}
    assert [name for name, home in homes.items() if not names.intersection(home)] == []


def test_every_environment_variable_is_in_the_reference() -> None:
    listed = re.findall(r"^\| `(WEFT_\w+)` \|", (DOCS / "reference" / "environment.md").read_text(), re.M)
    code = [path.read_text() for path in (ROOT / "weft").rglob("*.py")]
    assert sorted(listed) == sorted({name for text in code for name in re.findall(r"\bWEFT_[A-Z_]+\b", text)})


def test_a_page_that_is_nowhere_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "index.md"
    page.write_text("```{toctree}\n:hidden:\n\nmissing\n```\n")
    assert entries(page) == ["missing.md, which does not exist"]


def test_the_tools_of_the_site_are_pinned_and_add_nothing_twice() -> None:
    def names(lock: str) -> list[str]:
        lines = [line for line in (ROOT / lock).read_text().splitlines() if line and not line.startswith("#")]
        assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+(; .*)?", line)] == []
        return [line.split("==")[0].lower().replace("_", "-") for line in lines]

    assert set(names("requirements-docs.lock")).isdisjoint(names("requirements.lock"))
