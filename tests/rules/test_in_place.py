"""Writes: in place, through views, to `out=`; whoever shares memory in torch sees them, and nobody else does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import weft
from weft import P
from weft.engine.writes.casting import check_cast
from weft.rules.call import BoundCall
from weft.sharding.layout import Layout

from .case import Case
from .harness import GRID, LINE, laid, layouts, memory

G = torch.Generator().manual_seed(6)
X = torch.randn(5, 4, dtype=torch.float64, generator=G)
Y = torch.randn(5, 4, dtype=torch.float64, generator=G)


def _after(write: Callable[..., object]) -> Callable[..., object]:
    """The function that copies its first input, writes to the copy, and gives it and what the write gave."""

    def function(x: torch.Tensor, *others: torch.Tensor) -> object:
        copy = x * 1
        given = write(copy, *others)
        return [
            copy,
            *(given if isinstance(given, (list, tuple)) else [given] if isinstance(given, torch.Tensor) else []),
        ]

    return function


def _assign(x: torch.Tensor, index: object, value: object) -> None:
    x[index] = value  # type: ignore[index, assignment]


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add_": lambda x, y: x.add_(y),
    "add_ a row": lambda x, y: x.add_(y[0]),
    "mul_": lambda x, y: x.mul_(y),
    "mul_ a number": lambda x, _: x.mul_(3),
    "relu_": lambda x, _: x.relu_(),
    "exp_": lambda x, _: x.exp_(),
    "copy_": lambda x, y: x.copy_(y),
    "copy_ a row": lambda x, y: x.copy_(y[1]),
    "fill_": lambda x, _: x.fill_(2.0),
    "zero_": lambda x, _: x.zero_(),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=2),
    "lerp_": lambda x, y: x.lerp_(y, 0.3),
    "addmm_": lambda x, y: x.addmm_(y, y.T @ y),
    "clamp_": lambda x, _: x.clamp_(-0.5, 0.5),
    "masked_fill_": lambda x, y: x.masked_fill_(y.detach() > 0, 1.0),
    "tril_": lambda x, _: x.tril_(1),
    "index_put_": lambda x, y: x.index_put_((torch.tensor([3, 0]),), y[:2]),
    "index_add_": lambda x, y: x.index_add_(0, torch.tensor([3, 0, 3]), y[:3]),
    "scatter_": lambda x, y: x.scatter_(0, torch.tensor([[1, 2, 3, 0]]), y[:1]),
    "scatter_add_": lambda x, y: x.scatter_add_(1, torch.zeros(5, 4, dtype=torch.int64), y),
    "cumsum_": lambda x, _: x.cumsum_(0),
    "rows": lambda x, y: x[1:3].add_(y[1:3]),
    "every other row": lambda x, y: x[::2].mul_(y[::2]),
    "one row": lambda x, y: x[2].add_(y[0]),
    "one column": lambda x, y: x[:, 1].mul_(y[:, 0]),
    "a box": lambda x, y: x[1:4, 1:3].copy_(y[:3, :2]),
    "a view": lambda x, y: x.view(20)[3:9].add_(y.reshape(20)[:6]),
    "a transpose": lambda x, y: x.t()[1:3].mul_(y.t()[:2]),
    "a view of a slice": lambda x, y: x[1:3].view(8).mul_(y[0, 0]),
    "a slice of a slice": lambda x, y: x[1:][1:3].sub_(y[:2]),
    "an expanded add": lambda x, y: x.unsqueeze(0)[0, 1].add_(y[1]),
    "the diagonal": lambda x, y: x.diagonal().add_(y.diagonal()),
    "assign a number": lambda x, _: _assign(x, slice(1, 3), 4.0),
    "assign rows": lambda x, y: _assign(x, slice(0, 2), y[:2]),
    "assign by index": lambda x, y: _assign(x, [0, 3], y[:2]),
    "assign by mask": lambda x, y: _assign(x, y.detach() > 0, 0.5),
    "assign an element": lambda x, _: _assign(x, (2, 1), 7.0),
    "read after a write to the base": lambda x, y: [x[1:3], x.add_(y), x.view(20)[2:5]],
    "squeeze_": lambda x, _: x.unsqueeze_(0).squeeze_(0),
    "t_": lambda x, _: [x.t_().clone()],
}


CASES = {name: Case(_after(write), (X, Y), limit=8, meshes=[GRID]) for name, write in WRITES.items()}


@pytest.mark.parametrize("name", CASES)
def test_writes_are_torchs(name: str) -> None:
    CASES[name].check()


@pytest.fixture(params=[False, True], ids=["unified", "separate"])
def separate(request: pytest.FixtureRequest) -> Iterator[bool]:
    with memory(request.param):
        yield request.param


LAYOUTS = [*layouts(LINE, 2), *layouts(GRID, 2)]


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_view_shows_later_writes_to_its_base_and_back(layout: Layout) -> None:
    x = laid(X, layout)
    rows, row, flat, turned = x[1:4], x[3], x.view(20), x.t()
    x.mul_(2)
    torch.testing.assert_close(rows.full_tensor(), (X * 2)[1:4])
    torch.testing.assert_close(row.full_tensor(), (X * 2)[3])
    rows.fill_(1.0)
    expected = (X * 2).clone()
    expected[1:4] = 1
    for view, same in ((x, expected), (row, expected[3]), (flat, expected.view(20)), (turned, expected.t())):
        torch.testing.assert_close(view.full_tensor(), same)
    flat[0] = 9.0
    row.zero_()
    expected.view(20)[0] = 9
    expected[3] = 0
    for view, same in ((x, expected), (rows, expected[1:4]), (turned, expected.t())):
        torch.testing.assert_close(view.full_tensor(), same)


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_write_changes_no_other_tensor(layout: Layout) -> None:
    x = laid(X, layout)
    others = [x.clone(), x * 1, weft.shard(x, layout.mesh, None), x.full_tensor(), weft.shard(x, x.mesh, x.mapping)]
    x.add_(1)
    x[1:3] = 0.0
    for other in others:
        torch.testing.assert_close(other.full_tensor() if isinstance(other, weft.Tensor) else other, X)
    for other in others:
        other.zero_()
    expected = X + 1
    expected[1:3] = 0
    torch.testing.assert_close(x.full_tensor(), expected)


@pytest.mark.usefixtures("separate")
def test_plain_memory_is_not_written_to() -> None:
    plain = X.clone()
    x = weft.shard(plain, GRID, P("a", "b"))
    x.zero_()
    torch.testing.assert_close(plain, X)
    plain.fill_(3.0)
    assert x.sum().item() == 0


@pytest.mark.usefixtures("separate")
def test_versions_last_write_through_views() -> None:
    x = weft.shard(X, GRID, P("a", "b"))
    view = x[1:3]
    before = x._version
    view.add_(1)
    x.add_(1)
    assert x._version == view._version == before + 2


@pytest.mark.usefixtures("separate")
def test_autograd_refuses_a_value_changed_since() -> None:
    x = weft.shard(X, GRID, P("a", "b")).requires_grad_()
    y = x * 1
    z = y.exp()
    z[1:3].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.usefixtures("separate")
def test_a_leaf_that_requires_grad_is_not_written_to() -> None:
    x = weft.shard(X, GRID, P("a", "b")).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x[1:3].add_(1)
    with torch.no_grad():
        x[1:3].add_(1)
    assert x.sum().item() == pytest.approx(X.sum().item() + 8)


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_writes_to_plain_tensors_take_sharded_values(layout: Layout) -> None:
    plain = Y.clone()
    assert type(plain.add_(laid(X, layout))) is torch.Tensor
    plain[1:3] = laid(X, layout)[1:3]
    expected = X + Y
    expected[1:3] = X[1:3]
    torch.testing.assert_close(plain, expected)
    out = torch.empty(0, dtype=torch.float64)
    torch.add(laid(X, layout), 1, out=out)
    torch.testing.assert_close(out, X + 1)


OUTS: dict[str, Callable[..., object]] = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "exp": lambda x, out: torch.exp(x, out=out),
    "mm": lambda x, out: torch.mm(x, x.T @ x, out=out),
    "cat": lambda x, out: torch.cat([x[:2], x[2:]], out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, torch.arange(5).flip(0), out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "where": lambda x, out: torch.where(x > 0, x, -x, out=out),
    "clamp": lambda x, out: torch.clamp(x, 0, 1, out=out),
}


WITH_OUT = {
    name: Case(lambda x, y, function=function: function(x, y.clone()), (X, Y), grad=False)
    for name, function in OUTS.items()
}


@pytest.mark.parametrize("name", WITH_OUT)
def test_out_of_any_layouts(name: str) -> None:
    WITH_OUT[name].check()


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("name", OUTS)
def test_out_keeps_its_layout(name: str) -> None:
    wanted = OUTS[name](X, torch.empty(5, 4, dtype=torch.float64))
    for k, layout in enumerate(LAYOUTS):
        out = laid(Y, layout)
        given = OUTS[name](laid(X, LAYOUTS[-k] if LAYOUTS[-k].mesh is layout.mesh else layout), out)
        assert given is out
        assert out._layout is layout
        torch.testing.assert_close(out.full_tensor(), wanted)


@pytest.mark.usefixtures("separate")
def test_out_of_a_batch_of_matrices_times_a_vector() -> None:
    """Torch computes it in another shape of `out`, and then writes `out` to itself in that shape."""
    x, v = weft.shard(X.view(5, 2, 2), GRID, P("a")), weft.shard(Y[0, :2], GRID, P("b"))
    for out in (weft.shard(torch.zeros(5, 2, dtype=torch.float64), GRID, P("b")), weft.shard(X[:0], GRID, P())):
        assert torch.matmul(x, v, out=out) is out
        torch.testing.assert_close(out.full_tensor(), X.view(5, 2, 2) @ Y[0, :2])


@pytest.mark.usefixtures("separate")
def test_out_that_torch_does_not_write_to() -> None:
    """Torch's own, for tensors of any subclass: no op ever sees this `out`. The page on op coverage says so."""
    out = weft.shard(torch.full((5,), 7), GRID, P("a"))
    torch.linalg.matrix_rank(weft.shard(X.view(5, 2, 2), GRID, P("a")), out=out)
    assert out.tolist() == [7] * 5
    assert torch.linalg.matrix_rank(weft.shard(X.view(5, 2, 2), GRID, P("a"))).tolist() == [2] * 5


