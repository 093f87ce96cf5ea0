"""Every example in a docstring runs, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.layers import modules_of

ROOT = Path(__file__).parents[2]
MODULES = [name for name, _ in modules_of(ROOT) if not name.endswith("__main__")]
# The doors: what they list is public.
DOORS = [
    "weft",
    "weft.sharding",
    "weft.planning",
    "weft.graph",
    "weft.graph.ops",
    "weft.ops",
    "weft.errors",
    "weft.distributed",
    "weft.nn",
    "weft.checkpoint",
    "weft.kernels",
    "weft.inspect.explain",
    "weft.inspect.visualize",
    "weft.tensor.creation",
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert failures(importlib.import_module(name)) == ""


def failures(module: ModuleType) -> str:
    """What the doctests of a module complain about, as text; empty when they all pass."""
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=report.append)
    return "".join(report)


def public(door: str) -> Iterator[tuple[str, object]]:
    """The classes and functions that a door lists."""
    module = importlib.import_module(door)
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            yield name, value


@pytest.mark.parametrize("door", DOORS)
def test_every_public_name_says_what_it_is_with_an_example(door: str) -> None:
    assert [name for name, value in public(door) if ">>>" not in (value.__doc__ or "")] == []


def test_a_wrong_example_fails() -> None:
    module = ModuleType("wrong", ">>> 1 + 1\n3\n")
    assert "Expected:\n    3\nGot:\n    2\n" in failures(module)
