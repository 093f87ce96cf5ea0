"""The page of ops and layouts is what the cases say."""

from __future__ import annotations

import pytest
import torch

from . import page
from .case import Case
from .families import FAMILIES
from .page import PAGE, TORCH

AGAIN = "write the page with: python -m tests.rules.page"


@pytest.fixture
def written() -> dict[str, str]:
    """The page as it is, cut into its head and its families; what another torch moves may differ."""
    text = PAGE.read_text()
    if torch.cuda.is_available() or f"torch {TORCH}," not in text:
        pytest.skip("the page is one of CPU devices and of another torch, which may say an op by other ops")
    first, *rest = text.split("\n## ")
    return {"": first + "\n"} | {part.partition("\n")[0]: f"## {part}" for part in rest}


def test_the_page_lists_what_is_tried(written: dict[str, str]) -> None:
    assert list(written) == ["", *FAMILIES], AGAIN
    assert written[""].rstrip() == page.head().rstrip(), AGAIN


@pytest.mark.parametrize("title", FAMILIES)
def test_the_page_says_what_moves(title: str, written: dict[str, str]) -> None:
    assert written[title].rstrip() == page.section(title).rstrip(), AGAIN


def test_what_moves_is_seen() -> None:
    x = torch.randn(6, 4, dtype=torch.float64)
    sums, turned = Case(lambda x: x.sum(0), (x,)), Case(lambda x: x.flip(0), (x,))
    with page.memory(True):
        assert [page._cell(sums, (6, 4), dim) for dim in (0, 1, None)] == ["Σ / ·", "· / ·", "·"]
        assert [page._cell(turned, (6, 4), dim) for dim in (0, 1)] == ["exchange / exchange", "· / ·"]
