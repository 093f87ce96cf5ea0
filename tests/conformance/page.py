"""The conformance page, from the table: `python -m tests.conformance.page` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.conformance.documents import DOCUMENTS
from tests.conformance.row import Document, Kind, Row

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"

HEAD = """# Conformance

Weft is specified by five documents of other systems: MAX's graph ops, its sharding vocabulary and its broadcast kernel, and
two editions of Nabla's communication ops. This page goes through every name, parameter, default, limit and error that they
give: where Weft has it, which test shows it, and where Weft is different on purpose. Where a document and its own system
disagree, Weft does what the document says, and this page says so. What it tells of MAX and Nabla was seen by running MAX
26.3.0 and Nabla's 2026 release on CPUs.

The page is made from a table that the tests check: the names and parameters exist, the defaults are these, the tests are
there. `python -m tests.conformance.page` writes it.
"""


def page() -> str:
    """The page as the table says it."""
    return "\n".join([HEAD, *(line for document in DOCUMENTS for line in _section(document))])


def _section(document: Document) -> Iterator[str]:
    yield f"## {document.title}\n\n{document.about}\n"
    yield "| in the document | in Weft | shown by | different, and why |\n|---|---|---|---|"
    for row in document.rows:
        yield f"| {_what(row)} | {_where(row)} | {_tests(row)} | {row.differs} |"
    yield ""


def _what(row: Row) -> str:
    return {Kind.NAME: f"**{row.what}**", Kind.PARAMETER: f"parameter {row.what}"}.get(
        row.kind, f"{row.kind.value}: {row.what}"
    )


def _where(row: Row) -> str:
    return f"`{row.where}({row.parameter})`" if row.kind is Kind.PARAMETER else f"`{row.where}`"


def _tests(row: Row) -> str:
    if row.kind is Kind.PARAMETER:
        return "the same"
    return ", ".join(f"`{test.removeprefix('tests/')}`" for test in row.tests)


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
