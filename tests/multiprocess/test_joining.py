"""Processes join by themselves or when asked to, agree on random numbers, and leave in any way they like."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.multiprocess.launching import ROOT, Processes
from weft.runtime.processes import world

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("joining.py"))
KINDS = ("all_gather", "all_to_all")


@pytest.mark.parametrize("how", ["by itself", "never", "twice", "own group"])
def test_processes_that_join_agree_and_leave_cleanly(how: str) -> None:
    """They seeded differently before; afterwards all draw what the first one would have."""
    with Processes([PROGRAM, how], 2) as started:
        first, second = started.wait(120)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert first.err == second.err == ""
    assert first.out == second.out
    assert first.out.startswith("15.0 [")


def test_an_error_in_one_process_ends_all_and_is_told_to_the_others() -> None:
    with Processes([PROGRAM, "trouble"], 2) as started:
        first, second = started.wait(120)
    assert (first.status, second.status) == (1, 1)
    assert "AssertionError: something is wrong here" in second.err
    assert "process 1 has failed: AssertionError: something is wrong here" in first.err


def test_all_may_fail_before_any_has_communicated() -> None:
    """Nobody looks at the end for the store, which has gone with the first."""
    with Processes([PROGRAM, "early"], 2, fresh=True) as started:
        ended = started.wait(60)
    for each in ended:
        assert each.status == 1
        assert "ValueError: nobody has communicated yet" in each.err
        assert "TimeoutError" not in each.err, each.err
    assert ended[1].seconds < ended[0].seconds + 15  # it asked for it for 20 seconds, and then raised


def test_who_has_left_and_is_not_asked_again_joins_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the timeout that the program had, above all: the others may not come again."""
    span, asked = timedelta(seconds=5), list[object]()
    monkeypatch.setattr(world, "_left", world.World(0, 2, 3, backends=(("cpu", "gloo"),), timeout=span))
    monkeypatch.setattr(world, "is_launched", lambda: True)
    monkeypatch.setattr(world, "join", lambda *how: asked.append(how))
    world.current()
    assert asked == [("cpu:gloo", span, 3)]


def test_a_trace_holds_the_steps_of_all_processes(tmp_path: Path) -> None:
    program, file = tmp_path / "program.py", tmp_path / "trace.json"
    program.write_text(
        "import sys, time, torch, weft\n"
        "x = weft.shard(torch.ones(8, 8), weft.make_mesh({'a': 2}), weft.P('a', None))\n"
        "with weft.trace(sys.argv[1]) as log:\n"
        "    weft.all_gather(x)\n"
        "    y = weft.shard(x, x.mesh, weft.P(None, 'a'), async_op=True)\n"
        "    while not y.done():\n"
        "        time.sleep(0.01)\n"
        "    y.wait()\n"
        "assert 0.5 < log.hidden <= 1, log.overlaps\n"
        "print(log.counts(), log.total_bytes)\n"
    )
    with Processes([str(program), str(file)], 2) as started:
        first, second = started.wait(120)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert first.out == second.out == "{'all_gather': 1, 'all_to_all': 1} 384\n"
    steps = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [(step["pid"], step["name"]) for step in steps] == [(i, kind) for i in (0, 1) for kind in KINDS]
    for step in steps:
        assert step["dur"] > 0
        assert step["args"]["from"] == "(a, –) on a=2"
        assert step["args"]["bytes received by all"] in (256, 128)
        assert (step["tid"] == 1) == (step["name"] == "all_to_all") == ("seconds hidden" in step["args"])


UNPICKLES = re.compile(r"import pickle|\bpickle\.|torch\.load\(|_object_list\(|(gather|scatter|broadcast|recv)_object")


DCP = {f"weft/checkpoint/foreign/{name}.py" for name in ("dcp", "dcp_metadata", "dcp_writing")}
"""Torch's own format is a pickle: it is written, and read by a list of words that runs nothing (tests/checkpoint/test_dcp.py)."""


def test_nothing_that_arrives_is_unpickled() -> None:
    found = {
        str(file.relative_to(ROOT)) for file in (ROOT / "weft").rglob("*.py") if UNPICKLES.search(file.read_text())
    }
    assert found == DCP
    assert UNPICKLES.search("dist.broadcast_object_list(words)")
