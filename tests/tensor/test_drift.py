"""Calls after which tensors lie worse than they need to are told, with the line and a layout that would not do that."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch

import weft
from tests.multiprocess.launching import Processes
from tests.tensor import drifting
from weft import P

PROGRAM = Path(drifting.__file__)
MESH = weft.make_mesh({"dp": 4, "tp": 2})


def lines_of(told: list[str]) -> list[str]:
    source = PROGRAM.read_text().splitlines()
    return [source[int(re.search(r"drifting\.py:(\d+)", text)[1]) - 1].strip() for text in told]  # type: ignore[index]


def test_a_batch_that_every_device_has_is_told_where_it_meets_split_weights() -> None:
    told = drifting.drifts(drifting.whole_batch, MESH)
    product = next(text for text in told if "aten.mm" in text)
    assert lines_of([product])[0].endswith("# here")
    assert "moves more than its own" in product
    assert "for the sum that it leaves over 'dp'" in product
    assert (
        "Lay the tensor of shape (8, 256, 64) out as P('dp', None, None) where it is P(None, None, 'dp') now" in product
    )


def test_what_is_said_to_move_less_does() -> None:
    x = weft.shard(torch.ones(8, 256, 64), MESH, P(None, None, "dp"))
    weight = drifting.trained(torch.ones(1024, 64), MESH, P("tp", "dp"))
    received = []
    for spec in (P(None, None, "dp"), P("dp")):
        with torch.no_grad(), weft.comm_log() as log:
            torch.nn.functional.linear(weft.shard(x, MESH, spec), weight).relu()  # type: ignore[arg-type]
        received.append(sum(record.bytes_received for record in log if record.implicit))
    assert received[1] * 8 < received[0]


def test_a_batch_whose_split_is_lost_is_told_with_a_layout_that_keeps_it() -> None:
    (told,) = drifting.drifts(drifting.lost_batch, MESH)
    assert lines_of([told])[0].endswith("# here")
    assert "drops the split over 'dp' of the tensor of shape (8, 512) that is P('dp', None)" in told
    assert "'dp' splits another dim of the result instead, and 4 devices go on with all 8 entries of dim 0" in told
    assert "Lay the tensor of shape (64, 512) out as P(('tp', 'dp'), None) where it is P('tp', 'dp') now" in told
    ids = weft.shard(torch.zeros(8, 512, dtype=torch.int64), MESH, P("dp"))
    table = drifting.trained(torch.ones(64, 512), MESH, P(("tp", "dp")))
    x = torch.nn.functional.embedding(ids, table)  # type: ignore[arg-type]
    assert x.mapping.spec[0] == "dp"  # type: ignore[attr-defined]


def test_an_op_that_takes_its_tensor_whole_is_told() -> None:
    (told,) = drifting.drifts(drifting.lost_split, MESH)
    assert lines_of([told])[0].endswith("# here")
    assert "drops the split over 'dp'" in told


def test_a_gradient_whose_split_is_lost_is_told_at_the_line_that_it_is_of() -> None:
    (told,) = drifting.drifts(drifting.lost_gradient, MESH)
    assert lines_of([told])[0].endswith("# here")
    assert told.startswith("aten.mm.default for the gradient of drifting.py:")
    assert "drops the split over 'dp' of the tensor of shape (1024, 1024) that is P('dp', 'tp')" in told
    assert "Lay the tensor of shape (1024, 4096) out as P(('tp', 'dp'), None) where it is P('tp', 'dp') now" in told


def test_what_is_said_to_keep_the_gradient_split_does() -> None:
    x = drifting.trained(torch.ones(1024, 4096), MESH, P("dp"))
    weight = drifting.trained(torch.ones(1024, 4096), MESH, P(("tp", "dp")))

    def program(_: weft.DeviceMesh) -> object:
        torch.nn.functional.linear(2 * x, weight).relu().square().sum().backward()
        return x.grad

    assert drifting.drifts(program, MESH) == []


def test_a_gradient_that_is_made_whole_is_told() -> None:
    (told,) = drifting.drifts(drifting.whole_gradient, MESH)
    assert lines_of([told])[0].endswith("# here")
    assert "aten.put.default for the gradient of" in told
    assert "drops the split over 'dp'" in told


def test_a_backward_pass_alone_is_told_where_it_is_called() -> None:
    x = drifting.trained(torch.ones(512, 1024), MESH, P("dp"))
    y = x.take(torch.arange(1000)).square().sum()
    (told,) = drifting.drifts(lambda mesh: y.backward(), MESH)
    assert f"for the gradient of {__file__}:" in told


@pytest.mark.parametrize("name", drifting.STEADY)
def test_programs_that_lie_well_are_not_told_of(name: str) -> None:
    assert drifting.drifts(drifting.STEADY[name], MESH) == []


def test_small_tensors_are_not_worth_a_word() -> None:
    x = weft.shard(torch.eye(16), MESH, P("dp"))
    assert drifting.drifts(lambda mesh: torch.linalg.cholesky(x), MESH) == []  # type: ignore[arg-type]


def test_nobody_is_told_who_has_not_asked(recwarn: pytest.WarningsRecorder) -> None:
    with weft.reshard_policy("warn"), weft.reshard_policy("silent"):
        drifting.lost_batch(MESH)
    assert not recwarn.list


@cache
def told_to_two_processes() -> list[dict[str, list[str]]]:
    with Processes([str(PROGRAM)], 2) as several:
        ended = several.wait(200)
    assert [process.status for process in ended] == [0, 0], ended[0].err
    return [json.loads(each.out) for each in ended]


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
def test_two_processes_are_told_the_same() -> None:
    expected = drifting.all_drifts()
    assert all(expected[name] for name in drifting.DRIFTING)
    assert told_to_two_processes() == [expected] * 2
