"""What torch refuses of elements that one process has, all processes raise, and go on together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).with_name("refusing.py"))


@pytest.mark.parametrize("count", [2, 3])
def test_what_one_process_refuses_all_raise(count: int) -> None:
    with Processes([PROGRAM], count) as started:
        ended = started.wait(120)
    assert [each.status for each in ended] == [0] * count, "\n".join(each.err for each in ended)
    assert [each.out for each in ended] == ["done\n"] * count


@pytest.mark.parametrize("how", ["early", "large"])
def test_a_program_ends_well_though_others_were_waited_for_in_vain(how: str) -> None:
    with Processes([PROGRAM, how], 2, fresh=True) as started:
        ended = started.wait(60)
    assert [each.status for each in ended] == [0, 0], "\n".join(each.err for each in ended)


def test_a_refusal_leaves_processes_in_step_that_compare_all_they_bring() -> None:
    with Processes([PROGRAM, "compared"], 2, {"WEFT_CHECK": "1"}) as started:
        ended = started.wait(60)
    assert [each.status for each in ended] == [0, 0], "\n".join(each.err for each in ended)
