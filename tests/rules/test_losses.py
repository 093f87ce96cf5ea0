"""Losses in every layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nn

from weft.sharding.layout import Layout

from .harness import LINE, check, laid, memory, moves

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


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, reduction: str) -> None:
    check(lambda x, y: ELEMENTWISE[name](x, y, reduction=reduction), numbers(5, 4), numbers(5, 4, seed=1))


def test_bce_with_weights() -> None:
    check(
        lambda x, y, w, p: nn.binary_cross_entropy_with_logits(x, y.sigmoid(), w.detach(), pos_weight=p.detach()),
        *(numbers(5, 4), numbers(5, 4, seed=1), numbers(4, seed=2).square(), numbers(4, seed=3).square()),
        limit=5,
    )


TARGETS = torch.tensor([0, 3, -100, 2, 1])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy(reduction: str) -> None:
    check(lambda x, t: nn.cross_entropy(x, t, reduction=reduction), numbers(5, 4), TARGETS)
    check(
        lambda x, t, w: nn.cross_entropy(x, t, w.detach().square(), reduction=reduction),
        numbers(5, 4),
        TARGETS,
        numbers(4),
    )
    check(
        lambda x, t: nn.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1), numbers(5, 4), TARGETS, limit=6
    )
    check(lambda x, t: nn.cross_entropy(x, t.softmax(1), reduction=reduction), numbers(5, 4), numbers(5, 4, seed=1))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_of_images_and_of_one_sample(reduction: str) -> None:
    check(lambda x, t: nn.cross_entropy(x, t, reduction=reduction), numbers(2, 4, 5), TARGETS.repeat(2, 1))
    check(lambda x, t: nn.cross_entropy(x, t, reduction=reduction), numbers(2, 4, 1, 5), TARGETS.repeat(2, 1, 1))
    check(lambda x, t: nn.cross_entropy(x, t, reduction=reduction), numbers(4), torch.tensor(2))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins(reduction: str) -> None:
    check(lambda x: nn.multi_margin_loss(x, TARGETS.clamp(min=0), reduction=reduction), numbers(5, 4))
    check(
        lambda x, y: nn.triplet_margin_loss(x, y, x * y, reduction=reduction),
        numbers(5, 4),
        numbers(5, 4, seed=1),
        limit=6,
    )


@pytest.mark.parametrize("separate", [False, True])
def test_a_split_batch_moves_two_scalars(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(6, 40), Layout(LINE, [("x",), ()])).requires_grad_()
        target = laid(torch.arange(6), Layout(LINE, [("x",)]))
        assert moves(lambda: nn.cross_entropy(x, target).item()) == {"all_reduce": 2}
        loss = nn.cross_entropy(x, target)
        assert moves(loss.backward).get("all_gather", 0) == 0
