"""A profile says where time went: every event counts once, for the op and the line that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft
from tests.multiprocess.launching import Processes
from weft import P
from weft.inspect.profile_rows import ProfileEvent, ProfileRow, rows_of
from weft.runtime import machine
from weft.runtime.spans import COMMUNICATION, OP, WAITING, Spans


@pytest.fixture(params=["separate", "unified"], scope="module")
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


def event(name: str, start: int, end: int, sequence: int = -1, device: float = 0, thread: int = 0) -> ProfileEvent:
    """Times in milliseconds, so that what comes out is read in thousandths."""
    return ProfileEvent(name, thread, start * 1e3, end * 1e3, sequence, device * 1e3)


def shares(row: ProfileRow) -> dict[str, float]:
    names = ("total", "kernels", "device", "communication", "waiting", "python")
    return {name: round(getattr(row, name) * 1e3) for name in names}


def test_what_is_inside_an_op_is_told_apart() -> None:
    (row,) = rows_of(
        [
            event("aten::mm", 0, 100),
            event(f"{OP}mm::a.py:1", 5, 95),
            event("aten::mm", 10, 40, device=7),
            event("aten::empty", 12, 14),
            event(f"{COMMUNICATION}movement::a.py:1", 50, 80),
            event("aten::copy_", 52, 55, device=2),
            event(f"{WAITING}for others::a.py:1", 60, 75),
        ]
    )
    assert (row.op, row.where, row.calls) == ("mm", "a.py:1", 1)
    assert shares(row) == {"total": 90, "kernels": 30, "device": 9, "communication": 15, "waiting": 15, "python": 30}


def test_ops_that_an_op_calls_count_for_it() -> None:
    (row,) = rows_of(
        [
            event(f"{OP}softmax::a.py:1", 0, 50),
            event("aten::exp", 5, 25),
            event(f"{OP}exp::a.py:1", 6, 24),
            event("aten::exp", 10, 20),
        ]
    )
    assert (row.calls, shares(row)["kernels"], shares(row)["python"]) == (1, 10, 40)


def test_the_gradient_of_a_line_is_told_at_that_line() -> None:
    node = "autograd::engine::evaluate_function: MmBackward0"
    rows = rows_of(
        [
            event("aten::mm", 0, 10, sequence=7),
            event(f"{OP}mm::model.py:3", 1, 9),
            event(node, 20, 50, sequence=7, thread=1),
            event(f"{OP}mm::train.py:9", 21, 49, thread=1),
            event(f"{OP}add_::train.py:9", 60, 61, thread=1),
        ]
    )
    assert [(row.op, row.where) for row in rows] == [
        ("mm (backward)", "model.py:3"),
        ("mm", "model.py:3"),
        ("add_", "train.py:9"),
    ]


def test_a_step(memory: str, tmp_path: Path) -> None:
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    x = weft.shard(torch.randn(8, 6), mesh, P("dp"))
    w = weft.shard(torch.randn(6, 4), mesh, P(None, "tp")).requires_grad_()
    with weft.profile() as found:
        y = (x @ w).tanh()
        loss = y.softmax(-1).square().sum()
        loss.backward()
    assert not Spans.watched
    rows = {row.op: row for row in found.rows}
    assert {"mm", "tanh", "_softmax", "mm (backward)", "tanh_backward (backward)"} <= set(rows)
    assert rows["mm"].where.partition(":")[0].endswith("test_profile.py")
    assert rows["mm (backward)"].where == rows["tanh_backward (backward)"].where == rows["mm"].where
    for row in found.rows:
        parts = row.kernels + row.communication + row.waiting + row.python
        assert parts == pytest.approx(row.total)
        assert min(row.kernels, row.communication, row.waiting, row.python) >= 0
    assert found.seconds == pytest.approx(found.outside + sum(row.total for row in found.rows))
    moved = sum(row.communication for row in found.rows)
    assert moved > 0 or memory == "unified"
    assert "The block took" in str(found)
    assert "test_profile.py" in str(found)

    found.perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = [each for each in events if each["ph"] == "X"]
    assert {"Weft op", "torch"} <= {each["cat"] for each in shown}
    assert next(each for each in shown if each["name"] == "tanh")["args"]["called at"] == rows["tanh"].where


def test_nothing_is_measured_outside() -> None:
    x = weft.shard(torch.ones(4), weft.make_mesh({"tp": 2}), P("tp"))
    with weft.profile() as found:
        pass
    x.exp()
    assert found.rows == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with weft.profile() as found:
        pass
    with pytest.raises(FileNotFoundError, match="make it first"):
        found.perfetto(tmp_path / "no" / "trace.json")


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_two_processes_are_one_trace(tmp_path: Path) -> None:
    with Processes([str(Path(__file__).with_name("profile_in_processes.py")), str(tmp_path)], 2) as processes:
        ended = processes.wait(100)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    for process in (0, 1):
        mine = [e for e in events if e["pid"] == process]
        assert {"Weft op", "communication", "waiting"} <= {e["cat"] for e in mine}
    # They did the same at the same time, as their clocks say.
    first, second = ([e["ts"] for e in events if e["pid"] == process] for process in (0, 1))
    assert min(first) < max(second)
    assert min(second) < max(first)