@pytest.mark.usefixtures("separate")
def test_out_is_resized_and_checked_as_in_torch() -> None:
    x = weft.shard(X, GRID, P("a", "b"))
    out = weft.shard(torch.empty(0, 4, dtype=torch.float64), GRID, P("b", None))
    torch.add(x, 1, out=out)
    assert out.shape == X.shape
    assert out.mapping.spec == P("b", None)
    torch.testing.assert_close(out.full_tensor(), X + 1)
    values = weft.shard(torch.empty(0, dtype=torch.float64), GRID, P(None))
    indices = weft.shard(torch.empty(0, dtype=torch.int64), GRID, P(None))
    torch.max(x, 1, out=(values, indices))
    torch.testing.assert_close(values.full_tensor(), X.max(1).values)
    torch.testing.assert_close(indices.full_tensor(), X.max(1).indices)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.add(x, 1, out=weft.shard(torch.empty(5, 4, dtype=torch.int64), GRID, P("a")))
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(x, 1, out=weft.shard(torch.empty(2, dtype=torch.float64), GRID, P("a")))


LARGE = (1 << 20) + 2
"""Elements for which `out=` is not tried as they are."""
LARGE_OUTS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "mm": lambda x, out: torch.mm(x.view(2, -1), x.view(-1, 2), out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, torch.arange(2), out=out),
}


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64])
@pytest.mark.parametrize("name", LARGE_OUTS)
def test_out_of_another_dtype_is_taken_as_by_torch_however_large(name: str, dtype: torch.dtype) -> None:
    def said(x: torch.Tensor, out: torch.Tensor) -> str:
        try:
            LARGE_OUTS[name](x, out)
        except RuntimeError as error:
            return str(error)
        return f"taken, of {out.shape}"

    x, out = torch.ones(LARGE), torch.empty(0, dtype=dtype)
    assert said(weft.shard(x.clone(), GRID, P("a")), weft.shard(out.clone(), GRID, P())) == said(x, out)


