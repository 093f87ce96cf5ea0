"""Where there is a GPU, these tests run on it."""

import warnings
from collections.abc import Iterator

import pytest

from tests.on_gpu import prefer_gpu

prefer_gpu()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Some ops of PyTorch's database warn, on one device too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
