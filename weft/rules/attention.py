"""Attention: batch and heads are independent, and so are queries where no mask depends on their place; keys are whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..sharding.placements import ReduceOp
from .arguments import arranged, broadcast_into, tensor_names
from .call import BoundCall
from .factors import Dims, Factors
from .registry import Region, Rule, rules

aten = torch.ops.aten


class _Heads:
    """The factors of one attention call on tensors (batch, heads, length, features)."""

    def __init__(self, call: BoundCall) -> None:
        query, key, value = (call.tensor(name).shape for name in ("query", "key", "value"))
        groups = query[1] // key[1] if key[1] else 1
        self.sizes = {"b": query[0], "h": key[1], "g": groups, "q": query[2], "k": key[2], "e": query[3], "v": value[3]}
        self.whole = {"g", "k", "e", "v"}
        if call.arg("is_causal"):
            self.whole.add("q")
        heads = ("h",) if groups == 1 else ("h", "g")
        self.query: Dims = (("b",), heads, ("q",), ("e",))
        self.key: Dims = (("b",), ("h",), ("k",), ("e",))
        self.value: Dims = (("b",), ("h",), ("k",), ("v",))
        self.out: Dims = (("b",), heads, ("q",), ("v",))
        self.rows: Dims = (("b",), heads, ("q",))
        self.scores: Dims = (("b",), heads, ("q",), ("k",))
        self.score_sizes = (query[0], query[1], query[2], key[2])

    def mask(self, spec: torch.Tensor | None) -> Dims:
        return () if spec is None else broadcast_into(spec.shape, self.scores, self.score_sizes)

    def named(self, call: BoundCall) -> dict[str, Dims]:
        """The dims of the tensors that a kernel or its gradient takes, by name."""
        one: dict[str, Dims] = {"query": self.query, "key": self.key, "value": self.value}
        one |= dict.fromkeys(("out", "grad_out", "grad_out_"), self.out)
        one |= dict.fromkeys(("attn_mask", "attn_bias"), self.mask(_mask(call)))
        for name in ("philox_seed", "philox_offset", "cum_seq_q", "cum_seq_k"):
            spec = call.arg(name)
            one[name] = ((),) * spec.ndim if isinstance(spec, torch.Tensor) else ()
        rows = call.arg("logsumexp")
        return one | ({"logsumexp": self.normalizers(rows)} if isinstance(rows, torch.Tensor) else {})

    def normalizers(self, rows: torch.Tensor) -> Dims:
        """One number per query, or where a kernel rounds their count up, some more."""
        per_query = self.rows if self.is_exact(rows) else self.rows[:2]
        return (*per_query, *((),) * (rows.ndim - len(per_query)))

    def is_exact(self, rows: torch.Tensor) -> bool:
        return rows.shape[2] == self.sizes["q"]


def _mask(call: BoundCall) -> torch.Tensor | None:
    given = call.optional("attn_mask") if call.has("attn_mask") else call.optional("attn_bias")
    return given if given is not None and given.dim() else None


def _forward(rows: int | None, constants: Sequence[int], nothing: Sequence[int], count: int) -> Rule:
    """An attention kernel: its result, the queries' normalizers, numbers that are the same everywhere, and no tensors.

    `rows`: how many dims the normalizers have; None: (batch, heads, queries), and queries may be split.
    """

    def factors(call: BoundCall) -> Factors | None:
        heads = _Heads(call)
        if cast(float, call.arg("dropout_p")) > 0 or call.arg("return_debug_mask"):
            return None
        per_query = heads.rows if rows is None else (*heads.rows[:2], *((),) * (rows - 2))
        outputs: list[Dims | None] = [heads.out, per_query]
        outputs += [None if k in nothing else () for k in range(2, count)]
        whole = heads.whole if rows is None else heads.whole | {"q"}
        inputs = arranged(call, heads.named(call))
        repeated = frozenset((k, name) for k in constants for name in heads.sizes)
        return Factors(inputs, tuple(outputs), heads.sizes, frozenset(whole), repeated=repeated)

    return Rule(factors, of_nothing=ReduceOp.SUM)


def _backward(mask_gradient: bool = False) -> Rule:
    """The gradients of queries, keys and values; those of keys and values are sums over the queries."""

    def factors(call: BoundCall) -> Factors | None:
        heads = _Heads(call)
        mask = _mask(call)
        if cast(float, call.arg("dropout_p")) > 0:
            return None
        outputs: tuple[Dims | None, ...] = (heads.query, heads.key, heads.value)
        if mask_gradient:
            wanted = cast("Sequence[bool]", call.arg("grad_input_mask"))[3]
            outputs += (heads.mask(mask) if wanted and mask is not None else None,)
        whole = heads.whole if heads.is_exact(call.tensor("logsumexp")) else heads.whole | {"q"}
        inputs = arranged(call, heads.named(call))
        partial = frozenset(range(1, len(outputs)))
        return Factors(inputs, outputs, heads.sizes, frozenset(whole), linear=0, partial_outputs=partial)

    return Rule(factors, local=_efficient_backward_here) if mask_gradient else Rule(factors, of_nothing=ReduceOp.SUM)


def _efficient_backward_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """The kernel reads its own result as it wrote it: the features of all heads of a query side by side."""
    func, args, kwargs = call.func, call.args, call.kwargs
    out = cast(torch.Tensor, args[5]).transpose(1, 2).contiguous().transpose(1, 2)
    if out.numel():
        return func(*args[:5], out, *args[6:], **kwargs)
    wanted = cast("Sequence[bool]", args[10])
    return tuple(out.new_zeros(region.shape) if w else None for region, w in zip(outputs, wanted, strict=True))


_MASKS: dict[object, Dims] = {None: (), 0: ((), ()), 1: (("b",), ()), 2: (("b",), (), (), ())}
"""The dims of an encoder layer's mask by the number of its kind: for all sequences, of padding, for each score."""


def _encoder_layer(call: BoundCall) -> Factors | None:
    """A whole layer in one kernel, where no gradient is asked for: batches are independent, weights are whole."""
    mask = call.arg("mask")
    kind = call.arg("mask_type") if isinstance(mask, torch.Tensor) else None
    if kind not in _MASKS or (isinstance(mask, torch.Tensor) and mask.ndim != len(_MASKS[kind])):
        return None
    dims = {name: ((),) * spec.ndim for name, spec in zip(tensor_names(call), call.tensors, strict=True)}
    source: Dims = (("b",), (), ())
    inputs = arranged(call, dims | {"src": source, "mask": _MASKS[kind]})
    return Factors(inputs, (source,), {"b": call.tensors[0].shape[0]})


rules |= {
    aten._transformer_encoder_layer_fwd.default: Rule(_encoder_layer, of_nothing=ReduceOp.SUM),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _forward(None, (), (), 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward(),
    aten._scaled_dot_product_efficient_attention.default: _forward(3, (2, 3), (), 4),
    aten._scaled_dot_product_efficient_attention_backward.default: _backward(mask_gradient=True),
    aten._scaled_dot_product_flash_attention.default: _forward(None, (6, 7, 8), (2, 3, 4, 5), 9),
    aten._scaled_dot_product_flash_attention_backward.default: _backward(),
    aten._scaled_dot_product_cudnn_attention.default: _forward(4, (6, 7), (2, 3, 4, 5, 8), 9),
    aten._scaled_dot_product_cudnn_attention_backward.default: _backward(),
}
