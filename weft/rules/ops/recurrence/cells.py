"""Cells of GPUs, which compute all gates of one step at once: the rows of a batch are independent, their features are whole."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...arguments import arranged
from ...call import BoundCall
from ...factors import Dims, Factors
from ...registry import Rule, Spec, rules

aten = torch.ops.aten

_ROWS: Dims = (("b",), ())
_BIAS: Dims = ((),)
_BY_ROW = ("input_gates", "hidden_gates", "hx", "cx", "cy", "workspace", "grad_hy", "grad_cy")
Results = Callable[[BoundCall], tuple[Spec | None, ...]]


def _rule(results: Results) -> Rule:
    """A cell, or its gradient, with what it gives: rows of the batch, and gradients of biases, which are sums over it."""

    def factors(call: BoundCall) -> Factors:
        outputs = [None if spec is None else _ROWS if spec.ndim == 2 else _BIAS for spec in results(call)]
        biases = frozenset(k for k, dims in enumerate(outputs) if dims is _BIAS)
        inputs = arranged(call, dict.fromkeys(_BY_ROW, _ROWS))
        return Factors(inputs, tuple(outputs), {"b": call.tensors[0].shape[0]}, partial_outputs=biases)

    return Rule(factors, results=results, looks_for=True)  # torch has no account of some of them without memory


def _spec(x: torch.Tensor, columns: int) -> Spec:
    return Spec((x.shape[0], columns), x.dtype)


def _lstm(call: BoundCall) -> tuple[Spec, ...]:
    gates, cells = call.tensor("input_gates"), call.tensor("cx")
    return _spec(cells, cells.shape[1]), _spec(cells, cells.shape[1]), _spec(gates, gates.shape[1])


def _lstm_backward(call: BoundCall) -> tuple[Spec | None, ...]:
    notes, cells = call.tensor("workspace"), call.tensor("cx")
    return _spec(notes, notes.shape[1]), _spec(cells, cells.shape[1]), _of_bias(call, notes, notes.shape[1])


def _gru(call: BoundCall) -> tuple[Spec, ...]:
    states = call.tensor("hx")
    return _spec(states, states.shape[1]), _spec(states, 5 * states.shape[1])


def _gru_backward(call: BoundCall) -> tuple[Spec | None, ...]:
    states = call.tensor("grad_hy")
    size = states.shape[1]
    return *[_spec(states, 3 * size)] * 2, _spec(states, size), *[_of_bias(call, states, 3 * size)] * 2


def _of_bias(call: BoundCall, x: torch.Tensor, size: int) -> Spec | None:
    return Spec((size,), x.dtype) if call.flag("has_bias") else None


rules |= {
    aten._thnn_fused_lstm_cell.default: _rule(_lstm),
    aten._thnn_fused_lstm_cell_backward_impl.default: _rule(_lstm_backward),
    aten._thnn_fused_gru_cell.default: _rule(_gru),
    aten._thnn_fused_gru_cell_backward.default: _rule(_gru_backward),
}
