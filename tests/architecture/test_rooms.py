"""Rooms: no folder is too full to know, and what a tensor is stands in its own class."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.layers import PAGE, ROOT

MOST_MODULES = 20
CLASSES = {"Tensor", "ShardedTensor"}


def folders() -> list[Path]:
    return sorted({path.parent for path in (ROOT / "weft").rglob("*.py")})


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_has_few_modules(folder: Path) -> None:
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= MOST_MODULES


@pytest.mark.parametrize(
    "room", ["engine", "engine/running", "planning", "runtime", "runtime/processes", "paper", "autoshard"]
)
def test_the_page_names_every_module_of_a_room(room: str) -> None:
    named = set(re.findall(r"`(?:\w+/)*(\w+)`", PAGE.read_text()))
    assert {path.stem for path in (ROOT / "weft" / room).glob("*.py")} - named == {"__init__"}


def assigned(tree: ast.AST) -> Iterator[str]:
    """What is put into one of the tensor's classes by name, other than by the class itself."""
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in CLASSES:
                yield f"{target.value.id}.{target.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Name) and first.id in CLASSES:
                yield f"{first.id} by setattr"


def test_nothing_is_put_into_a_tensors_class_from_outside() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "weft").rglob("*.py")
        for name in assigned(ast.parse(path.read_text()))
    }
    # The base learns its one subclass, in its own file, when that is defined.
    assert found == {"weft/engine/sharded.py: ShardedTensor.final"}


@pytest.mark.parametrize("line", ["Tensor.x = 1", "ShardedTensor.x: int = 1", "setattr(Tensor, 'x', 1)"])
def test_what_is_put_in_is_found(line: str) -> None:
    assert list(assigned(ast.parse(line)))


def test_one_name_is_one_class() -> None:
    """No class is called as another, be they private or not."""
    where: dict[str, list[str]] = {}
    for path in (ROOT / "weft").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_own_modules_are_imported_by_the_way_to_them() -> None:
    """One way to write an import: `from ..planning.plans import Plan` shows how far away a room is."""
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "weft").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and not node.level and f"{node.module}.".startswith("weft.")
    }
    assert found == set()
