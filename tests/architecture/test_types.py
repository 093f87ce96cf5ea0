"""Types: how often the code tells the type checker what it cannot see, or asks it to look away. These numbers only go down."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.architecture.layers import ROOT, modules_of

AT_MOST = {"cast": 71, "Any": 49, "type: ignore": 102}
"""What there is in all of `weft/`. Whoever needs one more finds another that can go: a protocol, a narrower type, a guard."""
IGNORES = re.compile(r"#\s*type:\s*ignore")


def said(source: str) -> Iterator[str]:
    """The casts, the uses of `Any` and the ignored errors of a module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="cast") | ast.Attribute(value=ast.Name(id="typing"), attr="cast")):
                yield "cast"
            case ast.Name(id="Any") | ast.Attribute(value=ast.Name(id="typing"), attr="Any"):
                yield "Any"
    yield from ("type: ignore" for _ in IGNORES.finditer(source))


def test_the_type_checker_is_seldom_overruled() -> None:
    found = Counter(word for _, path in modules_of(ROOT) for word in said(path.read_text()))
    assert found - Counter(AT_MOST) == {}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("x = cast(int, y)", "cast"),
        ("x = typing.cast('int', y)", "cast"),
        ("x: Any = y", "Any"),
        ("x = y  # type: ignore[arg-type]", "type: ignore"),
    ],
)
def test_what_overrules_it_is_counted(line: str, word: str) -> None:
    assert list(said(line)) == [word]
