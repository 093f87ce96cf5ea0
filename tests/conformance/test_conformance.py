"""The table of what the documents name is true, and the page says the table."""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path

import pytest

from tests.conformance.documents import DOCUMENTS
from tests.conformance.page import PAGE, page
from tests.conformance.row import REQUIRED, Kind, Row

ROOT = Path(__file__).parents[2]
ROWS = [row for document in DOCUMENTS for row in document.rows]
PARAMETERS = [row for row in ROWS if row.kind is Kind.PARAMETER]


def found(where: str) -> object:
    """The object of a dotted name, through the doors that users go through."""
    parts = where.split(".")
    value: object = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(parts[:depth]))
        value = getattr(value, part)
    return value


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def problem(row: Row) -> str | None:
    """What is wrong with a row, if anything is."""
    try:
        value = found(row.where)
    except (AttributeError, ImportError) as missing:
        return f"{row.where} does not exist: {missing}"
    for test in row.tests:
        path, _, name = test.partition("::")
        if not (ROOT / path).exists() or name not in functions_of(path):
            return f"{row.what} of {row.where} names a test that does not exist: {test}"
    if row.kind is not Kind.PARAMETER:
        return None if row.tests else f"{row.what} of {row.where} names no test"
    parameter = inspect.signature(value).parameters.get(row.parameter)
    if parameter is None:
        return f"{row.where} has no parameter {row.parameter!r}"
    default = REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
    return None if default == row.default else f"{row.where} has the default {default!r} for {row.parameter!r}"


def test_every_row_holds() -> None:
    assert [text for row in ROWS if (text := problem(row))] == []


def test_parameters_stand_in_the_documents_order() -> None:
    for where in {row.where for row in PARAMETERS}:
        listed = [row.parameter for row in PARAMETERS if row.where == where]
        listed = list(dict.fromkeys(listed))
        parameters = inspect.signature(found(where)).parameters
        assert list(parameters)[: len(listed)] == listed
        added = list(parameters.values())[len(listed) :]  # what the document does not have is said by name
        assert [each.name for each in added if each.kind is not each.KEYWORD_ONLY] == []


BAD = {
    "a name that is missing": (Row("`x`", Kind.NAME, "weft.no_such_name", ()), "weft.no_such_name does not exist"),
    "no test": (Row("`shard`", Kind.NAME, "weft.shard", ()), "names no test"),
    "a test that is missing": (
        Row("`shard`", Kind.NAME, "weft.shard", ("tests/tensor/test_tensor.py::test_gone",)),
        "names a test that does not exist: tests/tensor/test_tensor.py::test_gone",
    ),
    "a parameter that is missing": (
        Row("`y`", Kind.PARAMETER, "weft.shard", (), "", "y"),
        "weft.shard has no parameter 'y'",
    ),
    "another default": (
        Row("`axis=0`", Kind.PARAMETER, "weft.all_gather", (), "", "axis", 0),
        "weft.all_gather has the default None for 'axis'",
    ),
    "no default": (
        Row("`axis`", Kind.PARAMETER, "weft.all_gather", (), "", "axis"),
        "weft.all_gather has the default None for 'axis'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_row_is_seen(case: str) -> None:
    row, text = BAD[case]
    assert text in (problem(row) or "")


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == page(), "write it with: python -m tests.conformance.page"
