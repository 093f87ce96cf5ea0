"""How many accelerators there are follows from the hardware and the environment; a missing one says what is there."""

from __future__ import annotations

import re

import pytest
import torch

import weft
from weft import CPU, Accelerator
from weft.runtime import machine


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch):
    """A function that pretends a number of GPUs and a setting of WEFT_VIRTUAL_ACCELERATORS."""

    def pretend(gpus: int, virtual: str | None) -> None:
        monkeypatch.setattr(machine, "physical_accelerators", lambda: gpus)
        if virtual is None:
            monkeypatch.delenv("WEFT_VIRTUAL_ACCELERATORS", raising=False)
        else:
            monkeypatch.setenv("WEFT_VIRTUAL_ACCELERATORS", virtual)
        machine.reset()

    yield pretend
    monkeypatch.undo()
    machine.reset()


@pytest.mark.parametrize(
    ("gpus", "virtual", "count"), [(0, None, 0), (0, "8", 0), (1, None, 1), (1, "8", 8), (4, "2", 4), (2, "0", 2)]
)
def test_counting(hardware, gpus, virtual, count) -> None:
    hardware(gpus, virtual)
    assert weft.accelerator_count() == count
    kind, many = (Accelerator, count) if count else (CPU, 8)
    assert weft.devices() == tuple(kind(i) for i in range(many))


def test_virtual_accelerators_share_the_hardware(hardware) -> None:
    hardware(2, "6")
    assert [machine.torch_device(Accelerator(i)).index for i in range(6)] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("gpus", "virtual", "asked", "text"),
    [
        (0, None, 0, "no accelerators. Use CPU devices, or run where torch.cuda.is_available() is true"),
        (1, None, 1, "Accelerator(0). WEFT_VIRTUAL_ACCELERATORS offers more on the same hardware"),
        (1, "8", 8, "Accelerator(0) to Accelerator(7). WEFT_VIRTUAL_ACCELERATORS offers more"),
    ],
)
def test_a_missing_device(hardware, gpus, virtual, asked, text) -> None:
    hardware(gpus, virtual)
    expected = re.escape(f"Accelerator({asked}) does not exist: this machine has {text}")
    for ask in (
        lambda: weft.accelerator(torch.ones(2), asked),
        lambda: weft.to_device(torch.ones(2), Accelerator(asked)),
        lambda: weft.gpu(torch.ones(2)) if asked == 0 else weft.accelerator(torch.ones(2), asked),
    ):
        with pytest.raises(ValueError, match=expected):
            ask()


def test_a_mesh_of_more_than_there_are(hardware) -> None:
    hardware(1, "4")
    with pytest.raises(
        ValueError, match=r"a mesh of 8 devices was asked for, but this program has 4: Accelerator\(0\)"
    ):
        weft.make_mesh({"x": 8})


def test_a_count_that_is_none(hardware) -> None:
    hardware(1, "many")
    with pytest.raises(ValueError, match="WEFT_VIRTUAL_ACCELERATORS is a whole number, but it is 'many'"):
        weft.accelerator_count()
