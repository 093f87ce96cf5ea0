"""A world that is only said to be there has the shapes, layouts and bytes of a real one, and nobody waits for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.multiprocess.fake_world import COUNT, facts
from tests.multiprocess.launching import Processes
from weft.runtime import machine

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("fake_world.py"))


@pytest.fixture
def separate_memory() -> Iterator[None]:
    machine.use_separate_memory(True)
    yield
    machine.use_separate_memory(False)


@pytest.mark.parametrize("process", [0, 37])
def test_a_fake_world_is_like_a_real_one(process: int, separate_memory: None) -> None:
    with Processes([PROGRAM, str(process)], 1) as started:
        (ended,) = started.wait(120)
    assert ended.status == 0, ended.err
    devices = [weft.CPU(i) for i in range(COUNT)]
    expected = facts(weft.make_mesh({"dp": 8, "tp": 8}, devices=devices))
    assert json.loads(ended.out) == json.loads(json.dumps(expected))
