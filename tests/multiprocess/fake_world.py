"""A program in one process of a large world that is only said to be there: torch's fake process group."""

from __future__ import annotations

import json
import sys
import threading

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import weft
from weft import P

COUNT = 64


def facts(mesh: weft.DeviceMesh) -> dict[str, object]:
    """Shapes, layouts and what was moved: all that does not depend on values of others."""
    found: dict[str, object] = {}

    def note(name: str, x: torch.Tensor) -> None:
        assert isinstance(x, weft.Tensor)
        found[name] = [list(x.shape), str(x.mapping.layout(x.dim())), list(x.local_shards[0].shape)]

    with weft.comm_log() as log:
        x = weft.shard(torch.ones(64, 32), mesh, P("dp", None))
        up = weft.shard(torch.ones(32, 64), mesh, P(None, "tp")).requires_grad_()
        down = weft.shard(torch.ones(64, 32), mesh, P("tp", None)).requires_grad_()
        y = (x @ up).relu() @ down
        loss = y.square().mean()
        loss.backward()
        assert up.grad is not None
        torch.optim.AdamW([up, down]).step()
        large = weft.shard(torch.zeros(4096, 512), mesh, P("dp"))
        note("product", y)
        note("gradient", up.grad)
        note("gathered", weft.all_gather(x))
        note("on its way", weft.all_gather(x, async_op=True).wait())  # type: ignore[attr-defined]
        note("large", weft.shard(large, mesh, P(None, "dp")))
        note("exchanged", weft.all_to_all(x, 1, 0))
        note("sorted", x.sort(0).values)
        note("sum", weft.reduce_scatter(x.sum(0), 0))
        note("linear", weft.nn.shard_module(torch.nn.Linear(32, 64), mesh, {"weight": P("tp")})(x))
    found["log"] = [dict(log.counts()), log.total_bytes]
    found["whole"] = [list(y.full_tensor().shape), list(loss.full_tensor().shape)]
    return found


def main(process: int) -> None:
    dist.init_process_group("fake", rank=process, world_size=COUNT, store=FakeStore())
    mesh = weft.make_mesh({"dp": 8, "tp": 8})
    assert (len(weft.devices()), weft.distributed.process_count()) == (COUNT, COUNT)
    assert weft.local_devices() == (weft.CPU(process),)
    found = facts(mesh)
    shape = weft.from_local([torch.ones(2)], weft.NamedMapping(mesh, P(("dp", "tp")))).shape
    assert shape == (2 * COUNT,)
    assert weft.to_device(torch.ones(3), weft.CPU(5)).full_tensor().shape == (3,)  # type: ignore[attr-defined]
    assert not [each.name for each in threading.enumerate() if each.name in ("weft-heartbeat", "weft-store")]
    weft.distributed.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
