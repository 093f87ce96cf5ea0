"""Leaves hold their gradients plain where their devices share a memory, and nobody can tell: not who reads them, nor who asks or hooks."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft import P
from weft.engine import held_gradient
from weft.engine.held_gradient import taken_as_held
from weft.runtime.machine import use_separate_memory
from weft.tensor.leaf_gradient import gradient_in

MESH = weft.make_mesh({"dp": 2, "tp": 2})
held = vars(torch._C.TensorBase)["grad"].__get__


@pytest.fixture(params=["separate", "unified"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    use_separate_memory(request.param == "separate")
    yield request.param
    use_separate_memory(False)


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The plain gradients that become sharded tensors from now on."""
    found: list[torch.Tensor] = []
    real = held_gradient._labeled

    def labeled(grad: torch.Tensor, *rest: object) -> torch.Tensor:
        found.append(grad)
        return real(grad, *rest)

    monkeypatch.setattr(held_gradient, "_labeled", labeled)
    return found


def models() -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    """A plain model, the same on a mesh, and a batch for each: sums over both axes are pending on the way back."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).double()
    own = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).double()
    own.load_state_dict(plain.state_dict())
    own = weft.nn.shard_module(own, MESH, {"1.*": P("tp"), "3.weight": P(None, "tp")})
    x = torch.randn(4, 6, dtype=torch.float64)
    return plain, own, x, weft.shard(x, MESH, P("dp"))


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().sum()


def check(plain: nn.Module, own: nn.Module) -> None:
    for x, y in zip(plain.parameters(), own.parameters(), strict=True):
        assert isinstance(y.grad, weft.Tensor)
        assert y.grad is y.grad
        assert y.grad._layout is y._layout
        torch.testing.assert_close(y.grad.full_tensor(), x.grad, rtol=1e-9, atol=1e-12)


def kinds(model: nn.Module) -> set[type]:
    return {type(held(p)) for p in model.parameters()}


def test_they_are_plain_in_one_memory(memory: str) -> None:
    plain, own, x, y = models()
    for _ in range(3):
        loss(plain, x).backward()
        loss(own, y).backward()
        assert kinds(own) == {torch.Tensor if memory == "unified" else weft.Tensor}
    check(plain, own)


@pytest.mark.parametrize("read", [False, True])
def test_they_add_up(read: bool) -> None:
    plain, own, x, y = models()
    for _ in range(3):
        loss(plain, x).backward()
        loss(own, y).backward()
        if read:
            check(plain, own)
    check(plain, own)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("way", ["module", "optimizer"])
def test_dropping_them_makes_no_sharded_tensors(way: str, set_to_none: bool, labels: list[torch.Tensor]) -> None:
    _, own, _, y = models()
    loss(own, y).backward()
    owner = own if way == "module" else torch.optim.SGD(own.parameters(), foreach=True)
    owner.zero_grad(set_to_none=set_to_none)
    assert not (labels and (set_to_none or way == "module"))  # an optimizer fills them with zeros by lists
    for p in own.parameters():
        assert p.grad is None if set_to_none else isinstance(p.grad, weft.Tensor) and not p.grad.any()


@pytest.mark.parametrize("fused", [False, True])
def test_optimizers_take_them_as_they_are(fused: bool, memory: str, labels: list[torch.Tensor]) -> None:
    plain, own, x, y = models()
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1, fused=fused) for each in (plain, own)]
    for _ in range(3):
        for model, batch, optimizer in zip((plain, own), (x, y), optimizers, strict=True):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
    assert not labels
    check(plain, own)
    assert bool(labels) is (memory == "unified")
    for one, other in zip(plain.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(other.full_tensor(), one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"foreach": True}, {}])
def test_optimizers_take_steps_with_some_that_were_looked_at(options: dict[str, object]) -> None:
    plain, own, x, y = models()
    for model, batch in ((plain, x), (own, y)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            loss(model, batch).backward()
            assert model[1].weight.grad is not None
            optimizer.step()
    check(plain, own)
    for one, other in zip(plain.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(other.full_tensor(), one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", [P("dp"), P()])
def test_writing_to_one_changes_no_other(spec: P) -> None:
    """The gradients of a sum are one tensor, and may be pending or not."""
    values = [torch.randn(4, 4, dtype=torch.float64) for _ in range(3)]
    a, b = (weft.shard(value, MESH, spec).requires_grad_() for value in values[:2])
    x = weft.shard(values[2], MESH, P("dp"))
    for _ in range(2):
        (x @ (a + b)).square().sum().backward()
    wanted = b.grad.full_tensor().clone()
    a.grad.zero_()
    assert torch.equal(b.grad.full_tensor(), wanted)
    for _ in range(2):
        (x @ (a + b)).square().sum().backward()
    torch.testing.assert_close(b.grad.full_tensor(), 2 * wanted)
    torch.testing.assert_close(a.grad.full_tensor(), wanted)


def test_who_asks_for_them_gets_sharded_ones() -> None:
    plain, own, x, y = models()
    found = torch.autograd.grad(loss(own, y), list(own.parameters()))
    loss(plain, x).backward()
    for p, q, grad in zip(plain.parameters(), own.parameters(), found, strict=True):
        assert isinstance(grad, weft.Tensor)
        assert q.grad is None
        torch.testing.assert_close(grad.full_tensor(), p.grad, rtol=1e-9, atol=1e-12)


def test_asking_amid_a_backward_pass() -> None:
    plain, own, x, y = models()
    found: list[torch.Tensor] = []

    def ask(_: torch.Tensor) -> None:
        with torch.enable_grad():
            found.extend(torch.autograd.grad(loss(own, y), list(own.parameters())))

    z = own(y)
    z.register_hook(ask)
    (z.square().sum() + loss(own, y)).backward(inputs=list(own.parameters()))
    for _ in range(2):
        loss(plain, x).backward()
    check(plain, own)
    assert all(isinstance(grad, weft.Tensor) for grad in found)


def test_hooks_see_sharded_ones() -> None:
    _, own, _, y = models()
    seen: list[torch.Tensor | None] = []
    first, second, third, *_ = own.parameters()
    first.register_hook(seen.append)
    second.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))
    torch.autograd.graph.register_multi_grad_hook([third], seen.extend)
    loss(own, y).backward()
    assert [type(grad) for grad in seen] == [weft.Tensor] * 3


def test_gradients_of_gradients() -> None:
    plain, own, x, y = models()
    found = []
    for model, batch in ((plain, x), (own, y)):
        loss(model, batch).backward()
        with warnings.catch_warnings(action="ignore"):  # that the graph holds the gradients and they the graph
            loss(model, batch).backward(create_graph=True)
        grad = model[1].weight.grad
        found.append(torch.autograd.grad(grad.square().sum(), model[3].weight)[0])
        model.zero_grad()
    assert isinstance(found[1], weft.Tensor)
    torch.testing.assert_close(found[1].full_tensor(), found[0], rtol=1e-9, atol=1e-12)


def test_modes_see_the_ops() -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append((str(func), weft.Tensor in types))
            return func(*args, **(kwargs or {}))

    names: list[tuple[str, bool]] = []
    plain, own, x, y = models()
    with Seen():
        loss(own, y).backward()
    assert names.count(("aten.detach.default", True)) >= len(list(own.parameters()))
    loss(plain, x).backward()
    check(plain, own)


def test_one_lies_as_it_arrived() -> None:
    _, own, _, y = models()
    loss(own, y).backward()
    p = own[0].weight
    gradient_in(p, weft.NamedMapping(MESH, P("dp")).layout(1))
    assert p.grad._layout is p._layout
    p.grad = None
    loss(own, y).backward()
    assert p.grad.mapping.spec == P("dp")


def test_what_moves_is_logged() -> None:
    _, own, _, y = models()
    counts = []
    for _ in range(2):
        with weft.comm_log() as log:
            loss(own, y).backward()
        counts.append(log.counts())
        own.zero_grad()
        loss(own, y).backward()
    assert counts[0] == counts[1]
    assert counts[0]["all_reduce"] >= 6


def in_a_thread(run: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def test_another_thread_sees_sharded_ones_while_an_optimizer_takes_them(memory: str) -> None:
    _, own, _, y = models()
    loss(own, y).backward()
    p, q, *_ = own.parameters()
    with taken_as_held():
        assert type(p.grad) is (torch.Tensor if memory == "unified" else weft.Tensor)
        assert isinstance(in_a_thread(lambda: q.grad), weft.Tensor)
        assert isinstance(q.grad, weft.Tensor)
    assert isinstance(p.grad, weft.Tensor)
