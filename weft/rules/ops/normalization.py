"""Softmax and the normalizations: what they normalize over is whole, everything else may be split.

The gradients of scales and shifts are sums over the rest, so a split batch leaves them pending.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch._prims_common import suggest_memory_format

from ...caches import cached
from ...sharding.placements import ReduceOp
from ..arguments import arranged, asked_for
from ..call import BoundCall
from ..dims import numbered, one_each, sizes_of
from ..factors import Dims, Factors
from ..registry import LocalArgs, Rule, rules

aten = torch.ops.aten


def _softmax(linear: bool) -> Rule:
    def factors(call: BoundCall) -> Factors:
        x = call.tensors[0]
        dims, whole = tuple(numbered(x.ndim)), frozenset({f"d{call.dim('dim')}"} if x.ndim else ())
        return Factors((dims,) * len(call.tensors), (dims,), sizes_of(x.shape), whole, linear=0 if linear else "no")

    return Rule(factors)


rules |= {
    aten._softmax.default: _softmax(linear=False),
    aten._log_softmax.default: _softmax(linear=False),
    aten._safe_softmax.default: _softmax(linear=False),
    aten._softmax_backward_data.default: _softmax(linear=True),
    aten._log_softmax_backward_data.default: _softmax(linear=True),
    aten.glu_backward.default: _softmax(linear=True),
}


@dataclass(frozen=True, slots=True)
class _Normalized:
    """The factors of a normalization: of what is normalized, of its scale and shift, and of its statistics."""

    all: Dims
    scale: Dims
    statistic: Dims
    sizes: dict[str, int]
    whole: frozenset[str]

    def inputs(self, call: BoundCall) -> tuple[Dims, ...]:
        """The dims of the tensors of a call."""
        named: dict[str, Dims] = dict.fromkeys(("input", "grad_out"), self.all)
        named |= dict.fromkeys(("weight", "bias"), self.scale)
        return arranged(call, named | dict.fromkeys(_STATISTICS, self.statistic))

    def gradients(self, call: BoundCall) -> Factors:
        """A backward op: linear in the first input; what it gives of scale and shift is a sum over what they lack."""
        outputs = asked_for(call, (self.all, self.scale, self.scale))
        partial = frozenset(range(1, len(outputs)))
        return Factors(self.inputs(call), outputs, self.sizes, self.whole, linear=0, partial_outputs=partial)


_STATISTICS = ("mean", "rstd", "running_mean", "running_var", "save_mean", "save_invstd")


def _trailing(call: BoundCall) -> _Normalized:
    """Over the last dims."""
    shape = call.tensor("input").shape
    names = [f"d{i}" for i in range(len(shape))]
    lead = len(shape) - len(call.integers("normalized_shape"))
    ahead, last = names[:lead], names[lead:]
    statistic = one_each([*ahead, *(None for _ in last)])
    return _Normalized(one_each(names), one_each(last), statistic, sizes_of(shape), frozenset(last))


def _grouped(call: BoundCall) -> _Normalized:
    """Over groups of channels: the channels are groups times what is in one."""
    samples, channels, *space = call.tensor("input").shape
    groups = call.integer("group")
    rest = sizes_of(space, "s")
    scale: Dims = (("g", "c"),)
    sizes = {"n": samples, "g": groups, "c": channels // groups} | rest
    return _Normalized((("n",), *scale, *one_each(rest)), scale, one_each(["n", "g"]), sizes, frozenset({"c", *rest}))


def _local_groups(call: BoundCall, _: Sequence[tuple[int, ...]]) -> BoundCall:
    """N, C and the number of groups on one device."""
    samples, channels, *space = call.tensor("input").shape
    groups = channels // (call.integer("C") // call.integer("group"))
    return call.replaced(N=samples, C=channels, HxW=math.prod(space), group=groups)


def _forward(normalized: Callable[[BoundCall], _Normalized], local_args: LocalArgs | None = None) -> Rule:
    def factors(call: BoundCall) -> Factors:
        of = normalized(call)
        statistics = (of.statistic,) * (len(call.func._schema.returns) - 1)
        return Factors(of.inputs(call), (of.all, *statistics), of.sizes, of.whole)

    return Rule(factors, local_args, of_nothing=ReduceOp.SUM)


def _backward(normalized: Callable[[BoundCall], _Normalized], local_args: LocalArgs | None = None) -> Rule:
    return Rule(lambda call: normalized(call).gradients(call), local_args, of_nothing=ReduceOp.SUM)


def _channels(call: BoundCall) -> _Normalized:
    """Each channel over everything else; with statistics that are fixed, elements are normalized one by one."""
    shape = call.tensor("input").shape
    names = ["n", "c", *(f"s{i}" for i in range(len(shape) - 2))]
    computed = call.flag("training") or call.flag("train")
    whole = frozenset(names) - {"c"} if computed else frozenset()
    channel = one_each(["c"])
    return _Normalized(one_each(names), channel, channel, dict(zip(names, shape, strict=True)), whole)


def _batch_norm(call: BoundCall) -> Factors:
    """What is saved are the statistics of the batch, or nothing."""
    of, training = _channels(call), call.flag("training")
    saved: Dims = of.statistic if training else ((),)
    repeated = frozenset((k, name) for k in (1, 2) for name in of.sizes if name != "c" or not training)
    return Factors(of.inputs(call), (of.all, saved, saved), of.sizes, of.whole, repeated=repeated)


@cached(1)
def _takes_groups_with_gaps() -> bool:
    try:
        torch.native_group_norm(torch.zeros(1, 2, 2).mT, None, None, 1, 2, 2, 1, 1e-5)
    except RuntimeError:
        return False
    return True


def _laid_for_groups(call: BoundCall) -> _Normalized:
    """The kernel of the host takes what lies without gaps, row by row or with channels last, before torch 2.15."""
    x = call.tensor("input")
    lies_so = x.is_contiguous(memory_format=suggest_memory_format(x))
    if not lies_so and x.device.type == "cpu" and not _takes_groups_with_gaps():
        raise RuntimeError(
            f"native_group_norm takes what lies without gaps, row by row or with channels last, not a tensor of shape {list(x.shape)} "
            f"with strides {list(x.stride())}: give x.contiguous(), or call torch.nn.functional.group_norm, which makes it so"
        )
    return _grouped(call)


rules |= {
    aten.native_layer_norm.default: _forward(_trailing),
    aten.native_layer_norm_backward.default: _backward(_trailing),
    aten._fused_rms_norm.default: _forward(_trailing),
    aten._fused_rms_norm_backward.default: _backward(_trailing),
    aten.native_group_norm.default: _forward(_laid_for_groups, _local_groups),
    aten.native_group_norm_backward.default: _backward(_grouped, _local_groups),
    aten.native_batch_norm.default: Rule(_batch_norm, of_nothing=ReduceOp.SUM),
    aten.native_batch_norm_backward.default: _backward(_channels),
}
