"""What only some rooms know: whether devices share one memory, and what a movement costs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.layers import ROOT, modules_of, within

MEMORY = ("weft.runtime", "weft.engine.memory")
PRICES = ("weft.planning", "weft.engine.choose", "weft.engine.strategy")
SHOWN = ("weft.inspect", "weft.drawing")
"""Who tells users what a plan costs, and decides nothing by it."""
KNOWS = {
    "unified": MEMORY,
    "move_cost": PRICES,
    "rearranged_cost": PRICES,
    "estimated_time": (*PRICES, *SHOWN),
}
"""Words, and the rooms that say them."""


def words(tree: ast.AST) -> Iterator[str]:
    """The names that code reads, takes from objects, or imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.alias(name=word):
                yield word


def elsewhere(root: Path) -> set[str]:
    """Modules that say what is not theirs to know."""
    return {
        f"{module} says {word}"
        for module, path in modules_of(root)
        for word in words(ast.parse(path.read_text(), str(path)))
        if word in KNOWS and not within(module, KNOWS[word])
    }


def test_only_some_rooms_know_of_memories_and_prices() -> None:
    assert elsewhere(ROOT) == set()


@pytest.mark.parametrize(
    ("line", "at_home"),
    [
        ("holding(layout).unified", "runtime/holding.py"),
        ("from ..planning import move_cost", "engine/strategy.py"),
        ("plan.estimated_time", "inspect/explain.py"),
        ("rearranged_cost(plan, 4)", "planning/costs/cost.py"),
    ],
)
def test_what_is_said_elsewhere_is_found(line: str, at_home: str, tmp_path: Path) -> None:
    for place, is_found in ((at_home, False), ("handlers/views.py", True)):
        path = tmp_path / "weft" / place
        path.parent.mkdir(parents=True)
        path.write_text(line)
        assert bool(elsewhere(tmp_path)) is is_found
