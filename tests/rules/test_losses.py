"""Losses in every layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as nn

from weft.sharding.layout import Layout

from .case import Case
from .harness import GRID, LINE, laid, memory, moves

REDUCTIONS = ["none", "mean", "sum"]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _batchmean(reduction: str) -> str:
    return "batchmean" if reduction == "mean" else reduction


ELEMENTWISE = {
    "mse": nn.mse_loss,
    "l1": nn.l1_loss,
    "smooth l1": nn.smooth_l1_loss,
    "huber": lambda x, y, reduction: nn.huber_loss(x, y, reduction=reduction, delta=0.5),
    "soft margin": lambda x, y, reduction: nn.soft_margin_loss(x, y.detach().sign(), reduction=reduction),
    "bce": lambda x, y, reduction: nn.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction=reduction),
    "bce of logits": lambda x, y, reduction: nn.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=reduction),
    "kl_div": lambda x, y, reduction: nn.kl_div(x.log_softmax(1), y.softmax(1), reduction=_batchmean(reduction)),
    "poisson": lambda x, y, reduction: nn.poisson_nll_loss(x, y.exp(), reduction=reduction),
    "hinge": lambda x, y, reduction: nn.hinge_embedding_loss(x, y.sign(), reduction=reduction),
    "cosine": lambda x, y, reduction: nn.cosine_embedding_loss(
        x, y, torch.tensor([1, -1, 1, 1, -1]), reduction=reduction
    ),
    "gaussian": lambda x, y, reduction: nn.gaussian_nll_loss(x, y, y.square() + 1, reduction=reduction),
}


PAIRS = {
    f"{name}, {reduction}": Case(
        lambda x, y, loss=loss, reduction=reduction: loss(x, y, reduction=reduction),
        (numbers(5, 4), numbers(5, 4, seed=1)),
    )
    for name, loss in ELEMENTWISE.items()
    for reduction in REDUCTIONS
}
PAIRS["bce of logits, weighted"] = Case(
    lambda x, y, w, p: nn.binary_cross_entropy_with_logits(x, y.sigmoid(), w.detach(), pos_weight=p.detach()),
    (numbers(5, 4), numbers(5, 4, seed=1), numbers(4, seed=2).square(), numbers(4, seed=3).square()),
    limit=5,
)


@pytest.mark.parametrize("name", PAIRS)
def test_elementwise(name: str) -> None:
    PAIRS[name].check()


TARGETS = torch.tensor([0, 3, -100, 2, 1])


Loss = Callable[..., torch.Tensor]
PICKED: dict[str, tuple[Loss, tuple[torch.Tensor, ...]]] = {
    "cross_entropy": (nn.cross_entropy, (numbers(5, 4), TARGETS)),
    "cross_entropy, weighted": (
        lambda x, t, w, reduction: nn.cross_entropy(x, t, w.detach().square(), reduction=reduction),
        (numbers(5, 4), TARGETS, numbers(4)),
    ),
    "cross_entropy, smoothed": (
        lambda x, t, reduction: nn.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1),
        (numbers(5, 4), TARGETS),
    ),
    "cross_entropy of shares": (
        lambda x, t, reduction: nn.cross_entropy(x, t.softmax(1), reduction=reduction),
        (numbers(5, 4), numbers(5, 4, seed=1)),
    ),
    "cross_entropy of sequences": (nn.cross_entropy, (numbers(2, 4, 5), TARGETS.repeat(2, 1))),
    "cross_entropy of images": (nn.cross_entropy, (numbers(2, 4, 1, 5), TARGETS.repeat(2, 1, 1))),
    "cross_entropy of one sample": (nn.cross_entropy, (numbers(4), torch.tensor(2))),
    "nll_loss of bytes": (
        lambda x, t, reduction: nn.nll_loss(x, t, ignore_index=3, reduction=reduction),
        (numbers(5, 4), TARGETS.clamp(min=0).to(torch.uint8)),
    ),
    "multi margin": (
        lambda x, reduction: nn.multi_margin_loss(x, TARGETS.clamp(min=0), reduction=reduction),
        (numbers(5, 4),),
    ),
    "triplet margin": (
        lambda x, y, reduction: nn.triplet_margin_loss(x, y, x * y, reduction=reduction),
        (numbers(5, 4), numbers(5, 4, seed=1)),
    ),
}
CLASSES = {
    f"{name}, {reduction}": Case(
        lambda *given, loss=loss, reduction=reduction: loss(*given, reduction=reduction), tensors
    )
    for name, (loss, tensors) in PICKED.items()
    for reduction in REDUCTIONS
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_and_margins(name: str) -> None:
    CLASSES[name].check()


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_loss_of_logits_has_the_dtype_of_its_targets(reduction: str, separate: bool) -> None:
    """Torch writes it over what it made of them, whatever the weights are."""
    for dtype, of_targets in ((torch.bfloat16, torch.bfloat16), (torch.float64, torch.float32)):
        x, y, w = numbers(6, 3).to(dtype), numbers(6, 3, seed=1).sigmoid().to(of_targets), torch.tensor([2.0, 1.0, 3.0])
        expected = nn.binary_cross_entropy_with_logits(x, y, w, pos_weight=w, reduction=reduction)
        with memory(separate):
            given, targets = (laid(each, Layout(LINE, [("x",), ()])) for each in (x, y))
            found = nn.binary_cross_entropy_with_logits(given, targets, w, pos_weight=w, reduction=reduction)
            torch.testing.assert_close(found.full_tensor(), expected)


@pytest.mark.parametrize("separate", [False, True])
def test_a_split_batch_moves_two_scalars(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(6, 40), Layout(LINE, [("x",), ()])).requires_grad_()
        target = laid(torch.arange(6), Layout(LINE, [("x",)]))
        assert moves(lambda: nn.cross_entropy(x, target).item()) == {"all_reduce": 2}
        loss = nn.cross_entropy(x, target)
        assert moves(loss.backward).get("all_gather", 0) == 0


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_split_classes_are_not_gathered(reduction: str, weighted: bool, separate: bool) -> None:
    """Of many classes split over devices, only what each reduces moves; the gradient stays where the scores are."""
    x, target = numbers(4, 300000), torch.tensor([0, 299999, -100, 1234])
    weight = numbers(300000, seed=1).square() if weighted else None
    plain = x.clone().requires_grad_()
    expected = nn.cross_entropy(plain, target, weight, reduction=reduction)
    with memory(separate):
        for layout in (Layout(LINE, [(), ("x",)]), Layout(GRID, [("a",), ("b",)]), Layout(GRID, [(), ("b", "a")])):
            given = laid(x, layout).requires_grad_()
            classes = None if weight is None else laid(weight, Layout(layout.mesh, [layout.splits[1]]))
            labels = laid(target, Layout(layout.mesh, [layout.splits[0]]))
            moved = {}

            def step(given=given, labels=labels, classes=classes) -> torch.Tensor:
                loss = nn.cross_entropy(given, labels, classes, reduction=reduction)
                loss.sum().backward()
                return loss

            if not weighted:
                moved = moves(step)
                given.grad = None
            loss = step()
            assert "all_gather" not in moved
            torch.testing.assert_close(loss.detach().full_tensor(), expected.detach())
            torch.testing.assert_close(
                given.grad.full_tensor(), torch.autograd.grad(expected.sum(), plain, retain_graph=True)[0]
            )
            assert given.grad._layout is layout


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_softmax_along_a_long_split_dim_is_not_gathered(function: object, separate: bool) -> None:
    x = numbers(4, 300000)
    plain = x.clone().requires_grad_()
    expected = function(plain, 1)
    expected.backward(numbers(4, 300000, seed=1))
    with memory(separate):
        for layout in (Layout(LINE, [(), ("x",)]), Layout(GRID, [("a",), ("b",)])):
            given = laid(x, layout).requires_grad_()
            out = function(given, 1)
            assert set(moves(lambda given=given: function(given, 1))) == {"all_reduce"}
            assert out._layout is layout
            torch.testing.assert_close(out.detach().full_tensor(), expected.detach())
            grad = laid(numbers(4, 300000, seed=1), layout)
            assert set(moves(lambda out=out, grad=grad: out.backward(grad))) == {"all_reduce"}
            torch.testing.assert_close(given.grad.full_tensor(), plain.grad)
