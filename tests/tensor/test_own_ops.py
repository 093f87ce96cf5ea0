"""Ops of a program's own: they run on whole values until a rule says how they may be split."""

from __future__ import annotations

import itertools

import pytest
import torch

import weft
from weft import P

_numbers = itertools.count()


def own_op() -> torch.library.CustomOpDef:
    """An op that nobody has called yet, with a gradient."""

    @torch.library.custom_op(f"own{next(_numbers)}::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    scaled.register_fake(lambda x, factor: torch.empty_like(x))
    scaled.register_autograd(
        lambda ctx, g: (g * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    return scaled


@pytest.mark.parametrize("called", [False, True])
def test_a_rule_holds_from_when_it_is_registered(memory: str, called: bool) -> None:
    mesh, scaled = weft.make_mesh({"dp": 2, "tp": 2}), own_op()
    x = weft.shard(torch.randn(4, 6), mesh, P("dp", "tp")).requires_grad_()
    if called:
        for _ in range(2):
            assert scaled(x, 3.0).mapping.spec == P(None, None)
    weft.register_rule(scaled, "... -> ...")
    for _ in range(2):
        y = scaled(x, 3.0)
        assert y.mapping.spec == P("dp", "tp")
        assert torch.equal(y.full_tensor(), x.full_tensor() * 3)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert g.full_tensor().eq(3).all()
