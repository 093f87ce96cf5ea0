"""A thread in the background rests while others need the cores, and stops resting when somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from weft.checkpoint import background, load, pace, save
from weft.checkpoint.pace import Pace


@pytest.fixture(autouse=True)
def nothing_running() -> Iterator[None]:
    yield
    background._running = None


@pytest.mark.parametrize(("worked", "queued", "rest"), [(0.01, 0.0, 0.0), (0.01, 0.002, 0.0), (0.01, 0.02, 0.99)])
def test_who_had_to_wait_for_a_core_rests(
    monkeypatch: pytest.MonkeyPatch, worked: float, queued: float, rest: float
) -> None:
    spent, waited = iter([5.0, 5.0 + worked]), iter([3.0, 3.0 + queued])
    monkeypatch.setattr(pace.time, "thread_time", lambda: next(spent))
    monkeypatch.setattr(Pace, "_queue_time", lambda _: next(waited))
    with Pace() as found:
        assert found.rest() == pytest.approx(rest)


def test_what_happened_before_the_last_rest_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter([0.0, 100.0, 100.0])
    monkeypatch.setattr(Pace, "_queue_time", lambda _: next(waited))
    with Pace() as found:
        assert [found.rest() > 0, found.rest()] == [True, 0.0]


def test_without_a_count_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(pace.os, "open", missing)
    with Pace() as found:
        assert found.rest() == 0


class Weary:
    """A pace that says to rest for long."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __enter__(self) -> Weary:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rest(self) -> float:
        self.asked.set()
        return 1000.0


def test_a_save_that_rests_goes_on_when_somebody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weary = Weary()
    monkeypatch.setattr(background, "Pace", lambda: weary)
    x = torch.arange(1 << 20)
    handle = save({"x": x}, tmp_path, wait=False)
    assert weary.asked.wait(30)
    assert not handle.done()
    assert handle.written == 1 << 20
    handle.wait(30)
    assert torch.equal(load(tmp_path)["x"], x)


def test_the_program_goes_ahead_until_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_AHEAD", 1000.0)
    x = torch.arange(1 << 20)
    handle = save({"x": x}, tmp_path, wait=False)
    x.zero_()
    assert (handle.done(), handle.written) == (False, 0)
    handle.wait(30)
    assert torch.equal(load(tmp_path)["x"], torch.arange(1 << 20))


def test_a_save_rests_no_more_when_the_program_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "Pace", Weary)
    ended = threading.Thread()
    monkeypatch.setattr(background.threading, "main_thread", lambda: ended)
    handle = save({"x": torch.arange(1 << 20)}, tmp_path, wait=False)
    assert handle._ended.wait(30)
    assert handle.written == 8 << 20
