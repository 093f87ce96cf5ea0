"""Sums and means of bags of embeddings: rows and features of the table may be split, the bags are whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..arguments import arranged
from ..bounds import Bound
from ..call import BoundCall
from ..factors import Dims, Factors
from ..registry import Region, Rule, Spec, ops_named, rules
from .indexing import has_values, inside_of, with_one_more

__all__ = ["LARGEST", "bags_on_host"]

_SUM, _MEAN, LARGEST = range(3)
"""torch's numbers for what is made of a bag; the place of the largest differs between features."""


def _bagged(call: BoundCall) -> Factors | None:
    """Beside the result, torch gives what depends on the bags only."""
    weight = call.tensor("weight")
    if call.integer("mode") == LARGEST or 0 in weight.shape:
        return None
    rows, features = weight.shape
    outputs: tuple[Dims, ...] = (((), ("e",)), ((),), ((),), ((),))
    repeated = frozenset((k, name) for k in (1, 2, 3) for name in "ve")
    inputs = arranged(call, {"weight": (("v",), ("e",))})
    return Factors(inputs, outputs, {"v": rows, "e": features}, repeated=repeated)


def _bagged_backward(call: BoundCall) -> Factors | None:
    if call.integer("mode") == LARGEST or call.flag("sparse"):
        return None
    features: Dims = ((), ("e",))
    return Factors(arranged(call, {"grad": features}), (features,), {"e": call.tensor("grad").shape[1]}, linear=0)


def _rows(call: BoundCall) -> tuple[Bound, ...]:
    words = "index {index} of a bag is not in the valid range [0, {size})"
    return (Bound(1, 0, call.tensor("weight").shape[0], error=RuntimeError, words=words),)


def bags_on_host(call: BoundCall, specs: tuple[Spec | None, ...]) -> tuple[Spec | None, ...]:
    """What kernels of the host give, where torch's account without memory says what those of accelerators do."""
    bags, bag_of_each, sizes, largest = specs
    if bags is None or bag_of_each is None or sizes is None or largest is None:
        return specs
    if call.integer("mode") == _SUM and call.func not in _SIZED:  # what nobody asks for stays as it was made
        sizes = replace(sizes, shape=tuple(call.tensor("offsets").shape))
    else:
        sizes = replace(sizes, shape=bags.shape[:1])
    if call.integer("mode") == LARGEST:
        return bags, bag_of_each, sizes, largest
    count = 0 if _is_summed_at_once(call) else call.tensor("indices").shape[0]
    return bags, replace(bag_of_each, shape=(count,)), sizes, replace(largest, shape=sizes.shape, strides=(1,))


_SIZED = frozenset(ops_named("_embedding_bag"))
"""Those that say how long each bag is, for their gradients."""


def _is_summed_at_once(call: BoundCall) -> bool:
    """Whether the host's kernel adds up bags without saying of each index which bag it is in."""
    weight, factors = call.tensor("weight"), call.optional("per_sample_weights")
    is_short = weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
    lies_in_rows = weight.stride(1) == 1 and (factors is None or factors.stride(0) == 1)
    return call.integer("mode") == _SUM and is_short and lies_in_rows and call.integer("padding_idx") < 0


def _bagged_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """The sums of the rows that are here: bags lose what others have of them, and nothing is said of that row."""
    table = inputs[0]
    if table.is_whole(0) or call.tensor("weight").is_meta:  # without values nobody knows which rows are here
        return call()
    weight, offsets, factors = call.tensor("weight"), call.tensor("offsets"), call.optional("per_sample_weights")
    is_told = outputs[1].shape != (0,)
    ones = torch.ones((1, 1), dtype=torch.float64 if is_told else torch.float32, device=weight.device)
    counting = call.replaced(weight=ones.expand(table.whole[0], 1), per_sample_weights=None)
    _, *others = counting.results()
    index, here = inside_of(table, 0, call.tensor("indices"))
    (start, stop), padding = table.box[0], call.integer("padding_idx")
    own = call.replaced(mode=_SUM)
    if has_values(index):
        before = torch.cat([here.new_zeros(1, dtype=offsets.dtype), here.cumsum(0, dtype=offsets.dtype)])
        own = own.replaced(
            indices=index[here],
            offsets=before[offsets.long()],
            per_sample_weights=None if factors is None else factors[here],
            padding_idx=padding - start if start <= padding < stop else -1,
        )
    else:  # one row more stands for what is left out
        taken = here & (index != padding - start)
        own = own.replaced(
            weight=with_one_more(weight, 0), indices=torch.where(taken, index, stop - start), padding_idx=stop - start
        )
    total = own.results()[0] if stop > start else weight.new_zeros(outputs[0].shape)
    if call.integer("mode") == _MEAN:
        total = total / counting.replaced(mode=_SUM).results()[0].clamp(min=1).to(total.dtype)
    return (total, *others)


for _op in ops_named("_embedding_bag _embedding_bag_forward_only"):
    rules[_op] = Rule(_bagged, local=_bagged_here, bounds=_rows)
for _op in ops_named("_embedding_bag_backward _embedding_bag_dense_backward"):
    rules[_op] = Rule(_bagged_backward)
