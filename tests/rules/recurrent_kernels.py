"""What stands in for cuDNN's recurrent kernels on a host: they note what they need for the gradient, and refuse other notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from weft.rules.call import BoundCall

LSTM, GRU, TANH = 2, 3, 1
KINDS = {LSTM: torch.lstm, GRU: torch.gru, TANH: torch.rnn_tanh}

aten = torch.ops.aten


def computed(call: BoundCall, x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]):
    """The layers by torch's own ops, step by step; what they give lies in that order."""
    batch_first, both, count = call.flag("batch_first"), call.flag("bidirectional"), call.integer("num_layers")
    has_biases = len(weights) == 4 * count * (2 if both else 1)
    first = states[0] if len(states) == 1 else list(states)
    rest = (has_biases, count, 0.0, True, both, False)
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        out, *last = KINDS[call.integer("mode")](x.transpose(0, 1) if batch_first else x, first, list(weights), *rest)
    return [out.contiguous().transpose(0, 1) if batch_first else out, *last]


def given(call: BoundCall) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """The sequences, the states and the weights of a call."""
    states = [call.tensor("hx"), *([call.tensor("cx")] if call.optional("cx") is not None else [])]
    assert all(state.is_contiguous() for state in states), "rnn: hx is not contiguous"
    return call.tensor("input"), states, call.tensor_list("weight")


def noted(x: torch.Tensor) -> torch.Tensor:
    """Notes that are of these sequences and no others."""
    return (x.double() * 1000).to(torch.int64).flatten().view(torch.uint8)


def layers(*args: object) -> tuple[torch.Tensor, ...]:
    call = BoundCall(aten._cudnn_rnn.default, args)
    x, states, weights = given(call)
    assert call.arg("weight_buf") is None
    with torch.no_grad():
        out, *last = computed(call, x, states, weights)
    cells = last[1] if len(states) == 2 else x.new_empty(0)
    return out, last[0], cells, noted(x), torch.cat([weight.reshape(-1) for weight in weights])


def gradients(*args: object) -> tuple[object, ...]:
    call = BoundCall(aten._cudnn_rnn_backward.default, args)
    x, states, weights = given(call)
    assert torch.equal(call.tensor("reserve"), noted(x)), "notes of other sequences"
    assert call.tensor("weight_buf").numel() == sum(weight.numel() for weight in weights)
    leaves = [leaf.detach().requires_grad_() for leaf in (x, *states, *weights)]
    results = computed(call, leaves[0], leaves[1 : len(states) + 1], leaves[len(states) + 1 :])
    asked = [call.optional(name) for name in ("grad_output", "grad_hy", "grad_cy")]
    pairs = [(y, g) for y, g in zip(results, asked, strict=False) if g is not None]
    found = torch.autograd.grad(
        [y for y, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True, materialize_grads=True
    )
    first, mask = [*found[: len(states) + 1], None][:3], call.flags("output_mask")
    rest = list(found[len(states) + 1 :]) if mask[3] else []
    return (*(g if wanted else None for g, wanted in zip(first, mask, strict=False)), rest)


@contextmanager
def stand_ins() -> Iterator[None]:
    """Has cuDNN's ops run on a host."""
    with torch.library._scoped_library("aten", "IMPL") as library, ThreadPoolExecutor(1) as elsewhere:
        library.impl("_cudnn_rnn", layers, "CPU")
        # Where torch differentiates, it does not: the gradient of the stand-in is worked out in a thread of its own.
        library.impl("_cudnn_rnn_backward", lambda *args: elsewhere.submit(gradients, *args).result(), "CPU")
        yield
