"""Staged plans between processes: they run through the hosts, and give what plain torch gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("staged.py"))


def test_staged_plans_give_what_plain_torch_gives() -> None:
    with Processes([PROGRAM, "0", "300"], 4) as started:
        ended = started.wait(200)
    assert [(each.status, each.out) for each in ended] == [(0, "all equal\n")] * 4, ended[0].err


def test_processes_that_were_told_of_other_hosts_are_told_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, weft\n"
        "from weft import P\n"
        "weft.distributed.init(timeout=20)\n"
        "x = weft.shard(torch.ones(1 << 20), weft.make_mesh({'a': 4}), P('a'))\n"
        "if weft.local_devices()[0].id == 3:\n"
        "    weft.use_topology(weft.Topology(devices_per_host=2))\n"
        "weft.all_gather(x)\n"
    )
    with Processes([str(program)], 4) as started:
        ended = started.wait(100)
    assert all(each.status == 1 for each in ended)
    assert any("by all_gather, host by host" in each.err for each in ended), ended[0].err
