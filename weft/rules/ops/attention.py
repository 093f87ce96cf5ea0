"""Attention: batch and heads are independent, and so are queries where no mask depends on their place; keys are whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...sharding.placements import ReduceOp
from ..arguments import arranged
from ..call import BoundCall
from ..dims import broadcast_into
from ..factors import Dims, Factors
from ..registry import Region, Rule, Spec, rules

__all__ = ["ALIGNED", "row_aligned"]

aten = torch.ops.aten

ALIGNED = 16
"""What the efficient kernel wants the rows of a mask to be multiples of."""


def row_aligned(mask: torch.Tensor) -> torch.Tensor:
    """A mask with gaps after its rows, so that each begins at an address that the efficient kernel likes.

    >>> row_aligned(torch.ones(2, 5)).stride()
    (16, 1)
    """
    columns = mask.shape[-1]
    return torch.constant_pad_nd(mask, (0, -columns % ALIGNED))[..., :columns]


class _Heads:
    """The factors of one attention call on tensors (batch, heads, length, features)."""

    def __init__(self, call: BoundCall) -> None:
        query, key, value = (call.tensor(name).shape for name in ("query", "key", "value"))
        groups = query[1] // key[1] if key[1] else 1
        self.sizes = {"b": query[0], "h": key[1], "g": groups, "q": query[2], "k": key[2], "e": query[3], "v": value[3]}
        self.whole = {"g", "k", "e", "v"}
        if call.flag("is_causal"):
            self.whole.add("q")
        heads = ("h",) if groups == 1 else ("h", "g")
        self.query: Dims = (("b",), heads, ("q",), ("e",))
        self.key: Dims = (("b",), ("h",), ("k",), ("e",))
        self.value: Dims = (("b",), ("h",), ("k",), ("v",))
        self.out: Dims = (("b",), heads, ("q",), ("v",))
        self.rows: Dims = (("b",), heads, ("q",))
        self.scores: Dims = (("b",), heads, ("q",), ("k",))
        self.score_sizes = (query[0], query[1], query[2], key[2])

    def mask(self, mask: torch.Tensor | None) -> Dims:
        return () if mask is None else broadcast_into(mask.shape, self.scores, self.score_sizes)

    def inputs(self, call: BoundCall) -> tuple[Dims, ...]:
        """The dims of the tensors that a kernel or its gradient takes."""
        named: dict[str, Dims] = {"query": self.query, "key": self.key, "value": self.value}
        named |= dict.fromkeys(("out", "grad_out", "grad_out_"), self.out)
        named |= dict.fromkeys(("attn_mask", "attn_bias"), self.mask(_mask(call)))
        rows = call.optional("logsumexp")
        return arranged(call, named if rows is None else named | {"logsumexp": self.normalizers(rows)})

    def normalizers(self, rows: torch.Tensor) -> Dims:
        """One number per query, or where a kernel rounds their count up, some more."""
        per_query = self.rows if self.is_exact(rows) else self.rows[:2]
        return (*per_query, *((),) * (rows.ndim - len(per_query)))

    def is_exact(self, rows: torch.Tensor) -> bool:
        return rows.shape[2] == self.sizes["q"]


def _mask(call: BoundCall) -> torch.Tensor | None:
    mask = call.optional("attn_bias" if call.has("attn_bias") else "attn_mask")
    return mask if mask is not None and mask.ndim else None


def _forward(rows: int | None, constants: Sequence[int], nothing: Sequence[int], count: int) -> Rule:
    """An attention kernel: its result, the queries' normalizers, numbers that are the same everywhere, and no tensors.

    `rows`: how many dims the normalizers have; None: (batch, heads, queries), and queries may be split.
    """

    def factors(call: BoundCall) -> Factors | None:
        heads = _Heads(call)
        if call.number("dropout_p") > 0 or call.flag("return_debug_mask"):
            return None
        per_query = heads.rows if rows is None else (*heads.rows[:2], *((),) * (rows - 2))
        outputs: list[Dims | None] = [heads.out, per_query]
        outputs += [None if k in nothing else () for k in range(2, count)]
        whole = heads.whole if rows is None else heads.whole | {"q"}
        repeated = frozenset((k, name) for k in constants for name in heads.sizes)
        return Factors(heads.inputs(call), tuple(outputs), heads.sizes, frozenset(whole), repeated=repeated)

    return Rule(factors, of_nothing=ReduceOp.SUM)


def _backward(mask_gradient: bool = False) -> Rule:
    """The gradients of queries, keys and values; those of keys and values are sums over the queries."""

    def factors(call: BoundCall) -> Factors | None:
        heads, mask = _Heads(call), _mask(call)
        if call.number("dropout_p") > 0:
            return None
        outputs: tuple[Dims | None, ...] = (heads.query, heads.key, heads.value)
        if mask_gradient:
            wanted = call.flags("grad_input_mask")[3] and mask is not None
            outputs += (heads.mask(mask) if wanted else None,)
        whole = heads.whole if heads.is_exact(call.tensor("logsumexp")) else heads.whole | {"q"}
        partial = frozenset(range(1, len(outputs)))
        return Factors(heads.inputs(call), outputs, heads.sizes, frozenset(whole), linear=0, partial_outputs=partial)

    return Rule(factors, local=_efficient_backward_here) if mask_gradient else Rule(factors, of_nothing=ReduceOp.SUM)


def _efficient_backward_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """The kernel reads its own result as it wrote it: the features of all heads of a query side by side."""
    out, mask = call.tensor("out").transpose(1, 2).contiguous().transpose(1, 2), call.optional("attn_bias")
    if out.numel():
        return call.replaced(out=out, attn_bias=None if mask is None else row_aligned(mask))()
    wanted = call.flags("grad_input_mask")
    return tuple(out.new_zeros(region.shape) if w else None for region, w in zip(outputs, wanted, strict=True))


_MASKS: dict[int | None, Dims] = {None: (), 0: ((), ()), 1: (("b",), ()), 2: (("b",), (), (), ())}
"""The dims of an encoder layer's mask by the number of its kind: for all sequences, of padding, for each score."""


