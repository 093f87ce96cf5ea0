"""`Row`: one thing that a document says, where Weft has it, and which tests show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

__all__ = ["REQUIRED", "Document", "Kind", "Row", "function", "says"]

REQUIRED = object()
"""A parameter without a default."""


class Kind(Enum):
    """What a row is about."""

    NAME = "name"
    PARAMETER = "parameter"
    LIMIT = "limit"
    ERROR = "error"
    RESULT = "result"


@dataclass(frozen=True)
class Row:
    """One thing that a document says, in a few words of ours; `where` is a dotted name of Weft's."""

    what: str
    kind: Kind
    where: str
    tests: tuple[str, ...]
    differs: str = ""
    parameter: str | None = None
    default: object = REQUIRED


@dataclass(frozen=True)
class Document:
    """One of the documents: what it is about, and its rows."""

    title: str
    about: str
    rows: tuple[Row, ...]


def function(
    name: str, where: str, parameters: dict[str, object], *tests: str, differs: str = "", **notes: str
) -> Iterator[Row]:
    """A function and each of its parameters; a note says how one of them differs."""
    yield Row(f"`{name}`", Kind.NAME, where, tests, differs)
    for parameter, default in parameters.items():
        shown = f"`{parameter}`" if default is REQUIRED else f"`{parameter}={default!r}`"
        yield Row(shown, Kind.PARAMETER, where, tests, notes.get(parameter, ""), parameter, default)


def says(kind: Kind, what: str, where: str, *tests: str, differs: str = "") -> Row:
    """Something that a document says of a name."""
    return Row(what, kind, where, tests, differs)
