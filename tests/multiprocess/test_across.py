"""Pending sums from mesh to mesh between processes: what arrives, and what comes back, is what plain torch gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).with_name("across.py"))


@pytest.mark.parametrize("count", [2, 4])
def test_pending_sums_go_from_mesh_to_mesh(count: int) -> None:
    with Processes([PROGRAM, "0", "60"], count) as started:
        ended = started.wait(120)
    assert [(each.status, each.out) for each in ended] == [(0, "all equal\n")] * count, ended[0].err
