"""Every test of this folder runs in both memories: one that all devices share, and one for each device."""

from collections.abc import Iterator

import pytest

from tests.on_gpu import prefer_gpu
from weft.runtime import machine

prefer_gpu()


@pytest.fixture(params=["unified", "separate"], scope="module", autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)
