"""Every test of this folder runs in both memories: one that all devices share, and one for each device."""

import os
from collections.abc import Iterator

import pytest
import torch

from weft.runtime import machine

# Where there is a GPU, it stands in for as many as the tests need, and plain tensors are on it too.
os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "64")
if torch.cuda.is_available():
    torch.set_default_device("cuda")


@pytest.fixture(params=["unified", "separate"], scope="module", autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)
