"""Waiting in turns: only what really failed counts as lost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar, cast

import pytest
import torch
from torch._C import _distributed_c10d as c10d

from weft.errors import WeftError
from weft.runtime.processes.agreement import same_call
from weft.runtime.processes.current_call import CollectiveCall
from weft.runtime.processes.group import Group
from weft.runtime.processes.liveness.signs import Sign
from weft.runtime.processes.liveness.waiting import finish_turns
from weft.runtime.processes.transport.exchange import post, swap
from weft.runtime.processes.world import World


class Work:
    """Completes in the moment between the end of a turn and the look at whether it has completed."""

    def __init__(self, error: str | None = None) -> None:
        self._error, self._turns, self._done = error, 0, False

    def wait(self, limit: timedelta) -> bool:
        self._turns += 1
        assert self._turns < 4, "nobody noticed that it is done"
        if not self._done:
            self._done = True
            raise RuntimeError("Operation timed out!")
        if self._error is not None:
            raise RuntimeError(self._error)
        return True

    def is_completed(self) -> bool:
        return self._done


class Observer:
    """Nobody to look after."""

    notes: ClassVar[Mapping[int, Mapping[str, object]]] = {}

    def __init__(self, _: object) -> None:
        pass

    def look(self) -> None:
        pass

    def signs(self) -> list[object]:
        return []


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runtime.processes.liveness.waiting.Observer", Observer)


def finished(work: Work) -> None:
    finish_turns(cast(c10d.Work, work), Group((0,), World()))


def test_work_that_completes_when_a_turn_ends_is_done() -> None:
    finished(Work())


def test_work_that_fails_when_a_turn_ends_is_lost() -> None:
    with pytest.raises(WeftError, match="lost contact") as caught:
        finished(Work("connection reset"))
    assert "connection reset" in caught.value.__notes__[0]


class GivenUp:
    """A connection that nobody uses any more, which refuses at once to send."""

    def recv(self, *_: object) -> GivenUp:
        return self

    def wait(self) -> None:
        raise RuntimeError("Application timeout caused pair closure")

    def send(self, *_: object) -> GivenUp:
        raise RuntimeError("Application timeout caused pair closure")


def test_a_connection_that_was_given_up_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so before anything is waited for."""
    here = World(0, 2, backends=(("cpu", "gloo"),))
    monkeypatch.setattr("weft.runtime.processes.world.current", lambda: here)
    group = Group((0, 1), here)
    monkeypatch.setattr(group, "_backends", {"cpu": GivenUp()})
    x = torch.ones(4)
    for begin in (
        lambda: swap(group, {1: x}, {1: x.clone()}, x.device),
        lambda: post(group, {1: [x]}, {1: [x.clone()]}, x.device, 1),
    ):
        with pytest.raises(WeftError, match="lost contact") as caught:
            begin()
        assert "pair closure" in caught.value.__notes__[0]


def test_a_process_that_left_in_the_middle_of_a_call_is_shown_in_that_call() -> None:
    """Not in the one before: a thread that communicates may still be in the call when the program ends."""
    before, given_up = CollectiveCall("all_gather", "x", "train.py:1"), CollectiveCall("ppermute", "x", "train.py:2")
    sign = Sign(1, alive=False, call=given_up, last=before, left=True, gave_up=given_up)
    assert str(sign) == f"process 1 has lost contact with other processes, too, in {given_up}"


def test_an_op_of_very_many_kinds_is_not_compared_for_ever() -> None:
    """Sizes that never repeat would cost a question to the store in every call."""
    kinds = [CollectiveCall(f"aten.cat.default to [{i}]", f"float32[{i}]") for i in range(2 * same_call.MOST_KINDS)]
    try:
        assert sum(same_call._is_new(kind, (0, 1)) for kind in kinds) == same_call.MOST_KINDS
        assert not any(same_call._is_new(kind, (0, 1)) for kind in kinds)
        assert same_call._is_new(CollectiveCall("all_gather", "float32[1]"), (0, 1))
        assert same_call._is_new(kinds[0], (0, 2))
    finally:
        same_call._kinds.clear()


def rounds(monkeypatch: pytest.MonkeyPatch, here: World, call: CollectiveCall, **how: bool) -> list[str]:
    """What `check` does to compare a call that two calls before it were like."""
    done: list[str] = []
    monkeypatch.setattr("weft.runtime.processes.world.current", lambda: here)
    monkeypatch.setattr(same_call, "group_of", lambda processes: processes)
    monkeypatch.setattr(same_call, "swap", lambda *_, **__: done.append("messages"))
    monkeypatch.setattr(same_call, "compare", lambda *_: done.append("words"))
    try:
        for _ in range(3):
            same_call.check(call, tuple(range(here.count)), **how)
        return done
    finally:
        same_call._kinds.clear()


def test_a_call_is_compared_once_unless_its_messages_do(monkeypatch: pytest.MonkeyPatch) -> None:
    call, gloo = CollectiveCall("all_gather", "float32[4]"), (("cpu", "gloo"),)
    assert rounds(monkeypatch, World(0, 2, backends=gloo), call) == ["messages"]
    assert rounds(monkeypatch, World(0, 2, backends=gloo), call, is_compared=True) == []
    assert rounds(monkeypatch, World(0, 2, backends=(("cuda", "nccl"),)), call) == ["words"]
    assert rounds(monkeypatch, World(0, 64, backends=gloo), call) == ["words"]
    # There every new call waits in the store, so those whose messages would compare them do, too.
    assert rounds(monkeypatch, World(0, 64, backends=gloo), call, is_compared=True) == ["words"]
    monkeypatch.setenv("WEFT_CHECK", "1")
    assert rounds(monkeypatch, World(0, 2, backends=gloo), call, is_compared=True) == ["words"] * 3
    monkeypatch.setenv("WEFT_CHECK", "off")
    assert rounds(monkeypatch, World(0, 2, backends=gloo), call) == []
