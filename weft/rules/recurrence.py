"""Recurrent layers: the sequences of a batch are independent, their steps and features are whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from .arguments import arranged, tensor_names
from .call import BoundCall
from .factors import Dims, Factors
from .registry import Region, Rule, rules

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


def _factors(call: BoundCall, outputs: tuple[Dims, ...], **options: frozenset[object]) -> Factors | None:
    if call.arg("batch_sizes"):
        return None
    whole = {name: ((),) * spec.ndim for name, spec in zip(tensor_names(call), call.tensors, strict=True)}
    inputs = arranged(call, whole | _DIMS)
    return Factors(inputs, outputs, {"b": call.tensors[0].shape[1]}, **options)  # type: ignore[arg-type]


def _layer_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """What the kernel notes is of this device's sequences only: nobody else can use it, and it is not kept."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(torch.Tensor, args[0])
    notes = x.new_empty(outputs[_NOTES].shape, dtype=torch.uint8)
    if not x.numel():
        return (*(x.new_zeros(region.shape) for region in outputs[:_NOTES]), notes)
    return (*func(x.contiguous(), *args[1:], **kwargs)[:_NOTES], notes)


def _layer_backward_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """The kernel's notes are made again, of the sequences that this device has."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(torch.Tensor, args[0])
    if not x.numel():
        return tuple(x.new_zeros(region.shape) for region in outputs)
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    again = [given[_OLD_NAMES.get(argument.name, argument.name)] for argument in _LAYER._schema.arguments]
    with torch.enable_grad():  # without, the kernel notes nothing
        given["workspace"] = _LAYER(*again)[_NOTES]
    return func(*[given[name] for name in names])


_LAYER = aten.mkldnn_rnn_layer.default
_OLD_NAMES = {f"weight{k}": f"weight{k + 1}" for k in range(4)} | {"cx_": "cx_tmp"}
"""What the gradient calls the layer's arguments."""

rules |= {
    _LAYER: Rule(_layer, local=_layer_here),
    aten.mkldnn_rnn_layer_backward.default: Rule(_layer_backward, local=_layer_backward_here),
}
