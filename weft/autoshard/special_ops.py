"""Ops that Weft computes in more layouts than their rules say: attention, softmax, norms and losses over split dims.

Their handlers pass or add up a little between devices. Here it is said which dims that allows to split, and what travels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from ..engine.handlers import handlers
from ..engine.op_kind import kind_of
from ..rules.call import Args, BoundCall, Kwargs, Op
from ..rules.dims import numbered, one_each, sizes_of
from ..rules.factors import Dims, Factors
from ..rules.ops.losses import ELEMENTWISE, SUM
from ..rules.registry import ops_named, rule_for

__all__ = ["SPECIAL", "SpecialFactors", "SpecialOp", "called_by"]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class SpecialFactors:
    """The factors of a call, and those among them that may be split beyond what its rule allows."""

    factors: Factors
    added_up: frozenset[str] = frozenset()
    """Whoever splits these adds up numbers for each row of the first tensor."""
    passed: frozenset[str] = frozenset()
    """Whoever splits these passes what the other tensors have of them from device to device, as in ring attention."""


@dataclass(frozen=True, slots=True)
class SpecialOp:
    """How a call is said in factors."""

    factors: Callable[[BoundCall], SpecialFactors | None]
    result: Callable[[Args, Kwargs], torch.Tensor] | None = None
    """What the op gives, where it is not to be taken apart; None: what torch gives."""
    flops: Callable[[BoundCall], int] | None = None
    tried: Callable[..., object] | None = None
    """How programs call it, where it is to be tried on paper what it takes."""


def _over_split_dims(op: Op, called: Callable[..., object] | None = None) -> SpecialOp:
    return SpecialOp(_all_dims, tried=called or op)


def _all_dims(call: BoundCall) -> SpecialFactors | None:
    known = _by_rule(call)
    return None if known is None else SpecialFactors(known, added_up=known.whole)


def _by_rule(call: BoundCall) -> Factors | None:
    rule = rule_for(call.func)
    return None if rule is None else rule.factors(call)


def _averaged_loss(call: BoundCall) -> SpecialFactors | None:
    """A mean is a sum and a division."""
    known = _by_rule(call.replaced(reduction=SUM) if call.integer("reduction") else call)
    return None if known is None else SpecialFactors(known, added_up=known.whole)


def _mean(call: BoundCall) -> SpecialFactors | None:
    total = aten.sum.default if call.func is aten.mean.default else aten.sum.dim_IntList
    known = _by_rule(BoundCall(total, call.args, call.kwargs))
    return None if known is None else SpecialFactors(known)


def _dropout(call: BoundCall) -> SpecialFactors:
    """Each element by itself: random numbers do not depend on the layout."""
    shape = call.tensors[0].shape
    dims = tuple(numbered(len(shape)))
    return SpecialFactors(Factors((dims,), (dims, dims), sizes_of(shape)))


def _attention_factors(call: BoundCall) -> SpecialFactors:
    """Batch and heads are independent; one sequence may be split for queries and keys alike."""
    query, key, value = (call.tensor(name).shape for name in ("query", "key", "value"))
    mask = call.optional("attn_mask")
    lead = [f"b{i}" for i in range(len(query) - 3)]
    has_heads = len(query) > 2
    groups = query[-3] // key[-3] if has_heads and key[-3] else 1
    itself = query[-2] == key[-2] and mask is None
    sizes = {**dict(zip(lead, query, strict=False)), "e": query[-1], "v": value[-1], "l": query[-2], "k": key[-2]}
    sizes |= {"h": key[-3], "g": groups} if has_heads else {}
    heads: Dims = ((("h",) if groups == 1 else ("h", "g")),) if has_heads else ()
    few: Dims = (("h",),) if has_heads else ()
    ahead, keys = one_each(lead), "l" if itself else "k"
    inputs: tuple[Dims, ...] = (
        (*ahead, *heads, ("l",), ("e",)),
        (*ahead, *few, (keys,), ("e",)),
        (*ahead, *few, (keys,), ("v",)),
    )
    if mask is not None:
        full: Dims = (*ahead, *heads, ("l",), ("k",))
        tail = full[len(full) - mask.ndim :]
        inputs += (tuple(() if size == 1 else dim for size, dim in zip(mask.shape, tail, strict=True)),)
    whole = frozenset({"g", "k", "e", "v"} | ({"l"} if call.flag("is_causal") and not itself else set()))
    factors = Factors(inputs, ((*ahead, *heads, ("l",), ("v",)),), sizes, whole)
    return SpecialFactors(factors, passed=frozenset({"l"} if itself else ()))


def _attended(args: Args, kwargs: Kwargs) -> torch.Tensor:
    call = BoundCall(_ATTENTION, args, kwargs)
    query, value = call.tensor("query"), call.tensor("value")
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def _attention_flops(call: BoundCall) -> int:
    query, key, value = (call.tensor(name).shape for name in ("query", "key", "value"))
    return 2 * query[:-1].numel() * key[-2] * (query[-1] + value[-1])


def _rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: float | None) -> torch.Tensor:
    return torch.rms_norm(x, shape, weight, eps)


_ATTENTION = aten.scaled_dot_product_attention.default
_RMS_NORM = aten._fused_rms_norm.default
_OVER_SPLIT_DIMS = (
    "cumsum _log_softmax _softmax _safe_softmax native_layer_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_functional"
)
_LOSSES: tuple[Op, ...] = (*ops_named("nll_loss_forward nll_loss2d_forward"), *(forward for forward, _ in ELEMENTWISE))
SPECIAL: Mapping[Op, SpecialOp] = MappingProxyType(
    {
        _ATTENTION: SpecialOp(_attention_factors, _attended, _attention_flops),
        **{op: _over_split_dims(op) for op in ops_named(_OVER_SPLIT_DIMS)},
        _RMS_NORM: _over_split_dims(_RMS_NORM, _rms_norm),
        **{op: SpecialOp(_averaged_loss, tried=op) for op in _LOSSES},
        **dict.fromkeys((aten.mean.default, aten.mean.dim), SpecialOp(_mean)),
        aten.native_dropout.default: SpecialOp(_dropout),
    }
)
"""Ops to how they are said here."""


def called_by(op: Op) -> Callable[..., object] | None:
    """How programs call an op that is to be tried; None where rules say all of it."""
    special = SPECIAL.get(op)
    if special is not None:
        return special.tried
    return op if op in handlers and rule_for(op) is None and kind_of(op).is_pure else None
