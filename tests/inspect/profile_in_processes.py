"""What each of two processes runs for `test_profile`: the second comes late, and the first waits."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import weft
from weft import P


def main(folder: str) -> None:
    weft.distributed.init(devices_per_process=2)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    x = weft.shard(torch.randn(8, 8), mesh, P("dp", None))
    with weft.profile():  # the first time loads what it needs
        weft.all_gather(x)
    with weft.profile() as found:
        if weft.distributed.process_index() == 1:
            time.sleep(0.5)
        y = weft.all_gather(x)
        y.softmax(-1)
    waited = sum(row.waiting for row in found.rows)
    if weft.distributed.process_index() == 0:
        assert waited > 0.1, f"waited {waited} s: {found}"
    found.perfetto(Path(folder, "trace.json"))
    weft.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
