"""Data-parallel training in several processes: gradients are reduced while the way back goes on, and are those of plain torch."""

from __future__ import annotations

import torch
from torch import nn

import weft
from weft import P


def main() -> None:
    weft.distributed.init(timeout=60)
    mesh = weft.make_mesh({"dp": len(weft.devices())})
    torch.manual_seed(0)
    plain = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).double()
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).double()
    model.load_state_dict(plain.state_dict())
    weft.nn.shard_module(model, mesh, {"*": P()})
    batch = torch.randn(16, 64, dtype=torch.float64)
    for turn in range(3):  # the second time, calls are repeated; gradients add up
        plain(batch).square().mean().backward()
        with weft.comm_log() as log:
            model(weft.shard(batch, mesh, P("dp"))).square().mean().backward()
            if not turn:
                assert log.counts() == {"all_reduce": len(log.overlaps)}, log
                assert [each.waited for each in log.overlaps] == [0.0] * len(log.overlaps)
            for x, y in zip(model.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(x.grad.full_tensor(), y.grad)
        assert len(log.overlaps) >= 4
    given = torch.autograd.grad(model(weft.shard(batch, mesh, P("dp"))).sum(), list(model.parameters()))
    expected = torch.autograd.grad(plain(batch).sum(), list(plain.parameters()))
    for x, y in zip(given, expected, strict=True):
        x.detach().mul_(2)  # it shares the memory that is on its way
        torch.testing.assert_close(x.full_tensor(), 2 * y)
    print("all equal")


if __name__ == "__main__":
    main()
