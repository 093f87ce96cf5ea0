"""Gradients are reduced while the way back goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]

PROGRAM = str(Path(__file__).with_name("hidden_gradients.py"))


def test_gradients_are_on_their_way_while_the_way_back_goes_on() -> None:
    with Processes([PROGRAM], 2) as started:
        ended = started.wait(90)
    assert [(each.status, each.out) for each in ended] == [(0, "all equal\n")] * 2, ended[0].err
