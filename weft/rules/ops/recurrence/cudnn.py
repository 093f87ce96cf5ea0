"""Recurrent layers of cuDNN, all of them in one call: the sequences of a batch are independent, their steps and features are whole.

What its kernel notes for the gradient, and the block that it copies the weights into, are in a form that no layout can say. A device
that computes its own sequences makes them again when it needs them, by one more forward pass over these.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...arguments import arranged
from ...call import BoundCall
from ...factors import Dims, Factors
from ...registry import Region, Rule, Spec, rules

__all__ = ["GRADIENTS", "STATED"]

_LAYERS, _BACKWARD = torch.ops.aten._cudnn_rnn.default, torch.ops.aten._cudnn_rnn_backward.default

_library = torch.library.Library("weft", "FRAGMENT")
_library.define(
    "cudnn_rnn_gradients(Tensor input, Tensor[] weight, int weight_stride0, Tensor? weight_buf, Tensor hx, Tensor? cx, "
    "Tensor output, Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, int mode, int hidden_size, int proj_size, "
    "int num_layers, bool batch_first, float dropout, bool train, bool bidirectional, int[] batch_sizes, "
    "Tensor? dropout_state, Tensor reserve, bool[] output_mask) -> Tensor[]"
)
GRADIENTS = torch.ops.weft.cudnn_rnn_gradients.default
"""The gradients that are asked for, one after the other: of the input, of the states, of each weight."""

STATED = ("input", "hx", "cx")
"""The gradients of which are results of their own."""
_STATE: Dims = ((), ("b",), ())
_BLOB: Dims = ((),)


def _steps(call: BoundCall) -> Dims:
    return (("b",), (), ()) if call.flag("batch_first") else ((), ("b",), ())


def _factors(
    call: BoundCall,
    outputs: Sequence[Dims],
    *,
    repeated: frozenset[tuple[int, str]] = frozenset(),
    partial: frozenset[int] | None = None,
) -> Factors | None:
    """None where sequences are packed, or where dropout draws for all of them at once."""
    if call.integers("batch_sizes") or (call.flag("train") and call.number("dropout")):
        return None
    steps, batch = _steps(call), 0 if call.flag("batch_first") else 1
    dims = dict.fromkeys(("input", "output", "grad_output"), steps)
    dims |= dict.fromkeys(("hx", "cx", "grad_hy", "grad_cy"), _STATE)
    sizes = {"b": call.tensor("input").shape[batch]}
    return Factors(arranged(call, dims), tuple(outputs), sizes, partial_outputs=partial, repeated=repeated)


def _layers(call: BoundCall) -> Factors | None:
    has_cells = call.optional("cx") is not None
    same = [*(() if has_cells else (2,)), 3, 4]
    outputs = (_steps(call), _STATE, _STATE if has_cells else _BLOB, _BLOB, _BLOB)
    return _factors(call, outputs, repeated=frozenset((k, "b") for k in same))


def _results(call: BoundCall) -> tuple[Spec, ...]:
    x, states, cells = call.tensor("input"), call.tensor("hx"), call.optional("cx")
    ways = 2 if call.flag("bidirectional") else 1
    shape = (*x.shape[:-1], ways * states.shape[2])
    given = Spec(shape, x.dtype, _by_steps(call, shape))
    last = Spec((0,) if cells is None else tuple(cells.shape), x.dtype)
    return given, Spec(tuple(states.shape), x.dtype), last, Spec((0,), torch.uint8), Spec((0,), x.dtype)


def _by_steps(call: BoundCall, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The kernel goes step by step, and lays what it gives in that order also where the batch comes first."""
    return (shape[2], shape[0] * shape[2], 1) if call.flag("batch_first") and len(shape) == 3 else None


def _layers_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """What this device's sequences give; what the kernel notes of them is not kept."""
    x = call.tensor("input")
    nothing = x.new_empty(0, dtype=torch.uint8), x.new_empty(0)
    if x.is_meta or not x.numel():
        return (*(x.new_zeros(region.shape) for region in outputs[:3]), *nothing)
    return (*_dense(call).results()[:3], *nothing)


def _dense(call: BoundCall) -> BoundCall:
    """The same call with states that lie as the kernel wants them: parts of them may not."""
    states, cells = call.tensor("hx"), call.optional("cx")
    return call.replaced(hx=states.contiguous(), cx=None if cells is None else cells.contiguous())


def _asked(call: BoundCall) -> list[tuple[torch.Tensor, Dims]]:
    """What gradients are asked for, with the dims of these."""
    states, cells, mask = call.tensor("hx"), call.optional("cx"), call.flags("output_mask")
    asked = [(call.tensor("input"), _steps(call))] if mask[0] else []
    asked += [(states, _STATE)] if mask[1] else []
    asked += [(cells, _STATE)] if mask[2] and cells is not None else []
    weights = call.tensor_list("weight") if mask[3] else []
    return asked + [(weight, ((),) * weight.dim()) for weight in weights]


def _gradients(call: BoundCall) -> Factors | None:
    """Those of weights are sums over the batch."""
    outputs = [dims for _, dims in _asked(call)]
    partial = frozenset(k for k, dims in enumerate(outputs) if not any(dims))
    return _factors(call, outputs, partial=partial)


def _gradient_results(call: BoundCall) -> tuple[Spec, ...]:
    x = call.tensor("input")
    return tuple(_like(x, _by_steps(call, x.shape)) if each is x else _like(each) for each, _ in _asked(call))


def _like(x: torch.Tensor, strides: tuple[int, ...] | None = None) -> Spec:
    return Spec(tuple(x.shape), x.dtype, strides)


def _results_and_list(call: BoundCall) -> tuple[Spec | None, ...]:
    """As the op gives them: of its last result, a list, nothing is said."""
    specs = iter(_gradient_results(call))
    given = [
        call.optional(name) if asked else None for name, asked in zip(STATED, call.flags("output_mask"), strict=False)
    ]
    return (*(None if x is None else next(specs) for x in given), None)


def _compute_gradients(*args: object) -> list[torch.Tensor]:
    """What cuDNN gives, with the kernel's notes made again where they were not kept."""
    call = _dense(BoundCall(GRADIENTS, args, {}))
    x, mask = call.tensor("input"), call.flags("output_mask")
    if x.is_meta or not x.numel():
        return [torch.zeros_like(each) for each, _ in _asked(call)]
    if not call.tensor("reserve").numel():
        given = BoundCall(_LAYERS, tuple(call.arg(each.name) for each in _LAYERS._schema.arguments))
        *_, notes, block = given.replaced(weight_buf=None).results()
        call = call.replaced(reserve=notes, weight_buf=block)
    *gradients, weights = _BACKWARD(*call.args)
    kept = [gradient for gradient, is_asked in zip(gradients, mask, strict=False) if is_asked and gradient is not None]
    return kept + (list(weights) if mask[3] else [])


_library.impl("cudnn_rnn_gradients", _compute_gradients, "CompositeExplicitAutograd")

rules |= {
    _LAYERS: Rule(_layers, local=_layers_here, results=_results),
    GRADIENTS: Rule(_gradients, results=_gradient_results),
    _BACKWARD: Rule(lambda _: None, results=_results_and_list),  # its handler has it come as the one above
}
