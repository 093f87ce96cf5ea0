"""What is pending in one memory is known whole; contributions are there for whoever looks at them."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch

import weft
from weft import P
from weft.sharding import ReduceOp
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

MESH = weft.make_mesh({"a": 2, "b": 2})


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rows(x: torch.Tensor) -> torch.Tensor:
    return weft.shard(x, MESH, P(("a", "b"), None))


def summed(x: weft.Tensor) -> torch.Tensor:
    """The sum of the contributions of a tensor that is pending over both axes."""
    return torch.stack(x.local_shards).sum(0)


def test_every_device_contributes_what_it_holds() -> None:
    plain = numbers(8, 3)
    y = rows(plain).sum(0)
    for shard, part in zip(y.local_shards, plain.chunk(4), strict=True):
        torch.testing.assert_close(shard, part.sum(0))


def test_contributions_of_products_and_their_views() -> None:
    x, w = numbers(4, 8), numbers(8, 6, seed=1)
    y = weft.shard(x, MESH, P("a", "b")) @ weft.shard(w, MESH, P("b", None))
    z = (y * 3).t().reshape(3, 2, 4)[:, 1]
    expected = ((x @ w) * 3).t().reshape(3, 2, 4)[:, 1]
    torch.testing.assert_close(z.full_tensor(), expected)
    first, second = x[:, :4] @ w[:4], x[:, 4:] @ w[4:]
    whole = weft.all_gather(z)
    for k, part in enumerate((first, second)):
        shard = whole.local_shards[k]
        torch.testing.assert_close(shard, (part * 3).t().reshape(3, 2, 4)[:, 1])


@pytest.mark.parametrize("look_first", [False, True])
def test_writes_are_seen_through_views_both_ways(look_first: bool) -> None:
    plain = numbers(8, 4)
    y, wanted = rows(plain).sum(0), plain.sum(0)
    view, shown = y.view(2, 2).t(), wanted.view(2, 2).t()
    if look_first:
        _ = y.local_shards
    y.mul_(2)
    wanted.mul_(2)
    torch.testing.assert_close(view.full_tensor(), shown)
    view[0].add_(rows(plain).sum())
    shown[0].add_(plain.sum())
    torch.testing.assert_close(y.full_tensor(), wanted)
    torch.testing.assert_close(view.full_tensor(), shown)
    torch.testing.assert_close((y + y).full_tensor(), wanted + wanted)


def test_a_later_write_to_what_was_read_changes_nothing() -> None:
    plain = numbers(8, 4)
    x = rows(plain)
    y = x.sum(0)
    product = y * 3
    x.zero_()
    torch.testing.assert_close(summed(y), plain.sum(0))
    torch.testing.assert_close(y.full_tensor(), plain.sum(0))
    y.zero_()
    torch.testing.assert_close(summed(product), plain.sum(0) * 3)


def test_one_of_two_axes_is_resolved() -> None:
    plain = numbers(8, 4)
    y = rows(plain).sum(0)
    z = weft.all_reduce(y, reduce_axes="b")
    assert z.mapping.layout(1) == Layout(MESH, [()], {"a": ReduceOp.SUM})
    for k, shard in enumerate(z.local_shards):
        torch.testing.assert_close(shard, plain[4 * (k // 2) : 4 * (k // 2) + 4].sum(0))
    torch.testing.assert_close(z.full_tensor(), plain.sum(0))


def test_more_of_what_is_pending_becomes_so() -> None:
    """A value that is known stays the same to the last digit: less what it is made of once more, nothing is left."""
    plain = numbers(8, 3)
    y = weft.shard(plain, MESH, P("a", "b")).sum(0)
    z = y.redistribute(named_mapping(Layout(MESH, [()], {"a": ReduceOp.SUM, "b": ReduceOp.SUM})))
    torch.testing.assert_close(summed(z), plain.sum(0))
    assert torch.equal(z.full_tensor(), y.full_tensor())
    assert not (y - torch.stack([y, y]).sum(0) / 2).full_tensor().any()
    rest = y.redistribute(z.mapping)
    y.zero_()
    torch.testing.assert_close(summed(rest), plain.sum(0))
    torch.testing.assert_close(rest.full_tensor(), plain.sum(0))


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min", "prod"])
def test_a_whole_value_becomes_pending(kind: str) -> None:
    plain = numbers(4)
    y = weft.shard(plain, MESH, named_mapping(Layout(MESH, [()], {"a": ReduceOp.of(kind)})))
    torch.testing.assert_close(weft.all_reduce(y, kind).full_tensor(), plain)
    mine = torch.stack([y.local_shards[0], y.local_shards[2]])
    combined = {
        "sum": mine.sum(0),
        "mean": mine.mean(0),
        "max": mine.amax(0),
        "min": mine.amin(0),
        "prod": mine.prod(0),
    }
    torch.testing.assert_close(combined[kind], plain)


def test_copies_carry_contributions() -> None:
    plain = numbers(8, 4)
    y = rows(plain).sum(0)
    buffer = io.BytesIO()
    torch.save(y, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(y), pickle.loads(pickle.dumps(y)), torch.load(buffer, weights_only=False), y.clone()):
        assert other.mapping.layout(1).pending
        torch.testing.assert_close(summed(other), plain.sum(0))


def test_inference_mode() -> None:
    plain = numbers(8, 4)
    with torch.inference_mode():
        x = rows(plain)
        y = x.sum(0)
        x.zero_()
        torch.testing.assert_close(summed(y), plain.sum(0))
        torch.testing.assert_close(y.full_tensor(), plain.sum(0))


def test_a_small_result_does_not_keep_large_inputs() -> None:
    x = rows(torch.ones(1 << 10, 1 << 9))
    kept = weakref.ref(x)
    y = x.sum()
    del x
    gc.collect()
    assert kept() is None
    assert y.item() == 1 << 19


def test_a_small_result_of_something_large_and_pending() -> None:
    x = numbers(8, 1 << 9)
    y = weft.shard(x, MESH, P(None, ("a", "b"))) @ weft.shard(x.t(), MESH, P(("a", "b"), None))
    large = y.repeat(1 << 7, 1 << 7)
    wanted = (x @ x.t()).repeat(1 << 7, 1 << 7).sum(0)
    assert large.mapping.layout(2).pending
    small = large.sum(0)
    torch.testing.assert_close(summed(small), wanted)
    torch.testing.assert_close(small.full_tensor(), wanted)


def test_gradients_of_what_is_pending() -> None:
    plain = numbers(8, 4).requires_grad_()
    x = rows(plain.detach()).requires_grad_()
    for given in (plain, x):
        y = given.sum(0)
        ((y * 2) ** 2).sum().backward()
    torch.testing.assert_close(x.grad.full_tensor(), plain.grad)
    assert x.grad.mapping.layout(2) == x.mapping.layout(2)


@pytest.mark.parametrize(("dtype", "bytes_received"), [(torch.bfloat16, 192), (torch.float32, 384)])
def test_a_sum_of_short_floats_is_reduced_before_it_is_widened(dtype: torch.dtype, bytes_received: int) -> None:
    mesh = weft.make_mesh({"tp": 4})
    x, w = torch.randn(8, 16, dtype=dtype), torch.randn(16, 8, dtype=dtype)
    with weft.comm_log() as log:
        y = (weft.shard(x, mesh, P(None, "tp")) @ weft.shard(w, mesh, P("tp"))).float().relu()
    torch.testing.assert_close(y.full_tensor().cpu(), (x @ w).float().relu(), rtol=0.02, atol=0.1)
    assert log.bytes_received == bytes_received


PROGRAMS = {
    "itself": lambda y: y.relu(),
    "a view": lambda y: y.t().relu(),
    "itself, then a view": lambda y: y.relu() + y.t().relu().t(),
    "with its own view": lambda y: torch.maximum(y, y.view(y.shape)),
    "what was computed of it": lambda y: (y.relu() - y * 2).relu(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_made_again_is_told_as_the_first_one(name: str) -> None:
    x, w = numbers(4, 8), numbers(8, 6, seed=1)
    ours = weft.shard(x, MESH, P("a", "b")), weft.shard(w, MESH, P("b", None))
    told = []
    for _ in range(3):
        with weft.comm_log() as log:
            result = PROGRAMS[name](ours[0] @ ours[1])
        torch.testing.assert_close(result.full_tensor(), PROGRAMS[name](x @ w))
        told.append(log.records)
        PROGRAMS[name](ours[0] @ ours[1])
    assert told[0]
    assert told[0] == told[1] == told[2]
    with weft.reshard_policy("raise"):
        for _ in range(2):
            with pytest.raises(weft.ReshardError):
                PROGRAMS[name](ours[0] @ ours[1])


def test_what_is_brought_beside_a_sum_is_told_again() -> None:
    x, w = weft.shard(numbers(4, 8), MESH, P(None, "a")), weft.shard(numbers(8, 6), MESH, P("a", "b"))
    other, told = weft.shard(numbers(4, 6), MESH, P("b", "a")), []
    for _ in range(3):
        with weft.comm_log() as log:
            (x @ w).mT @ other
        told.append(log.records)
    assert [record.kind for record in told[0]] == ["all_reduce", "all_gather"]
    assert told[0] == told[1] == told[2]


def gradients_of_norm(x: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
    """Those of weight and bias, which one op leaves pending."""
    one = weft.shard(torch.ones(3, dtype=torch.float64), MESH, P())
    statistics = rows(torch.ones(8, 1, dtype=torch.float64))
    kept = ([3], statistics, statistics, one, one, [False, True, True])
    _, weight, bias = torch.ops.aten.native_layer_norm_backward.default(x, x, *kept)
    return weight, bias


@pytest.mark.parametrize("is_written", [False, True])
def test_what_an_op_read_goes_when_it_is_no_longer_of_use(is_written: bool) -> None:
    x = rows(numbers(8, 3)) * 2
    one, other = gradients_of_norm(x)
    if is_written:
        x.add_(1)
    assert len(one.local_shards) == 4  # looked at, or found to be written to
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    assert len(other.local_shards) == 4


def test_several_pending_results_are_right_when_their_call_is_repeated() -> None:
    for seed in range(3):
        plain = numbers(8, 3, seed=seed)
        weight, bias = gradients_of_norm(rows(plain))
        for found, expected in ((weight, (plain * (plain - 1)).sum(0)), (bias, plain.sum(0))):
            torch.testing.assert_close(found.full_tensor(), expected)
            torch.testing.assert_close(summed(found), expected)


class _Marked(torch.autograd.Function):
    """Something in a graph whose life can be watched."""

    @staticmethod
    def forward(ctx, x, mark):
        ctx.mark = mark
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


class _Mark:
    pass


@pytest.mark.parametrize("is_backward", [False, True])
def test_what_is_detached_leaves_its_graph_behind(is_backward: bool) -> None:
    weight, marks, kept = weft.shard(numbers(3, 3), MESH, P()).requires_grad_(), [], []
    for seed in range(3):  # also when the calls are known
        mark = _Mark()
        marks.append(weakref.ref(mark))
        loss = _Marked.apply(rows(numbers(8, 3, seed=seed)) @ weight, mark).square().sum()
        del mark
        if is_backward:
            loss.backward()
        kept.append((loss.detach(), loss.item()))
        del loss
    gc.collect()
    assert [mark() for mark in marks] == [None] * 3
    for found, expected in kept:
        assert found._layout.pending
        torch.testing.assert_close(found.item(), expected)
        torch.testing.assert_close(summed(found).item(), expected)


@pytest.mark.parametrize("look_first", [False, True])
def test_detached_ones_share_memory_when_their_tensor_is_gone(look_first: bool) -> None:
    for _ in range(3):
        x = rows(numbers(8, 3)).requires_grad_().sum(0)
        one, other, expected = x.detach(), x.detach(), x.full_tensor().detach().clone()
        if look_first:
            assert len(other.local_shards) == 4
        del x
        gc.collect()
        one.mul_(2)
        torch.testing.assert_close(other.full_tensor(), expected * 2)
        torch.testing.assert_close(summed(other), expected * 2)


def test_what_was_read_goes_with_the_next_write() -> None:
    kept, read = [], []
    for seed in range(3):
        x = rows(numbers(8, 3, seed=seed)) * 2
        kept.append((x.sum(0), x.full_tensor().sum(0)))
        read.append(weakref.ref(x._value))
    torch.zeros(3)  # nothing of Weft's
    rows(numbers(8, 3)).add_(1)
    del x
    gc.collect()
    assert [each() for each in read] == [None] * 3
    for found, expected in kept:
        torch.testing.assert_close(found.full_tensor(), expected)
        torch.testing.assert_close(summed(found), expected)


def test_results_without_number_do_not_keep_what_was_read_without_number() -> None:
    read, kept = [], []
    for _ in range(400):
        x = rows(torch.ones(4, 2)) * 2
        kept.append(x.sum(0))
        read.append(weakref.ref(x._value))
    del x
    gc.collect()
    assert sum(each() is not None for each in read) <= 256
    for found in (kept[0], kept[-1]):
        torch.testing.assert_close(summed(found), torch.full((2,), 8.0))
