"""Torch's collectives, and what is made of them, are refused of sharded tensors: they would change nothing, or one process alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]

PROGRAM = str(Path(__file__).with_name("beside_torch.py"))


def test_torchs_ways_to_distribute_are_refused_by_all() -> None:
    with Processes([PROGRAM], 2) as started:
        ended = started.wait(90)
    assert [each.status for each in ended] == [0, 0], "\n".join(each.err for each in ended)
    assert [each.out for each in ended] == ["done\n"] * 2
