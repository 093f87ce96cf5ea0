"""What replicating a large tensor on 8 devices of one memory adds to the process, in MiB, as one line of JSON.

python benchmarks/replication.py
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

import weft
from weft import P

GIB, MIB = 1 << 30, 1 << 20


def resident() -> int:
    """Bytes of this process that are in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10


def main() -> None:
    """Replicate, and look before and after."""
    mesh = weft.make_mesh({"d": 8})
    weft.shard(torch.ones(8), mesh, P())  # what is loaded at the first call is not what is asked for
    whole = torch.ones(GIB // 4)
    before = resident()
    x = weft.shard(whole, mesh, P())
    assert len(x.local_shards) == 8
    print(json.dumps({"tensor_mib": whole.nbytes // MIB, "added_mib": round((resident() - before) / MIB, 2)}))


if __name__ == "__main__":
    main()
