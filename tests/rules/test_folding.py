"""Products whose dims torch merges: a split sequence or split heads stay where they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

import weft
from weft import P

from .harness import GRID, memory, moved_bytes


@pytest.fixture(params=[False, True], ids=["unified", "separate"])
def separate(request: pytest.FixtureRequest) -> Iterator[bool]:
    with memory(request.param):
        yield request.param


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


HEADS = P("a", "b")
SEQUENCE = P("a", "b")
PRODUCTS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[tuple[int, ...], P]]]] = {
    "scores": (lambda q, k: q @ k.mT, [((4, 4, 6, 8), HEADS), ((4, 4, 6, 8), HEADS)]),
    "attention": (
        lambda q, k, v: (q @ k.transpose(-2, -1) / 3).softmax(-1) @ v,
        [((4, 4, 6, 8), HEADS)] * 3,
    ),
    "attention of one query": (
        lambda q, k, v: (q @ k.transpose(-2, -1) / 3).softmax(-1) @ v,
        [((4, 4, 1, 8), HEADS), ((4, 4, 6, 8), HEADS), ((4, 4, 6, 8), HEADS)],
    ),
    "products of single numbers": (torch.matmul, [((4, 4, 1, 1), HEADS), ((4, 4, 1, 1), HEADS)]),
    "heads beside the batch": (
        lambda q, k: torch.bmm(q.view(6, 16, 4).transpose(0, 1), k.view(6, 16, 4).permute(1, 2, 0)).view(4, 4, 6, 6),
        [((6, 4, 16), P(None, "a", "b"))] * 2,
    ),
    "there and back": (
        lambda x: x.view(6, 16, 4).transpose(0, 1).transpose(0, 1).reshape(6, 4, 16),
        [((6, 4, 16), P(None, "a", "b"))],
    ),
    "einsum of scores": (
        lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k),
        [((4, 4, 6, 8), HEADS), ((4, 4, 5, 8), HEADS)],
    ),
    "linear": (functional.linear, [((4, 6, 8), SEQUENCE), ((10, 8), P())]),
    "linear and bias": (functional.linear, [((4, 6, 8), SEQUENCE), ((10, 8), P()), ((10,), P())]),
    "linear to one": (functional.linear, [((4, 6, 8), SEQUENCE), ((1, 8), P()), ((1,), P())]),
    "linear of split features": (functional.linear, [((4, 6, 8), P(None, "a")), ((10, 8), P("b"))]),
    "perceptron": (
        lambda x, up, down: functional.linear(functional.gelu(functional.linear(x, up)), down),
        [((4, 6, 8), SEQUENCE), ((16, 8), P()), ((8, 16), P())],
    ),
    "batches of batches": (torch.matmul, [((3, 4, 5, 6), P(None, "a")), ((3, 4, 6, 2), P(None, "a"))]),
    "one for many": (torch.matmul, [((3, 4, 5, 6), P(None, "a")), ((6, 2), P())]),
}


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("name", PRODUCTS)
def test_what_torch_merges_does_not_move(name: str) -> None:
    function, given = PRODUCTS[name]
    plain = [numbers(*shape, seed=i).requires_grad_() for i, (shape, _) in enumerate(given)]
    ours = [weft.shard(x.detach(), GRID, spec).requires_grad_() for x, (_, spec) in zip(plain, given, strict=True)]
    expected = function(*plain)
    assert moved_bytes(lambda: function(*ours)) == 0
    result = function(*ours)
    torch.testing.assert_close(result.full_tensor(), expected)
    cotangent = numbers(*expected.shape, seed=9)
    expected.backward(cotangent)
    weights = sum(w.numel() for w, (_, spec) in zip(plain, given, strict=True) if not any(spec)) + 200
    moved = moved_bytes(lambda: result.backward(weft.shard(cotangent, GRID, result.mapping)))
    assert moved <= 2 * 8 * 4 * weights
    for x, y in zip(ours, plain, strict=True):
        torch.testing.assert_close(x.grad.full_tensor(), y.grad)
        assert x.grad._layout is x._layout


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize("keeps", [False, True])
def test_sums_of_folded_tensors_with_dims_of_one(keeps: bool) -> None:
    x = numbers(4, 4, 8)
    for shape in ((16, 1, 8), (1, 16, 8), (16, 8, 1), (1, 16, 1, 8)):
        ours = weft.shard(x, GRID, HEADS).view(shape)
        assert ours._value.fold is not None
        for dims in ([0], [1], [0, 1], [0, 2], [1, 2], [-1], list(range(len(shape)))):
            torch.testing.assert_close(ours.sum(dims, keeps).full_tensor(), x.view(shape).sum(dims, keeps))
            turned = ours.transpose(0, 1).sum(dims, keeps).full_tensor()
            torch.testing.assert_close(turned, x.view(shape).transpose(0, 1).sum(dims, keeps))


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize(
    ("shape", "spec", "to"),
    [
        ((4, 6, 8), P("a", "b"), (24, 8)),
        ((4, 1, 6, 8), P("a", None, "b"), (24, 8)),
        ((4, 6, 1, 8), P("a", "b"), (24, 1, 8)),
        ((6, 4, 16), P(None, "a", "b"), (6, 16, 4)),
        ((4, 4, 4, 2), P("a", "b"), (16, 8)),
    ],
)
def test_folded_tensors_show_what_is_written(shape: tuple[int, ...], spec: P, to: tuple[int, ...]) -> None:
    x, w = numbers(*shape), numbers(to[-1], 3, seed=1)
    ours, weight = weft.shard(x, GRID, spec), weft.shard(w, GRID, P())
    view, seen = ours.view(to), x.view(to)
    assert view._value.fold is not None
    writes = [lambda x, v: x.add_(1), lambda x, v: v.mul_(2), lambda x, v: x[1:].mul_(3), lambda x, v: v[:, 1:].sub_(1)]
    for write in writes:
        write(ours, view)
        write(x, seen)
        torch.testing.assert_close(ours.full_tensor(), x)
        torch.testing.assert_close((view @ weight).full_tensor(), seen @ w)
        torch.testing.assert_close((view.clone(memory_format=torch.contiguous_format) @ weight).full_tensor(), seen @ w)
        torch.testing.assert_close((view.view(shape) * 2).full_tensor(), seen.view(shape) * 2)


@pytest.mark.usefixtures("separate")
def test_folded_tensors_refuse_dims_that_they_do_not_have() -> None:
    view = weft.shard(numbers(4, 6, 8), GRID, SEQUENCE).view(24, 8)
    with pytest.raises(IndexError, match="Dimension out of range"):
        view.transpose(0, 2)
    with pytest.raises(IndexError, match="Dimension out of range"):
        view.permute(0, 3)
    with pytest.raises(RuntimeError):
        view.permute(0, 0)


@pytest.mark.usefixtures("separate")
@pytest.mark.parametrize(
    ("shape", "spec", "order", "to"),
    [
        ((8, 3, 6), P(None, "a"), (0, 2, 1), (8, 1, 18)),
        ((4, 6), P("a"), (1, 0), (2, 6, 2)),
        ((4, 3, 3), P(None, "a", "b"), (0, 2, 1), (4, 9)),
        ((6, 4, 3), P(("a", "b")), (2, 1, 0), (72,)),
    ],
)
def test_views_that_no_strides_can_say_are_refused(
    shape: tuple[int, ...], spec: P, order: tuple[int, ...], to: tuple[int, ...]
) -> None:
    turned = weft.shard(numbers(*shape), GRID, spec).permute(order)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        turned.view(to)
    torch.testing.assert_close(turned.reshape(to).full_tensor(), numbers(*shape).permute(order).reshape(to))


@pytest.mark.usefixtures("separate")
def test_copies_of_folded_tensors_are_their_own() -> None:
    x = numbers(6, 4, 16)
    view = weft.shard(x, GRID, P(None, "a", "b")).view(6, 16, 4)
    copied = view.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    copied.zero_()
    view.add_(1)
    torch.testing.assert_close(view.full_tensor(), x.view(6, 16, 4) + 1)
    assert not copied.full_tensor().any()
    assert copied.is_contiguous()
    assert view.transpose(0, 1).contiguous().stride() == copied.stride()


@pytest.mark.usefixtures("separate")
def test_a_folded_tensor_is_a_view_all_the_same() -> None:
    x, w = numbers(4, 6, 8), numbers(8, 3, seed=1)
    ours, weight = weft.shard(x, GRID, SEQUENCE), weft.shard(w, GRID, P())
    rows = ours.view(24, 8)
    assert rows._value.fold is not None
    torch.testing.assert_close((rows @ weight).full_tensor(), x.view(24, 8) @ w)
    ours.mul_(2)
    torch.testing.assert_close((rows @ weight).full_tensor(), (2 * x).view(24, 8) @ w)
    torch.testing.assert_close(rows.full_tensor(), (2 * x).view(24, 8))
    rows.add_(1)
    torch.testing.assert_close(ours.full_tensor(), 2 * x + 1)
    torch.testing.assert_close((rows.t() @ rows).full_tensor(), (2 * x + 1).view(24, 8).t() @ (2 * x + 1).view(24, 8))
    rows[3] = 5.0
    expected = 2 * x + 1
    expected.view(24, 8)[3] = 5
    torch.testing.assert_close((ours @ weight).full_tensor(), expected @ w)
    torch.testing.assert_close((rows @ weight).full_tensor(), expected.view(24, 8) @ w)


@pytest.mark.usefixtures("separate")
def test_a_folded_tensor_can_become_another_and_be_copied() -> None:
    x, w = weft.shard(numbers(4, 6, 8), GRID, SEQUENCE), weft.shard(numbers(8, 3, seed=1), GRID, P())
    rows = x.view(24, 8)
    assert rows._value.fold is not None
    for copied in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        assert type(copied) is weft.Tensor
        torch.testing.assert_close((copied @ w).full_tensor(), (rows @ w).full_tensor())
    rows.data = weft.shard(numbers(24, 8, seed=2), GRID, P("a"))
    torch.testing.assert_close((rows @ w).full_tensor(), numbers(24, 8, seed=2) @ numbers(8, 3, seed=1))
    torch.testing.assert_close((x @ w).full_tensor(), numbers(4, 6, 8) @ numbers(8, 3, seed=1))


@pytest.mark.usefixtures("separate")
def test_a_folded_view_of_a_view_shows_what_is_written_to_the_first() -> None:
    whole = weft.shard(numbers(6, 6, 8), GRID, SEQUENCE)
    w = numbers(8, 3, seed=1)
    rows = whole[1:5].view(24, 8)
    whole.mul_(3)
    expected = (numbers(6, 6, 8) * 3)[1:5].view(24, 8)
    torch.testing.assert_close((rows @ weft.shard(w, GRID, P())).full_tensor(), expected @ w)
    with torch.no_grad():
        whole.detach().add_(1)
    torch.testing.assert_close((rows @ weft.shard(w, GRID, P())).full_tensor(), (expected + 1) @ w)


@pytest.mark.usefixtures("separate")
def test_what_is_no_product_makes_the_exchange() -> None:
    x = weft.shard(numbers(4, 6, 8), GRID, SEQUENCE)
    rows = x.view(24, 8)
    with weft.comm_log() as log:
        torch.testing.assert_close(rows.exp().full_tensor(), numbers(4, 6, 8).exp().view(24, 8))
    assert {record.op for record in log if record.implicit} == {"reshape"}
    assert moved_bytes(lambda: rows + 1) == 0
    assert rows.view(4, 6, 8)._layout is x._layout
    assert rows.sum(0)._layout.pending_axes == ("a", "b")


@pytest.mark.usefixtures("separate")
def test_a_split_sequence_stays_split_through_a_block() -> None:
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=True, dropout=0.0, dtype=torch.float64
    )
    x = numbers(4, 6, 8)
    expected = x + layer._ff_block(layer.norm2(x))
    weft.nn.shard_module(layer, GRID, {})
    given = weft.shard(x, GRID, SEQUENCE)
    assert moved_bytes(lambda: given + layer._ff_block(layer.norm2(given))) == 0
    torch.testing.assert_close((given + layer._ff_block(layer.norm2(given))).full_tensor(), expected)
