"""Every test of this folder runs in both memories: one for each device, and one that all devices share."""

from collections.abc import Iterator

import pytest

from weft.runtime import machine


@pytest.fixture(params=["separate", "unified"], scope="module", autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)
