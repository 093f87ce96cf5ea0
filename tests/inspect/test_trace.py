"""A trace has every movement, with its layouts, bytes and time."""

import json

import pytest
import torch

import weft
from weft import P


def test_every_movement_is_an_event_in_order(tmp_path) -> None:
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    x = weft.shard(torch.ones(8, 8), mesh, P("dp", "tp"))
    with weft.trace(tmp_path / "trace.json") as log:
        y = weft.shard(x, mesh, P("tp", "dp"))
        weft.all_gather(y)
        (x @ y).relu()
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in events] == [record.kind for record in log]
    assert sum(e["args"]["bytes received by all"] for e in events) == log.total_bytes
    assert all(e["dur"] >= 0 and e["pid"] == 0 for e in events)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert events[0]["args"]["from"] == "(dp, tp) on dp=2 × tp=2"
    assert "test_trace.py" in events[0]["args"]["called at"]


def test_a_folder_that_is_not_there(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="make it first"), weft.trace(tmp_path / "no" / "trace.json"):
        pass
