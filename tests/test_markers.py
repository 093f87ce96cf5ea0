"""The markers do what pyproject.toml says of them."""

from __future__ import annotations

import os

import pytest


@pytest.mark.multiprocess
def test_tests_that_start_processes_share_one_worker(request: pytest.FixtureRequest) -> None:
    # pytest-xdist names the group in the id when it keeps it; without workers there is nothing to keep.
    grouped = request.node.nodeid.endswith("@multiprocess")
    assert grouped == ("PYTEST_XDIST_WORKER" in os.environ)
