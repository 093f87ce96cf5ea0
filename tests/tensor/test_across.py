"""Pending reductions from mesh to mesh: values and gradients are those of plain torch, however the memory is."""

from __future__ import annotations

import random

import pytest

from tests.multiprocess.across import check


@pytest.mark.parametrize("seed", range(3))
def test_pending_reductions_go_from_mesh_to_mesh(seed):
    across = sum(check(random.Random(f"{seed} {number}"), number) for number in range(40))
    assert across > 10  # not all of them need it
