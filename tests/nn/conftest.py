"""Where there is a GPU, these tests run on it."""

from tests.on_gpu import prefer_gpu

prefer_gpu()
