"""Random programs give in several processes what they give in plain torch: see `tests/tensor/test_programs.py`."""

from __future__ import annotations

import pytest

from tests.multiprocess.random_programs import run

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (2, 2), (4, 1)])
def test_random_programs(processes: int, devices: int) -> None:
    ended = run(0, 30, processes, devices)
    assert [(each.status, each.out) for each in ended] == [(0, "all equal\n")] * processes, ended[0].err
