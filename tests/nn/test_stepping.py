"""Torch's optimizers step on sharded parameters as on plain ones, and where each has one piece, on the pieces."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch
from torch import optim
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from tests.nn.optimizers import OPTIMIZERS
from weft import P
from weft.runtime.machine import use_separate_memory

MESH = weft.make_mesh({"dp": 2, "tp": 2})


@pytest.fixture(params=["separate", "unified"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    use_separate_memory(request.param == "separate")
    yield request.param
    use_separate_memory(False)


def parameters() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Plain ones, among them a transposed, a complex and an empty one, and the same on a mesh; gradients are set."""
    torch.manual_seed(0)
    values = [
        torch.randn(4, 6, dtype=torch.float64),
        torch.randn(6, 4, dtype=torch.float64).mT,
        torch.randn(5, dtype=torch.complex128),
        torch.randn(0, 3, dtype=torch.float64),
    ]
    plain = [torch.nn.Parameter(value) for value in values]
    specs = [P("dp", "tp"), P("tp"), P(), P("dp")]
    own = [torch.nn.Parameter(weft.shard(x.detach(), MESH, spec)) for x, spec in zip(plain, specs, strict=True)]
    set_gradients(plain, own)
    return plain, own


def set_gradients(plain: list[torch.Tensor], own: list[torch.Tensor]) -> None:
    for x, y in zip(plain, own, strict=True):
        x.grad = torch.randn_like(x)
        y.grad = weft.shard(x.grad, MESH, y.mapping.spec)


@pytest.mark.parametrize("way", ["foreach", "fused", None])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_plain_torchs(name: str, way: str | None) -> None:
    kind, options = OPTIMIZERS[name]
    plain, own = parameters()
    options = options if way is None else {**options, way: True}
    if way == "fused":
        plain, own = plain[:1], own[:1]  # torch has no fused step of complex numbers, and wants strides of one kind
    try:
        optimizers = kind(plain, **options), kind(own, **options)
    except TypeError as error:
        assert way == "fused"
        assert "unexpected keyword argument 'fused'" in str(error)
        return
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.step()
        for x, y in zip(plain, own, strict=True):
            torch.testing.assert_close(y.full_tensor(), x, rtol=1e-12, atol=1e-12)
            for one, other in zip(optimizers[0].state[x].values(), optimizers[1].state[y].values(), strict=True):
                if isinstance(other, weft.Tensor):
                    assert other.mapping == y.mapping
                    other = other.full_tensor()
                torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)
        set_gradients(plain, own)
    assert "_init_group" not in vars(optimizers[1])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_made_of_gradients_of_a_backward_pass_lie_as_their_parameters_do(name: str) -> None:
    """In one memory such gradients are held plain: what Rprop makes like them was plain as well."""
    kind, options = OPTIMIZERS[name]
    x = torch.nn.Parameter(weft.shard(torch.randn(4, 6), MESH, P("dp", "tp")))
    optimizer = kind([x], **options)
    (x * x).sum().backward()
    optimizer.step()
    states = [state for state in optimizer.state[x].values() if isinstance(state, torch.Tensor) and state.dim()]
    assert all(isinstance(state, weft.Tensor) and state.mapping == x.mapping for state in states)


def handed(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The types of the parameters that Adam's function is called with from now on."""
    kinds: list[type] = []
    module = import_module("torch.optim.adam")
    real = module.adam

    def looked_at(params: list[torch.Tensor], *rest: object, **named: object) -> None:
        kinds.extend(map(type, params))
        real(params, *rest, **named)

    monkeypatch.setattr(module, "adam", looked_at)
    return kinds


def test_parameters_of_one_piece_step_on_it(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = handed(monkeypatch)
    optim.Adam(parameters()[1]).step()
    assert set(kinds) == {torch.Tensor if memory == "unified" else weft.Tensor}


def test_gradients_that_lie_otherwise_are_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = handed(monkeypatch)
    plain, own = parameters()
    own[0].grad = weft.shard(plain[0].grad, MESH, P())
    for each in (plain, own):
        optim.Adam(each).step()
    assert weft.Tensor in kinds
    torch.testing.assert_close(own[0].full_tensor(), plain[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
def test_views_show_a_step(fused: bool) -> None:
    _, own = parameters()
    x = own[0]
    turned, rows = x.detach().mT, x.detach().flatten()
    optim.AdamW([x], fused=fused).step()
    assert torch.equal(turned.full_tensor(), x.full_tensor().mT)
    assert torch.equal(rows.full_tensor(), x.full_tensor().flatten())


def test_a_gradient_of_what_was_before_the_step_is_refused() -> None:
    _, own = parameters()
    loss = own[0].square().sum()
    optim.Adam(own).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_modes_see_the_ops() -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.add(str(func))
            return func(*args, **(kwargs or {}))

    names: set[str] = set()
    _, own = parameters()
    with Seen():
        optim.Adam(own[:1], foreach=True).step()
    assert "aten._foreach_addcdiv_.ScalarList" in names


def test_memory_that_is_shared_until_it_is_written_to() -> None:
    plain, own = parameters()
    before = own[0].detach().clone()
    copies = [weft.shard(x, MESH, y.mapping.spec) for x, y in zip(plain, own, strict=True)]
    optim.Adam(own).step()
    assert torch.equal(before.full_tensor(), plain[0])
    for x, y in zip(plain, copies, strict=True):
        assert torch.equal(y.full_tensor(), x)


@pytest.mark.parametrize("way", [optim.SGD, optim.Adam])
def test_compiled_steps(way: type[optim.Optimizer]) -> None:
    """Each reads the gradients of its own backward pass."""
    torch._dynamo.reset()
    (plain, own), (eager, _) = parameters(), parameters()
    for each in (plain, own, eager):
        optimizer = way(each[:2], lr=0.5)
        step = optimizer.step if each is eager else torch.compile(optimizer.step, backend="eager")
        double = torch.compile(lambda x, y: x.square().sum() + y.sin().sum(), backend="aot_eager")
        for _ in range(3):
            optimizer.zero_grad()
            double(*each[:2]).backward()
            step()
    for x, y, uncompiled in zip(plain, own, eager, strict=True):
        # Since torch 2.15, compiled steps count in float32: they are as near as plain ones are to each other.
        apart = (x - uncompiled).abs().sum().item()
        torch.testing.assert_close(y.full_tensor(), x, rtol=1e-12, atol=1e-12 + apart)
