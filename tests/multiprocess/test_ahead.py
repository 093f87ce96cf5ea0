"""`async_op=True`: the call returns before the others have come, and whoever uses what arrives waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Ended, Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("ahead.py")
LINE = 1 + next(
    number for number, line in enumerate(PROGRAM.read_text().splitlines()) if "the line that errors name" in line
)


def run(how: str, folder: Path) -> list[Ended]:
    with Processes([str(PROGRAM), how, str(folder)], 2) as started:
        return started.wait(200)


@pytest.mark.parametrize("how", ["use", "sync"])
def test_a_call_returns_before_the_others_have_come(how: str, tmp_path: Path) -> None:
    """The second process comes only after the first has returned from its call: one that waited would wait forever."""
    first, second = run(how, tmp_path)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert "done before the other has come: False\n" in first.out
    for each in (first, second):
        assert "used: 36.0 wait gives itself: True done: True\n" in each.out
        assert how != "sync" or "sum 28.0 and by now True\n" in each.out


def test_a_different_call_is_told_where_the_result_is_used_and_named_where_it_was_asked_for(tmp_path: Path) -> None:
    first, second = run("other", tmp_path)
    assert (first.status, second.status) == (3, 3), first.err + second.err
    for each in (first, second):
        assert "MismatchError" in each.out
        assert f"ahead.py:{LINE}" in each.out
        assert "ppermute by" in each.out


def test_a_process_that_is_gone_is_told_where_the_result_is_used(tmp_path: Path) -> None:
    first, _ = run("gone", tmp_path)
    assert first.status == 3, first.err
    assert "process 1 has failed: ValueError: there is no data" in first.out
    assert f"called at {PROGRAM}:{LINE}" in first.out
