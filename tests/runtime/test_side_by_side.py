"""What devices on one accelerator do at once: all after what came before, and what comes after after all."""

from __future__ import annotations

from typing import final

import pytest
import torch

from weft.runtime.memory.accelerator import side_by_side, turns


@final
class Stream:
    """Stands for `torch.cuda.Stream`: notes what is done on it, and after what."""

    def __init__(self) -> None:
        self.done: set[str] = set()

    def record_event(self) -> set[str]:
        return set(self.done)

    def wait_event(self, event: set[str]) -> None:
        self.done |= event

    def wait_stream(self, other: Stream) -> None:
        self.done |= other.done


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    """The stream that is current, in a list."""
    now = [Stream()]
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: now.__setitem__(0, stream))
    return now


def test_parts_wait_for_what_came_before_and_not_for_each_other(current: list[Stream]) -> None:
    main, beside = current[0], list[Stream]()
    waited: dict[str, set[str]] = {}
    with side_by_side(main, beside):
        for op, count in (("first", 3), ("second", 2)):
            for k in turns(count):
                waited[f"{op} {k}"] = set(current[0].done)
                current[0].done.add(f"{op} {k}")
            assert current[0] is main
    first = {"first 0", "first 1", "first 2"}
    assert all(not waited[part] for part in first)
    assert waited["second 0"] == waited["second 1"] == first
    assert len(beside) == 2


def test_a_part_that_fails_leaves_the_stream_as_it_was(current: list[Stream]) -> None:
    def fails() -> None:
        for k in turns(3):
            if k == 1:
                raise ValueError("of the second")

    main = current[0]
    with side_by_side(main, []), pytest.raises(ValueError, match="of the second"):
        fails()
    assert current[0] is main


def test_others_take_turns(current: list[Stream]) -> None:
    main = current[0]
    with side_by_side(main, []):
        current[0] = Stream()  # another thread
        assert isinstance(turns(3), range)
        current[0] = main
        assert not isinstance(turns(3), range)
    assert isinstance(turns(3), range)
