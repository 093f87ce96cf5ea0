"""The harness that all rules are tested with can fail."""

from __future__ import annotations

import pytest
import torch

from weft.sharding.layout import Layout

from .harness import GRID, LINE, check, combinations, laid, layouts, memory


def test_a_wrong_op_is_found() -> None:
    def local_maximum(x: torch.Tensor) -> torch.Tensor:
        shards = getattr(x, "local_shards", [x])
        return x * 0 + max((shard.detach().max() for shard in shards if shard.numel()), key=float)

    check(lambda x: x * 0 + x.detach().amax(), torch.randn(5, 4, dtype=torch.float64))
    with pytest.raises(AssertionError, match=r"output 0"):
        check(local_maximum, torch.randn(5, 4, dtype=torch.float64))


def test_a_wrong_gradient_is_found() -> None:
    with pytest.raises(AssertionError, match=r"gradient 0"):
        check(
            lambda x: x.detach() + x - x.detach() if hasattr(x, "mesh") else 2 * x - x.detach(), torch.ones(4).double()
        )


def test_every_layout_of_every_input_occurs() -> None:
    tensors = [torch.zeros(4, 4), torch.zeros(3)]
    found = combinations(LINE, tensors, limit=2, pending=True)
    assert {a for a, _ in found} == set(layouts(LINE, 2))
    assert {b for _, b in found} == set(layouts(LINE, 1))
    assert len(combinations(GRID, tensors, limit=8, pending=True)) == 8


@pytest.mark.parametrize("separate", [False, True])
def test_pending_values_are_the_sum_of_different_contributions(separate: bool) -> None:
    x = torch.randn(7, 4, dtype=torch.float64)
    with memory(separate):
        for layout in layouts(LINE, 2):
            torch.testing.assert_close(laid(x, layout).full_tensor(), x)
        shards = laid(x, Layout(LINE, [(), ()], [("x", layouts(LINE, 2)[-1].pending[0][1])])).local_shards
        assert not torch.equal(shards[1], torch.zeros_like(x))
        assert not torch.equal(shards[0], x)
