"""The models need `transformers`, which `make test` does without: `make test-models` sets up an environment that has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.runtime import machine

# Nothing is asked of the network: the models are made from their configurations.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings that those libraries give are theirs."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(params=["separate", "unified"])
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    """Memories apart first: that is how models are deployed."""
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)
