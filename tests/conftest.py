"""What every test can rely on: one thread per process, steady random examples, honest markers."""

from __future__ import annotations

import gc
import os
import shutil

# Two workers share the machine; torch reads these once, when it is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# What somebody has measured of this machine does not decide what is tested.
os.environ.setdefault("WEFT_TOPOLOGY", "cpu")
# Processes that connect look up each other's names: a name server that does not answer at once is asked again after a second.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")
# Seconds for one test. Said here, so that a few tests also run where pytest-timeout is not installed.
os.environ.setdefault("PYTEST_TIMEOUT", "120")

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a failure is a change in the code. `explore` looks for new ones:
#   HYPOTHESIS_PROFILE=explore make test
settings.register_profile(
    "steady", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `multiprocess` tests queue on one worker: at once, they would wait for each other's processors."""
    if item.get_closest_marker("multiprocess"):
        item.add_marker(pytest.mark.xdist_group("multiprocess"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out `gpu` tests where there is no GPU, and `browser` tests where there is no browser, and say so."""
    if shutil.which("chromedriver") is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(
                    pytest.mark.skip(reason="needs Chromium and its driver (chromedriver), which are not here")
                )
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and torch sees none here"))


def pytest_collection_finish() -> None:
    """Leave modules and tests alone, which stay as long as this process: the collector would look at them again and again."""
    gc.collect()
    gc.freeze()


def _has_gpu() -> bool:
    # Imported here because most runs of a few tests need no torch, which takes seconds to load.
    import torch

    return torch.cuda.is_available()