class _Sharing(TorchDispatchMode):
    """Names the ops that are called with tensors of which several elements lie in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: set[str] = set()

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(size > 1 and not stride for x in tensors for size, stride in zip(x.shape, x.stride(), strict=True)):
            self.calls.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", [3, LARGE])
def test_out_of_another_dtype_is_tried_on_elements_that_kernels_find_where_they_look(size: int) -> None:
    """Kernels of medians read rows without strides as if they lay one after the other, beyond what is there."""
    outs = {"values": torch.empty(0), "indices": torch.empty(0, dtype=torch.int64)}
    call = BoundCall(torch.ops.aten.nanmedian.dim_values, (torch.ones(2, size), 1), outs)
    with _Sharing() as sharing:
        check_cast(call, torch.ops.aten.nanmedian.dim)
    assert not sharing.calls


@pytest.mark.usefixtures("separate")
def test_data_can_be_replaced() -> None:
    x = weft.shard(X, GRID, P("a", "b")).requires_grad_()
    x.data = weft.shard(Y[:2].float(), GRID, P(None, "a"))
    assert x.shape == (2, 4)
    assert x.dtype is torch.float32
    torch.testing.assert_close(x.detach().full_tensor(), Y[:2].float())
    x.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (2, 4)
    x.data = torch.ones(2, 4)
    assert x.detach().sum().item() == 8
    y = weft.shard(X, GRID, P("a", "b"))
    y.resize_(2, 3)
    torch.testing.assert_close(y.full_tensor(), X.reshape(-1)[:6].view(2, 3))


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_plain_tensors_keep_plain_gradients(layout: Layout) -> None:
    w, v = (
        torch.ones(4, dtype=torch.float64, requires_grad=True),
        torch.ones(4, dtype=torch.float64, requires_grad=True),
    )
    x = laid(X, layout).requires_grad_()
    (x * (v * 2) + w).exp().sum().backward()
    expected = (X * 2 + 1).exp()
    for grad, value in ((w.grad, expected.sum(0)), (v.grad, (expected * X * 2).sum(0))):
        assert type(grad) is torch.Tensor
        torch.testing.assert_close(grad, value)
    torch.testing.assert_close(x.grad.full_tensor(), expected * 2)  # type: ignore[union-attr]


@pytest.mark.usefixtures("separate")
def test_inference_mode_writes_through_views() -> None:
    with torch.inference_mode():
        for layout in LAYOUTS:
            x = laid(X, layout)
            rows = x[1:3]
            flat = x.reshape(20)
            rows.zero_()
            x[4] = 2.0
            expected = X.clone()
            expected[1:3], expected[4] = 0, 2
            torch.testing.assert_close(x.full_tensor(), expected)
            torch.testing.assert_close(flat.full_tensor(), expected.view(20))
            torch.testing.assert_close(rows.full_tensor(), expected[1:3])


@pytest.mark.usefixtures("separate")
def test_the_gradient_of_a_write_through_a_view_moves_no_whole_tensor() -> None:
    x = weft.shard(torch.zeros(64, 64, dtype=torch.float64), GRID, P("a", "b")).requires_grad_()
    y = x * 1
    y[8:40].mul_(2)
    y[:, 3].mul_(3)
    with weft.comm_log() as log:
        y.sum().backward()
    expected = torch.ones(64, 64, dtype=torch.float64)
    expected[8:40] *= 2
    expected[:, 3] *= 3
    assert x.grad is not None
    torch.testing.assert_close(x.grad.full_tensor(), expected)
    assert log.total_bytes < 64 * 64 * 8 * 2
    assert "all_gather" not in log.counts()


@pytest.mark.usefixtures("separate")
def test_whatever_reads_a_view_reads_it_as_it_is_now() -> None:
    x = weft.shard(X, GRID, P("a", None))
    y = x[1:5]
    x.fill_(3.0)
    assert copy.deepcopy(y).sum().item() == 48
    x.fill_(4.0)
    assert y.local_shards[0].unique().tolist() == [4.0]
    x.fill_(5.0)
    assert weft.ppermute(y, [(0, 2), (1, 3), (2, 0), (3, 1)]).sum().item() == 80
    x.fill_(6.0)
    assert pickle.loads(pickle.dumps(y)).sum().item() == 96
    x.fill_(7.0)
    assert y.tolist() == [[7.0] * 4] * 4
    x.fill_(8.0)
    assert "8." in repr(y)
    x.fill_(9.0)
    assert weft.shard(y, GRID, P(None, "b")).sum().item() == 144
