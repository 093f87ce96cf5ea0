"""Activations are brought to the layouts that are asked for, and keep their values and gradients."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import weft
from weft import P

MESH = weft.make_mesh({"dp": 2, "tp": 2})


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, scale: int = 1) -> tuple[torch.Tensor, int]:
        return x * scale, scale


def test_arguments_and_results_lie_as_asked() -> None:
    seen = {}

    class Watch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen["inside"] = x.mapping.spec
            return x + 1

    m = nn.Sequential(nn.Identity(), Watch())
    weft.nn.shard_activations(m, MESH, inputs={"1": P("tp")}, outputs={"1": P(None, "dp"), "*": P()})
    x = torch.randn(4, 6, requires_grad=True)
    y = m(x)
    assert seen["inside"] == P("tp")
    assert y.mapping.spec == P(None, "dp")
    assert torch.equal(y.full_tensor(), x + 1)
    (y * y).sum().backward()
    assert torch.allclose(x.grad, 2 * (x + 1).detach())


def test_the_first_of_several_is_laid_out() -> None:
    m = nn.Sequential()
    m.add_module("pair", Pair())
    weft.nn.shard_activations(m, MESH, inputs={"pair": P("dp")}, outputs={"pair": P("tp")})
    y, scale = m.pair(torch.ones(4), 3)
    assert (y.mapping.spec, scale) == (P("tp"), 3)


def test_what_lies_there_already_is_left_alone() -> None:
    m = weft.nn.shard_activations(nn.Sequential(nn.Identity()), MESH, inputs={"0": P("dp")})
    x = weft.shard(torch.ones(4), MESH, P("dp"))
    assert m(x) is x


ERRORS = {
    "a misspelt name": ({"atention": P()}, ValueError, "the pattern 'atention' matches no submodule of this module. Close names: 'attention'"),
    "not a tensor": ({"attention": P()}, TypeError, "shard_activations lays out a tensor, but Identity was given or returned a int first"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_is_said(case: str) -> None:
    patterns, error, message = ERRORS[case]
    m = nn.ModuleDict({"attention": nn.Identity()})
    with pytest.raises(error, match=re.escape(message)):
        weft.nn.shard_activations(m, MESH, inputs=patterns).attention(3)
