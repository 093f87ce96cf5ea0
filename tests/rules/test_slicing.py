"""Slices, pads, rolls and repeats of tensors in any layout are those of the whole tensor; what was split stays split."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from .case import Case
from .harness import GRID, LINE, laid, layouts, memory

X = torch.randn(5, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

SLICES: dict[str, Callable[[torch.Tensor], object]] = {
    "slice": lambda x: x[1:4],
    "slice middle": lambda x: x[:, 2:5],
    "slice step": lambda x: x[::2, 1::3],
    "slice empty": lambda x: x[3:3],
    "slice all": lambda x: x[:],
    "slice beyond": lambda x: x[-3:99],
    "slices of slices": lambda x: x[1:][1:, :3][:, 1:],
    "select": lambda x: x[2],
    "select last": lambda x: x[..., -1],
    "select each": lambda x: (x[0], x[4], x[:, 3], x[1, 2], x[1, 2, 3]),
    "none": lambda x: x[None, 1:3, None],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "split": lambda x: x.split(2),
    "split sizes": lambda x: x.split([1, 3, 2], dim=1),
    "chunk": lambda x: x.chunk(3, dim=1),
    "tensor_split": lambda x: x.tensor_split(3),
    "unbind": lambda x: x.unbind(1),
    "hsplit": lambda x: x.hsplit(3),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2),
    "flip": lambda x: x.flip(0),
    "flip several": lambda x: x.flip(0, 2),
    "fliplr": lambda x: x.fliplr(),
    "rot90": lambda x: torch.rot90(x, 1, (0, 1)),
    "roll": lambda x: x.roll(2, 0),
    "roll back": lambda x: x.roll(-1, 1),
    "roll several": lambda x: x.roll((1, 3, 5), (0, 1, 0)),
    "roll flat": lambda x: x.roll(7),
    "pad": lambda x: functional.pad(x, (1, 2)),
    "pad outer": lambda x: functional.pad(x, (0, 0, 0, 0, 2, 1), value=3.0),
    "pad cuts": lambda x: functional.pad(x, (0, 1, -1, 2, 1, -2)),
    "pad reflects": lambda x: functional.pad(x, (1, 1), mode="reflect"),
    "pad replicates": lambda x: functional.pad(x, (1, 1), mode="replicate"),
    "pad circular": lambda x: functional.pad(x, (1, 2), mode="circular"),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "repeat new": lambda x: x.repeat(2, 1, 3, 2),
    "tile": lambda x: x.tile(2, 2),
    "unfold": lambda x: x.unfold(0, 3, 2),
    "unfold last": lambda x: x.unfold(-1, 2, 1),
    "tril": lambda x: x.tril(),
    "tril above": lambda x: x.tril(2),
    "triu": lambda x: x.triu(-1),
    "diagonal": lambda x: x.diagonal(),
    "diagonal of others": lambda x: x.diagonal(1, 2, 0),
    "diag": lambda x: x[:, :, 0].diag(1),
    "diag of a vector": lambda x: x[:, 0, 0].diag(),
    "diag_embed": lambda x: x.diag_embed(1, 0, 2),
    "diagflat": lambda x: x[0].diagflat(),
    "trace": lambda x: x[0].trace(),
    "take first, add": lambda x: x[:1] + x,
    "shifted difference": lambda x: x[1:] - x[:-1],
    "diff": lambda x: x.diff(dim=1),
}


CASES = {name: Case(function, (X,), limit=8) for name, function in SLICES.items()}


@pytest.mark.parametrize("name", CASES)
def test_slices_of_any_layout(name: str) -> None:
    CASES[name].check()


SCATTERS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "slice_scatter": lambda x, y: x.slice_scatter(y[:2], 0, 1, 3),
    "slice_scatter step": lambda x, y: x.slice_scatter(y[:, :3], 1, 0, 6, 2),
    "select_scatter": lambda x, y: x.select_scatter(y[1], 0, 3),
    "select_scatter last": lambda x, y: x.select_scatter(y[..., 1], 2, -1),
    "diagonal_scatter": lambda x, y: x.diagonal_scatter(y.diagonal()),
    "as_strided_scatter": lambda x, y: x.contiguous().as_strided_scatter(y[0, :2, :2].contiguous(), (2, 2), (4, 1), 2),
}


INTO = {name: Case(function, (X, X.roll(1, 0) * 2)) for name, function in SCATTERS.items()}


@pytest.mark.parametrize("name", INTO)
def test_scatters_into_any_layout(name: str) -> None:
    INTO[name].check()


@given(st.data())
def test_any_index_of_any_layout(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=3), label="shape"))
    mesh = data.draw(st.sampled_from([LINE, GRID]), label="mesh")
    layout = data.draw(st.sampled_from(layouts(mesh, len(shape))), label="layout")
    steps = st.tuples(st.none() | st.integers(-8, 8), st.none() | st.integers(-8, 8), st.none() | st.integers(1, 4))
    index: list[slice | int | None] = []
    for size in shape:
        part = steps.map(lambda step: slice(*step))
        index.append(data.draw(part | st.integers(-size, size - 1) if size else part, label="index"))
    x = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    where = tuple(index)
    with memory(data.draw(st.booleans(), label="separate")):
        ours = laid(x, layout).requires_grad_()
        taken = ours[where]
        assert taken.full_tensor().equal(x[where])  # type: ignore[attr-defined]
        (taken * 3).sum().backward()
        expected = torch.zeros_like(x)
        expected[where] = 3
        assert ours.grad.full_tensor().equal(expected)  # type: ignore[union-attr]
        with torch.no_grad():
            ours[where] = -1.0
            changed = x.clone()
            changed[where] = -1
        assert ours.detach().full_tensor().equal(changed)
