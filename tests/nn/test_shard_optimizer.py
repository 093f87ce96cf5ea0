"""An optimizer whose state is split takes the steps of the one that is not, bit for bit, with as many bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch

import weft
from weft import P
from weft.runtime import machine

Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
}


@pytest.fixture(params=["separate", "unified"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


def twins(layouts: dict[str, P] | None = None) -> tuple[weft.DeviceMesh, torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    mesh = weft.make_mesh({"dp": 4} if layouts is None else {"dp": 2, "tp": 2})
    plain = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
    one, other = (weft.nn.shard_module(copy.deepcopy(plain), mesh, layouts or {}) for _ in range(2))
    return mesh, one, other


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> int:
    with weft.comm_log() as log:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
    return log.total_bytes


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("layouts", [None, {"0.*": P("tp"), "2.weight": P(None, "tp")}], ids=["dp", "dp and tp"])
def test_twenty_steps_have_the_same_bits_and_bytes(name: str, layouts: dict[str, P] | None) -> None:
    mesh, one, other = twins(layouts)
    whole = OPTIMIZERS[name](one.parameters())
    split = weft.nn.shard_optimizer(OPTIMIZERS[name](other.parameters()))
    for _ in range(20):
        x = weft.shard(torch.randn(8, 6), mesh, P("dp"))
        expected = step(one, whole, x)
        assert step(other, split, x) <= expected
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.full_tensor(), q.full_tensor())
        assert p.mapping == q.mapping
    for state in split.state.values():
        for value in state.values():
            assert value.dim() == 0 or "dp" in value._layout.dim_of


def test_one_gather_of_all_parameters() -> None:
    mesh, model, _ = twins()
    optimizer = weft.nn.shard_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(weft.shard(torch.randn(8, 6), mesh, P("dp"))).sum().backward()
    assert {tuple(p.grad._layout.dim_of) for p in model.parameters()} == {("dp",)}
    with weft.comm_log() as log:
        optimizer.step()
    assert [(record.kind, record.op, record.implicit) for record in log] == [("all_gather", "shard_optimizer", False)]
    assert log.total_bytes == 3 * 4 * sum(p.numel() for p in model.parameters())


def test_copies_take_steps_of_their_own() -> None:
    mesh, one, other = twins()
    whole, split = torch.optim.AdamW(one.parameters(), lr=0.1), torch.optim.AdamW(other.parameters(), lr=0.1)
    weft.nn.shard_optimizer(split)
    x = weft.shard(torch.randn(8, 6), mesh, P("dp"))
    for model, optimizer in ((one, whole), (other, split)):
        step(model, optimizer, x)
        with torch.no_grad():
            model[0].weight.mul_(2)
    before = [p.full_tensor() for p in other.parameters()]
    copied, its = copy.deepcopy((other, split))
    for _ in range(2):
        step(one, whole, x)
        step(copied, its, x)
    for p, q, r, old in zip(one.parameters(), copied.parameters(), other.parameters(), before, strict=True):
        assert torch.equal(p.full_tensor(), q.full_tensor())
        assert torch.equal(r.full_tensor(), old)


def test_a_running_optimizer_is_split_and_weights_may_be_loaded() -> None:
    mesh, one, other = twins()
    whole, split = (torch.optim.AdamW(model.parameters(), lr=0.1) for model in (one, other))
    x = weft.shard(torch.randn(8, 6), mesh, P("dp"))
    step(one, whole, x)
    step(other, split, x)
    weft.nn.shard_optimizer(split)
    for _ in range(2):
        step(one, whole, x)
        step(other, split, x)
        halves = {name: value * 0.5 for name, value in one.state_dict().items()}
        for model in (one, other):
            model.load_state_dict(halves)
    step(one, whole, x)
    step(other, split, x)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.full_tensor(), q.full_tensor())


def test_gradients_add_up_and_go() -> None:
    mesh, one, other = twins()
    whole, split = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other))
    weft.nn.shard_optimizer(split)
    x = weft.shard(torch.randn(8, 6), mesh, P("dp"))
    for model, optimizer in ((one, whole), (other, split)):
        model(x).sum().backward()
        model(x * 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.full_tensor(), q.full_tensor())


def test_mistakes_are_named() -> None:
    _, model, _ = twins()
    with pytest.raises(TypeError, match=r"takes a torch\.optim\.Optimizer, but got Sequential"):
        weft.nn.shard_optimizer(model)
    with pytest.raises(ValueError, match=r"dp=4 has no 'fsdp': use one of 'dp'"):
        weft.nn.shard_optimizer(torch.optim.SGD(model.parameters()), "fsdp")
    with pytest.raises(TypeError, match=r"one of shape \(2, 2\) is plain: use weft.nn.shard_module"):
        weft.nn.shard_optimizer(torch.optim.SGD([torch.ones(2, 2, requires_grad=True)]))
    optimizer = weft.nn.shard_optimizer(torch.optim.SGD(model.parameters()))
    with pytest.raises(ValueError, match="has split this optimizer before"):
        weft.nn.shard_optimizer(optimizer)
