"""A view shows what is written to its base, and its base what is written to the view, in any layout."""

from __future__ import annotations

import pytest

from tests.tensor.programs import difference, shortened
from tests.tensor.view_making import make_chain

BATCH = 100


@pytest.mark.parametrize("batch", range(4))
def test_writes_show_through_chains_of_views(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        program = make_chain(seed)
        if difference(program) or difference(program):
            short = shortened(program)
            raise AssertionError(f"{difference(short) or difference(program)}\n\n{short}")
