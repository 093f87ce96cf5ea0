"""Recurrent layers: the sequences of a batch are independent, their steps and features are whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...arguments import arranged
from ...call import BoundCall
from ...factors import Dims, Factors
from ...registry import Region, Rule, Spec, rules

aten = torch.ops.aten

_STEPS: Dims = ((), ("b",), ())
_STATE: Dims = (("b",), ())
_NOTES = 3
"""Which result of a layer is what its kernel notes for its gradient: in a form of its own, that no layout can say."""
_DIMS: dict[str, Dims] = {
    **dict.fromkeys(("input", "output", "grad_output"), _STEPS),
    **dict.fromkeys(("hx_", "cx_", "cx_tmp", "hy_", "cy_", "grad_hy", "grad_cy"), _STATE),
}


def _layer(call: BoundCall) -> Factors | None:
    return _factors(call, (_STEPS, _STATE, _STATE, ((),)), repeated=frozenset({(_NOTES, "b")}))


def _layer_backward(call: BoundCall) -> Factors | None:
    """The gradients of weights are sums over the batch."""
    outputs: tuple[Dims, ...] = (_STEPS, ((), ()), ((), ()), ((),), ((),), _STATE, _STATE)
    return _factors(call, outputs, partial_outputs=frozenset(range(1, 5)))


def _gradients(call: BoundCall) -> tuple[Spec, ...]:
    """There are gradients of biases even without biases, which torch 2.11 forgets to say."""
    x, *weights = (call.tensor(name) for name in ("input", "weight1", "weight2"))
    states = [call.tensor(name) for name in ("hx_", "cx_tmp")]
    biases = [weights[0].shape[:1]] * 2
    shapes = (x.shape, *(w.shape for w in weights), *biases, *(state.shape for state in states))
    return tuple(Spec(tuple(shape), x.dtype) for shape in shapes)


def _factors(call: BoundCall, outputs: tuple[Dims, ...], **options: frozenset[object]) -> Factors | None:
    if call.integers("batch_sizes"):
        return None
    sizes = {"b": call.tensor("input").shape[1]}
    return Factors(arranged(call, _DIMS), outputs, sizes, **options)  # type: ignore[arg-type]


def _layer_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """What the kernel notes is of this device's sequences only: nobody else can use it, and it is not kept."""
    x = call.tensor("input")
    notes = x.new_empty(outputs[_NOTES].shape, dtype=torch.uint8)
    if not x.numel():
        return (*(x.new_zeros(region.shape) for region in outputs[:_NOTES]), notes)
    return (*call.replaced(input=x.contiguous()).results()[:_NOTES], notes)


def _layer_backward_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """The kernel's notes are made again, of the sequences that this device has."""
    x = call.tensor("input")
    if not x.numel():
        return tuple(x.new_zeros(region.shape) for region in outputs)
    again = [call.arg(_OLD_NAMES.get(argument.name, argument.name)) for argument in _LAYER._schema.arguments]
    with torch.enable_grad():  # without, the kernel notes nothing
        notes = _LAYER(*again)[_NOTES]
    return call.replaced(workspace=notes)()


_LAYER = aten.mkldnn_rnn_layer.default
_OLD_NAMES = {f"weight{k}": f"weight{k + 1}" for k in range(4)} | {"cx_": "cx_tmp"}
"""What the gradient calls the layer's arguments."""

rules |= {
    _LAYER: Rule(_layer, local=_layer_here),
    aten.mkldnn_rnn_layer_backward.default: Rule(_layer_backward, local=_layer_backward_here, results=_gradients),
}
