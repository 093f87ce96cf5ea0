"""A vocabulary that is split: losses reduce one number for each word, and lookups move no ids, with all that losses can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn.functional import cross_entropy, embedding, linear

import weft
from tests.rules.harness import memory
from weft import P

WORDS, CLASSES = 96, 4099
"""Not a multiple of the devices, and large enough that gathering would be dearer."""

KINDS: dict[str, dict[str, object]] = {
    "mean": {},
    "each": {"reduction": "none"},
    "sum": {"reduction": "sum"},
    "smoothed": {"label_smoothing": 0.1},
    "others ignored": {"ignore_index": 7},
    "weighted": {"weight": True},
    "weighted and smoothed": {"weight": True, "label_smoothing": 0.2},
}


@pytest.fixture(params=["apart", "one"], autouse=True)
def where(request: pytest.FixtureRequest) -> Iterator[None]:
    with memory(request.param == "apart"):
        yield


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [{"tp": 4}, {"dp": 2, "tp": 4}])
def test_a_loss_reduces_numbers_of_words_and_gathers_no_scores(kind: str, axes: dict[str, int]) -> None:
    mesh = weft.make_mesh(axes)
    rows = "dp" if "dp" in axes else None
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(WORDS, CLASSES, dtype=torch.float64, generator=generator).requires_grad_()
    target = torch.randint(CLASSES, (WORDS,), generator=generator)
    target[3], target[5] = -100, 7
    options = dict(KINDS[kind])
    laid = weft.shard(scores.detach(), mesh, P(rows, "tp")).requires_grad_()
    named = weft.shard(target, mesh, P(rows))
    given = dict(options)
    if "weight" in options:
        options["weight"] = torch.rand(CLASSES, dtype=torch.float64, generator=generator)
        given["weight"] = weft.shard(options["weight"], mesh, P("tp"))
    if "ignore_index" in options:
        target[3] = 7
        named = weft.shard(target, mesh, P(rows))
    expected = cross_entropy(scores, target, **options)
    expected.sum().backward()
    with weft.comm_log() as log:
        found = cross_entropy(laid, named, **given)
        found.sum().backward()
    torch.testing.assert_close(found.full_tensor(), expected)
    torch.testing.assert_close(laid.grad.full_tensor(), scores.grad)
    assert laid.grad._layout == laid._layout
    assert max(r.bytes_received for r in log) <= 8 * 2 * WORDS, "no more than a number for each word, there and back"


def test_a_small_vocabulary_gathers_no_scores_of_many_words() -> None:
    mesh = weft.make_mesh({"tp": 4})
    words, classes = 1024, 256
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(words, classes, generator=generator).requires_grad_()
    target = torch.randint(classes, (words,), generator=generator)
    laid = weft.shard(scores.detach(), mesh, P(None, "tp")).requires_grad_()
    with weft.comm_log() as log:
        found = cross_entropy(laid, weft.shard(target, mesh, P()))
        found.backward()
    cross_entropy(scores, target).backward()
    torch.testing.assert_close(laid.grad.full_tensor(), scores.grad)
    assert set(log.counts()) == {"all_reduce"}
    assert log.bytes_received <= 4 * 2 * 4 * words, "four numbers for each word, there and back"


def of_probabilities(x: torch.Tensor, table: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    scores = linear(x, table)
    return cross_entropy(scores, (2 * scores.detach()).softmax(-1), label_smoothing=0.1)


def with_sums(x: torch.Tensor, table: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss, and what keeps the sums that scores are divided by small."""
    scores = linear(x, table)
    return cross_entropy(scores, target) + 1e-2 * scores.logsumexp(-1).square().mean()


def of_product(x: torch.Tensor, table: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if not hasattr(torch.nn.functional, "linear_cross_entropy"):
        return cross_entropy(linear(x, table), target, label_smoothing=0.1)
    return torch.nn.functional.linear_cross_entropy(x, table, target, label_smoothing=0.1)


@pytest.mark.parametrize("loss", [of_probabilities, with_sums, of_product])
@pytest.mark.parametrize("axes", [{"tp": 4}, {"dp": 2, "tp": 4}])
def test_losses_of_products_with_a_split_table_gather_neither(
    loss: Callable[..., torch.Tensor], axes: dict[str, int]
) -> None:
    mesh, rows = weft.make_mesh(axes), "dp" if "dp" in axes else None
    generator = torch.Generator().manual_seed(0)
    x, table = (torch.randn(n, 16, dtype=torch.float64, generator=generator) / 4 for n in (WORDS, CLASSES))
    target = torch.randint(CLASSES, (WORDS,), generator=generator)
    plain = [each.clone().requires_grad_() for each in (x, table)]
    there = [weft.shard(each, mesh, spec).requires_grad_() for each, spec in ((x, P(rows)), (table, P("tp")))]
    expected = loss(*plain, target)
    expected.backward()
    with weft.comm_log() as log:
        found = loss(*there, weft.shard(target, mesh, P(rows)))
        found.backward()
    torch.testing.assert_close(found.full_tensor(), expected)
    for ours, theirs in zip(there, plain, strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
        assert ours.grad._layout == ours._layout
    assert set(log.counts()) == {"all_reduce"}


@pytest.mark.parametrize("axes", [{"tp": 4}, {"dp": 2, "tp": 4}])
def test_a_lookup_moves_no_ids_and_its_gradient_no_table(axes: dict[str, int]) -> None:
    mesh = weft.make_mesh(axes)
    rows = "dp" if "dp" in axes else None
    table, ids = torch.randn(CLASSES, 8, dtype=torch.float64).requires_grad_(), torch.randint(CLASSES, (8, 6))
    laid = weft.shard(table.detach(), mesh, P("tp")).requires_grad_()
    flow = torch.randn(8, 6, 8, dtype=torch.float64)
    with weft.comm_log() as log:
        found = embedding(weft.shard(ids, mesh, P(rows)), laid)
    assert len(log) == 0
    assert [axis for axis, _ in found._layout.pending] == ["tp"]
    with weft.comm_log() as log:
        found.backward(weft.shard(flow, mesh, P(rows)))
    assert not any("tp" in r.axes for r in log)
    embedding(ids, table).backward(flow)
    torch.testing.assert_close(laid.grad.full_tensor(), table.grad)
