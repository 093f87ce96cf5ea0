"""Mistakes of programs that run in several processes are named: different data, and files that hold a part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import weft
from tests.multiprocess.launching import Processes
from weft import P

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("careless.py"))


@pytest.mark.parametrize("check", ["0", "1"])
def test_careless_processes_are_told(check: str, tmp_path: Path) -> None:
    mesh = weft.make_mesh({"a": 4}, devices=[weft.CPU(i) for i in range(4)])
    torch.save(weft.shard(torch.arange(8.0), mesh, P("a")), tmp_path / "many.pt")
    with Processes([PROGRAM, str(tmp_path)], 2, {"WEFT_CHECK": check}) as started:
        first, second = started.wait(200)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert first.out == second.out == "done\n"