def _encoder_layer(call: BoundCall) -> Factors | None:
    """A whole layer in one kernel, where no gradient is asked for: batches are independent, weights are whole."""
    mask = call.optional("mask")
    kind = None if mask is None else call.optional_integer("mask_type")
    if kind not in _MASKS or (mask is not None and mask.ndim != len(_MASKS[kind])):
        return None
    source: Dims = (("b",), (), ())
    inputs = arranged(call, {"src": source, "mask": _MASKS[kind]})
    return Factors(inputs, (source,), {"b": call.tensor("src").shape[0]})


def _encoded(call: BoundCall) -> tuple[Spec, ...]:
    """Torch 2.11 has no account of it."""
    source = call.tensor("src")
    return (Spec(tuple(source.shape), source.dtype),)


rules |= {
    aten._transformer_encoder_layer_fwd.default: Rule(_encoder_layer, of_nothing=ReduceOp.SUM, results=_encoded),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _forward(None, (), (), 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward(),
    aten._scaled_dot_product_efficient_attention.default: _forward(3, (2, 3), (), 4),
    aten._scaled_dot_product_efficient_attention_backward.default: _backward(mask_gradient=True),
    aten._scaled_dot_product_flash_attention.default: _forward(None, (6, 7, 8), (2, 3, 4, 5), 9),
    aten._scaled_dot_product_flash_attention_backward.default: _backward(),
    aten._scaled_dot_product_cudnn_attention.default: _forward(4, (6, 7), (2, 3, 4, 5, 8), 9),
    aten._scaled_dot_product_cudnn_attention_backward.default: _backward(),
}
