"""Tensors that are turned in place (`t_`, `unsqueeze_`): their gradients are plain torch's, or they are refused."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

import weft
from weft import P
from weft.runtime import machine

Steps = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(params=[True, False], ids=["apart", "one"], autouse=True)
def _memory(request: pytest.FixtureRequest) -> object:
    machine.use_separate_memory(request.param)
    yield
    machine.use_separate_memory(False)


def _gradient(steps: Steps, *, sharded: bool) -> torch.Tensor:
    x = torch.arange(64.0, dtype=torch.float64).reshape(4, 4, 4)
    mesh = weft.make_mesh({"a": 2, "b": 2})
    leaf = (weft.shard(x, mesh, P("a", None, "b")) if sharded else x).requires_grad_()
    (steps(leaf * 2) * torch.arange(4.0, dtype=torch.float64).reshape(4, 1)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.full_tensor() if isinstance(leaf.grad, weft.Tensor) else leaf.grad


def _turned_alone(y: torch.Tensor) -> torch.Tensor:
    return y.transpose_(0, 1)[0]


def _turned_view(y: torch.Tensor) -> torch.Tensor:
    return y[0].t_()


def _viewed_afterwards(y: torch.Tensor) -> torch.Tensor:
    y.transpose_(1, 2)
    view = y[0]
    view.mul_(3)
    return view + y[1]


@pytest.mark.parametrize("steps", [_turned_alone, _turned_view, _viewed_afterwards])
def test_gradients_are_those_of_plain_torch(steps: Steps) -> None:
    torch.testing.assert_close(_gradient(steps, sharded=True), _gradient(steps, sharded=False))


def _turned_below_a_view(y: torch.Tensor) -> torch.Tensor:
    view = y[0]
    y.transpose_(0, 1)
    return view


def _turned_and_written(y: torch.Tensor) -> torch.Tensor:
    return y[0].t_().mul_(3)


def _turned_above_a_write(y: torch.Tensor) -> torch.Tensor:
    view = y[0].t_()
    y.mul_(3)
    return view


def _turned_beside_a_write(y: torch.Tensor) -> torch.Tensor:
    view, other = y[0], y[1]
    view.t_()
    other.mul_(3)
    return view


def _turned_and_written_unseen(y: torch.Tensor) -> torch.Tensor:
    view = y[0].t_()
    view.detach().add_(1)
    return view * 2


def _turned_and_written_without_gradients(y: torch.Tensor) -> torch.Tensor:
    view = y[0].t_()
    with torch.no_grad():
        y.mul_(3)
    return view + 1


def _viewed_and_written_unseen(y: torch.Tensor) -> torch.Tensor:
    view = y[0].t_()
    corner = view[:, :1]
    y.detach().add_(1)
    return corner * 2


def _turned_beside_a_later_view(y: torch.Tensor) -> torch.Tensor:
    view = y[0].t_()
    y[1].mul_(3)
    return view


def _written_like_another_before(y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        (y * 1)[0].t_().mul_(3)
    view = y[0]
    view.transpose_(0, 1)
    return view.mul_(3)


def _turned_without_gradients(y: torch.Tensor) -> torch.Tensor:
    view = y[0]
    with torch.no_grad():
        view.t_()
    return view * 2


def _turned_below_a_view_without_gradients(y: torch.Tensor) -> torch.Tensor:
    view = y[0]
    with torch.no_grad():
        y.transpose_(0, 1)
    return view * 2


@pytest.mark.parametrize(
    "steps",
    [
        _turned_below_a_view,
        _turned_without_gradients,
        _turned_below_a_view_without_gradients,
        _turned_and_written,
        _turned_above_a_write,
        _turned_beside_a_write,
        _turned_and_written_unseen,
        _turned_and_written_without_gradients,
        _viewed_and_written_unseen,
        _turned_beside_a_later_view,
        _written_like_another_before,
    ],
)
def test_gradients_that_would_be_of_other_elements_are_refused(steps: Steps) -> None:
    with pytest.raises(RuntimeError, match="would be lost"):
        _gradient(steps, sharded=True)


Differentiate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda view, leaf, g: view.backward(g),
        torch.autograd.grad,
        lambda view, leaf, g: torch.autograd.backward([leaf.sum(), view], [None, g]),
    ],
)
def test_a_stale_view_is_not_differentiated_itself(differentiate: Differentiate) -> None:
    mesh = weft.make_mesh({"a": 2})
    leaf = weft.shard(torch.arange(16.0).reshape(4, 4), mesh, P("a")).requires_grad_()
    view, beside, g = (y := leaf * 2)[:2, :2], y[2:], weft.shard(torch.arange(4.0).reshape(2, 2), mesh, P())
    view.t_()
    view.detach().add_(1)
    with pytest.raises(RuntimeError, match=r"backward uses a view .* would be lost"):
        differentiate(view, leaf, g)
    beside.backward(torch.ones_like(beside))
    assert leaf.grad is not None
    assert leaf.grad.full_tensor().tolist() == [[0.0] * 4] * 2 + [[2.0] * 4] * 2


def _without_gradients(view: torch.Tensor) -> None:
    with torch.no_grad():
        _ = view.grad_fn


@pytest.mark.parametrize(
    "ask",
    [lambda view: view.grad_fn, _without_gradients, torch.Tensor.retain_grad, lambda view: view.register_hook(print)],
)
def test_what_a_stale_view_was_computed_by_is_not_made_anew(ask: Callable[[torch.Tensor], object]) -> None:
    mesh = weft.make_mesh({"a": 2})
    leaf = weft.shard(torch.arange(16.0).reshape(4, 4), mesh, P("a")).requires_grad_()
    view, g = (leaf * 2)[:2, :2], weft.shard(torch.arange(4.0).reshape(2, 2), mesh, P())
    view.t_()
    ask(view)
    view.detach().add_(1)
    with pytest.raises(RuntimeError, match="would be lost"):
        (ask if ask is not torch.Tensor.retain_grad else weft.Tensor.retain_grad)(view)
    assert "requires_grad=True" in repr(view)
    with pytest.raises(RuntimeError, match="would be lost"):
        view.backward(g)


def test_what_was_turned_and_written_can_be_read() -> None:
    y = weft.shard(torch.arange(4.0).reshape(2, 2), weft.make_mesh({"a": 2}), P("a")).requires_grad_() * 1
    view = y[:]
    view.t_()
    view.detach().add_(1)
    assert view.detach().full_tensor().tolist() == [[1, 3], [2, 4]]
    with torch.no_grad():
        assert (view * 2).full_tensor().tolist() == [[2, 6], [4, 8]]


def test_nothing_is_refused_without_gradients() -> None:
    x = weft.shard(torch.arange(8.0).reshape(2, 4), weft.make_mesh({"a": 2}), P("a"))
    view = x[0]
    x.t_()
    view.mul_(2)
    assert x.shape == (4, 2)
    assert x.full_tensor()[:, 0].tolist() == [0, 2, 4, 6]


def test_what_has_no_dim_to_squeeze_stays_though_views_of_it_are_in_use() -> None:
    mesh = weft.make_mesh({"a": 2})
    x = weft.shard(torch.ones(4), mesh, weft.P("a")).requires_grad_() * 2
    view = x[1:]
    x.squeeze_()
    (view * x[1:]).sum().backward()


def test_tensors_take_the_size_of_another_or_none() -> None:
    mesh = weft.make_mesh({"a": 2})
    x = weft.shard(torch.arange(6.0), mesh, P("a"))
    assert x.resize_as_(torch.empty(4)).full_tensor().tolist() == [0, 1, 2, 3]
    assert x.resize_as_(torch.empty(2, 3)).full_tensor().tolist() == [[0, 1, 2], [3, 4, 5]]  # what lay there
    assert x.set_().shape == (0,)
    assert x.numel() == 0


def test_views_of_what_was_turned_are_known_in_repeated_writes() -> None:
    """The second round repeats calls of the first, of a tensor that was not turned."""

    def steps(turned: bool) -> None:
        x = torch.arange(16.0, dtype=torch.float64).reshape(4, 4)
        y = weft.shard(x, weft.make_mesh({"a": 2}), P("a")).requires_grad_() * 2
        view, other = y[0:2], y[2:4]
        if turned:
            view.t_()
        other.mul_(3)
        torch._foreach_mul_([other], 3)

    steps(turned=False)
    steps(turned=False)
    with pytest.raises(RuntimeError, match="would be lost"):
        steps(turned=True)


def test_torch_turns_its_own_results_without_looking_for_views(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> None:
        raise AssertionError("looked through all objects there are")

    mesh = weft.make_mesh({"a": 2})
    x, w = (weft.shard(t, mesh, P()).requires_grad_() for t in (torch.ones(6), torch.ones(8, 6)))
    monkeypatch.setattr(gc, "get_objects", look)
    for _ in range(2):
        assert torch.nn.functional.linear(x, w).shape == (8,)
        assert (x @ w.mT).shape == (8,)


BASES: dict[str, Steps] = {
    "itself": lambda x: x,
    "merged": lambda x: x.view(3, 8),
    "row of a stack": lambda x: x.view(2, 3, 4)[1],
    "one of all": lambda x: x.unsqueeze(0).unbind(1)[2],
}
VIEWS: dict[str, Steps] = {
    "turned": lambda y: y.t(),
    "columns": lambda y: y[:, 1::2],
    "one column": lambda y: y.select(-1, 1),
    "rows": lambda y: y[-1:],
    "wider": lambda y: y.unsqueeze(0),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("layout", [(("a",), ()), ((), ("a",)), ((), ("a",), "b")], ids=str)
def test_views_show_what_was_there_before_it_was_turned(layout: tuple[object, ...], base: str, name: str) -> None:
    """Also those that are made of it only when somebody reads them."""
    mesh, plain = weft.make_mesh({"a": 2, "b": 2}), torch.arange(24.0).reshape(6, 4)
    pending = dict.fromkeys(layout[2:], "sum")
    for is_turned, is_written in ((True, False), (True, True), (False, True)):
        found = weft.shard(plain, mesh, weft.NamedMapping(mesh, P(*layout[:2]), unreduced=pending))
        expected = plain.clone()
        views = []
        for x in (found, expected):
            shown = BASES[base](x)
            view = VIEWS[name](shown)
            if is_turned:
                shown.transpose_(0, 1)
            if is_written:
                view.neg_()
            views.append((view, shown, x))
        for each, other in zip(*views, strict=True):
            assert torch.equal(each.full_tensor(), other)
