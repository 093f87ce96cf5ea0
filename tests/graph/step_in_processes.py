"""What each of two processes runs for `test_captured_step`: a captured step, beside the same of a plain model."""

from __future__ import annotations

import copy

import torch
from torch import nn

import weft
from weft import P
from weft.graph import capture, capture_step


def loss_fn(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).square().mean()


def main() -> None:
    weft.distributed.init(devices_per_process=2)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    ours = weft.nn.shard_module(copy.deepcopy(plain), mesh, {"0.*": P("tp"), "2.weight": P(None, "tp")})
    mine, theirs = (torch.optim.AdamW(model.parameters(), lr=0.1) for model in (ours, plain))
    step, reference = capture_step(ours, mine, loss_fn), capture_step(plain, theirs, loss_fn)
    for _ in range(5):
        x, y = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
        loss = step(*weft.shard((x, y), mesh, P("dp")))
        torch.testing.assert_close(loss.full_tensor(), reference(x, y), rtol=1e-9, atol=1e-12)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.full_tensor(), b, rtol=1e-9, atol=1e-12)
    assert step.recordings == 0
    assert step.reason.startswith("several processes take part")
    try:
        capture_step(ours, mine, loss_fn, cuda_graph=True)(x, y)
    except ValueError as error:
        assert "cannot be recorded as a CUDA graph: several processes" in str(error)
    else:
        raise AssertionError("it was not refused")
    try:
        capture(lambda x: x * 2, weft.shard(x, mesh, P("dp")))
    except ValueError as error:
        assert "a graph lies in one process" in str(error)
        assert "record it on a mesh of weft.local_devices(), or use torch.compile" in str(error)
    else:
        raise AssertionError("it was not refused")
    weft.distributed.shutdown()


if __name__ == "__main__":
    main()
