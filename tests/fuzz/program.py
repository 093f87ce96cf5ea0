"""`Program`: a mesh, and lines of Python that mean the same on plain torch and on Weft."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_NAME = re.compile(r"\bv\d+\b")


@dataclass(frozen=True)
class Program:
    """Lines such as `v2 = torch.add(v0, v1)`; `fresh`, `put` and `move` are the words of `tests.fuzz.words`."""

    mesh: Mapping[str, int]
    lines: tuple[str, ...]
    order: int = 1
    """How often it is differentiated."""

    def __repr__(self) -> str:
        lines = "".join(f"        {line!r},\n" for line in self.lines)
        return f"Program(\n    {dict(self.mesh)},\n    (\n{lines}    ),\n    order={self.order},\n)"


def assigned(line: str) -> str | None:
    """The name that a line binds."""
    name, equals, _ = line.partition(" = ")
    return name if equals and _NAME.fullmatch(name) else None


def written(line: str) -> str | None:
    """The name of what a line changes, or binds."""
    found = _NAME.search(line)
    return assigned(line) or (found.group() if found else None)


def mentioned(line: str) -> Iterator[str]:
    """The names in a line."""
    return (match.group() for match in _NAME.finditer(line))
