"""Tests of this folder need a GPU, which stands in for as many as they need."""

import os
from collections.abc import Iterator

import pytest

from weft.runtime import machine

os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "64")


@pytest.fixture(params=["unified", "separate"])
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    """One memory for all devices of a kind, or one for each device."""
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)
