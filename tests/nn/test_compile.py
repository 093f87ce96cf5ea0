"""`torch.compile` of a sharded model gives what the model gives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import weft
from weft import P

MESH = weft.make_mesh({"dp": 2, "tp": 2})
LAYOUTS = {"tensor parallel": ({"0.*": P("tp"), "2.weight": P(None, "tp")}, P("dp")), "data parallel": ({}, P("dp"))}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_compiled_model_trains_alike(layout: str) -> None:
    patterns, spec = LAYOUTS[layout]
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).double()
    model = weft.nn.shard_module(copy.deepcopy(plain), MESH, patterns)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, model)]
    for _ in range(2):
        x = torch.randn(4, 6, dtype=torch.float64)
        results = plain(x), compiled(weft.shard(x, MESH, spec))
        torch.testing.assert_close(results[1].full_tensor(), results[0], rtol=1e-9, atol=1e-12)
        for result, optimizer in zip(results, optimizers, strict=True):
            optimizer.zero_grad()
            result.square().sum().backward()
            optimizer.step()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.full_tensor(), one, rtol=1e-9, atol=1e-12)
        assert other.grad.mapping.layout(other.dim()) is other.mapping.layout(other.dim())
