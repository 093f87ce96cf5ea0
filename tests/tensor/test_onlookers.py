"""Whoever counts or logs ops sees what one device would do: each op once, on the whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft import P
from weft.runtime.machine import residence

MESH = weft.make_mesh({"dp": 2, "tp": 2})
HOME = residence(MESH).device


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.reshape(4, 6, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).reshape(4, 6, 8))


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, P], tuple[int, ...]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
        {"0.*": P("tp"), "2.weight": P(None, "tp")},
        (4, 8),
    ),
    "attention": (Attention, {"qkv.*": P("tp"), "out.weight": P(None, "tp")}, (4, 6, 8)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1)),
        {"0.*": P("tp"), "2.weight": P(None, "tp")},
        (4, 4, 5, 5),
    ),
}


def counted(model: nn.Module, x: torch.Tensor) -> dict[object, int]:
    with FlopCounterMode(display=False) as counter:
        for _ in range(2):  # the second gradient is added to the first
            model(x).square().sum().backward()
    return dict(counter.get_flop_counts()["Global"])


@pytest.mark.parametrize("spec", [P("dp"), P(), P(("dp", "tp"))], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_operations_of_a_step_are_those_of_one_device(name: str, spec: P) -> None:
    make, patterns, shape = MODELS[name]
    torch.manual_seed(0)
    plain = make().to(HOME)
    model = weft.nn.shard_module(copy.deepcopy(plain), MESH, patterns)
    x = torch.randn(shape, device=HOME)
    assert counted(model, weft.shard(x, MESH, spec)) == counted(plain, x)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=1e-4, atol=1e-4)


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_looking_on_changes_nothing() -> None:
    results = []
    for looks in (False, True):
        torch.manual_seed(0)
        model = weft.nn.shard_module(MODELS["mlp"][0]().to(HOME), MESH, MODELS["mlp"][1])
        x = weft.shard(torch.randn(4, 8, device=HOME), MESH, P("dp"))
        with weft.comm_log() as log, ExitStack() as stack:
            for _ in range(2 * looks):
                stack.enter_context(Nothing())
            model(x).square().sum().backward()
        results.append((str(log), [p.grad.full_tensor().tolist() for p in model.parameters()]))
    assert results[0] == results[1]
