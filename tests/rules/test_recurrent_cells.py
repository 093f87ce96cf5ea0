"""Cells of GPUs over a split batch, with stand-ins for their kernels: nothing but the gradients of biases moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import weft
from weft import P

from .harness import memory

aten = torch.ops.aten
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="stand-ins for the kernels of a GPU, which is here")
MESH = weft.make_mesh({"dp": 4})
Maybe = torch.Tensor | None


def lstm(gates: torch.Tensor, hidden: torch.Tensor, cells: torch.Tensor, bias: Maybe = None, other: Maybe = None):
    total = gates + hidden if bias is None or other is None else gates + hidden + bias + other
    i, f, c, o = total.chunk(4, 1)
    i, f, c, o = i.sigmoid(), f.sigmoid(), c.tanh(), o.sigmoid()
    last = f * cells + i * c
    return o * last.tanh(), last, torch.cat([i, f, c, o], 1)


def lstm_backward(of_hy: Maybe, of_cy: Maybe, cells: torch.Tensor, last: torch.Tensor, notes: torch.Tensor, bias: bool):
    i, f, c, o = notes.chunk(4, 1)
    none = torch.zeros_like(cells)
    of_hy, of_cy = none if of_hy is None else of_hy, none if of_cy is None else of_cy
    of_last = of_hy * o * (1 - last.tanh() ** 2) + of_cy
    of_gates = [of_last * c * i * (1 - i), of_last * cells * f * (1 - f), of_last * i * (1 - c * c)]
    gates = torch.cat([*of_gates, of_hy * last.tanh() * o * (1 - o)], 1)
    return gates, of_last * f, gates.sum(0) if bias else None


def gru(gates: torch.Tensor, hidden: torch.Tensor, states: torch.Tensor, bias: Maybe = None, other: Maybe = None):
    if bias is not None and other is not None:
        gates, hidden = gates + bias, hidden + other
    (r, z, n), (hr, hz, hn) = gates.chunk(3, 1), hidden.chunk(3, 1)
    r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
    n = (n + r * hn).tanh()
    return n + z * (states - n), torch.cat([r, z, n, states, hn], 1)


def gru_backward(of_hy: torch.Tensor, notes: torch.Tensor, bias: bool):
    r, z, n, states, hn = notes.chunk(5, 1)
    of_z = of_hy * (states - n) * z * (1 - z)
    of_n = of_hy * (1 - z) * (1 - n * n)
    of_r = of_n * hn * r * (1 - r)
    gates, hidden = torch.cat([of_r, of_z, of_n], 1), torch.cat([of_r, of_z, of_n * r], 1)
    return gates, hidden, of_hy * z, *((gates.sum(0), hidden.sum(0)) if bias else (None, None))


KERNELS = {
    "_thnn_fused_lstm_cell": lstm,
    "_thnn_fused_lstm_cell_backward_impl": lstm_backward,
    "_thnn_fused_gru_cell": gru,
    "_thnn_fused_gru_cell_backward": gru_backward,
}
CELLS = {
    "LSTM": (aten._thnn_fused_lstm_cell, torch.lstm_cell, 4),
    "GRU": (aten._thnn_fused_gru_cell, torch.gru_cell, 3),
}


@pytest.fixture(params=[True, False], ids=["apart", "one memory"], autouse=True)
def stored(request: pytest.FixtureRequest) -> Iterator[None]:
    with memory(request.param), torch.library._scoped_library("aten", "IMPL") as library:
        for name, kernel in KERNELS.items():
            library.impl(name, kernel, "CPU")
        yield


def grown(fused, given: list[torch.Tensor], biases: list[torch.Tensor]) -> list[torch.Tensor]:
    results = fused(*given, *biases)[: 2 if fused is aten._thnn_fused_lstm_cell else 1]
    loss = results[0].square().sum()
    (loss if len(results) == 1 else loss + 2 * results[1].sum()).backward()
    return [*results, *(x.grad for x in (*given, *biases))]


@pytest.mark.parametrize("has_biases", [True, False])
@pytest.mark.parametrize("batch", [8, 3])
@pytest.mark.parametrize("name", CELLS)
def test_a_split_batch_stays_split(name: str, batch: int, has_biases: bool) -> None:
    fused, _, gates = CELLS[name]
    shapes = [(batch, 5 * gates), (batch, 5 * gates), (batch, 5), *([(5 * gates,)] * (2 if has_biases else 0))]
    plain = [torch.randn(shape).requires_grad_() for shape in shapes]
    expected = grown(fused, plain[:3], plain[3:])
    for _ in range(2):  # the second time repeats what is known
        ours = [weft.shard(x.detach(), MESH, P("dp") if x.dim() == 2 else P()).requires_grad_() for x in plain]
        with weft.comm_log() as log:
            found = grown(fused, ours[:3], ours[3:])
        assert {record.op for record in log if record.total_bytes} <= {"gradient"}
        assert bool(log) is has_biases
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.full_tensor(), other, rtol=1e-4, atol=1e-5)
        assert found[0].placements == ours[2].placements


@pytest.mark.parametrize("name", CELLS)
def test_the_stand_ins_are_cells(name: str) -> None:
    """Otherwise these tests could pass with kernels that give anything."""
    fused, cell, gates = CELLS[name]
    x, h, c, w, v = (torch.randn(shape) for shape in ((4, 3), (4, 5), (4, 5), (5 * gates, 3), (5 * gates, 5)))
    biases = [torch.randn(5 * gates) for _ in range(2)]
    expected = cell(x, (h, c) if name == "LSTM" else h, w, v, *biases)
    found = fused(x @ w.T, h @ v.T, c if name == "LSTM" else h, *biases)
    torch.testing.assert_close(found[0], expected[0] if name == "LSTM" else expected)
