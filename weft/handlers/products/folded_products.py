"""Products of folded tensors: computed in the dims that they were merged from, and folded again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import torch

from ...engine.execute import run_in
from ...engine.op_plan import chosen
from ...engine.sharded import ShardedTensor, begins_at, stand_of
from ...engine.strides.restriding import with_strides
from ...engine.total import Total
from ...engine.views.conjugation import keep_marks
from ...engine.views.copy_views import remember_alias
from ...engine.views.folded import Fold, FoldedOp, fold, fold_of, folded_ops
from ...rules.call import BoundCall, Op
from ...rules.dims import one_each
from ...rules.factors import Factors
from ...rules.ops.views import reshape_groups
from ...rules.registry import Rule
from ...runtime.holding import Pieces
from ...runtime.strides import row_major
from ..views.reshaping import free_reshape, show_folded

aten = torch.ops.aten
Shape = tuple[int, ...]

_PRODUCTS: dict[Op, tuple[str, str, str]] = {
    aten.mm.default: ("mk", "kn", "mn"),
    aten.addmm.default: ("mk", "kn", "mn"),
    aten.bmm.default: ("bmk", "bkn", "bmn"),
}
"""The dims of the two factors and of the product."""


def _for_folded(*ops: Op) -> Callable[[FoldedOp], FoldedOp]:
    def register(function: FoldedOp) -> FoldedOp:
        folded_ops.update(dict.fromkeys(ops, function))
        return function

    return register


@_for_folded(*_PRODUCTS)
def _product(call: BoundCall) -> object:
    *added, first, second = call.tensors
    if call.kwargs or any(x.dim() != 1 for x in added) or (fold_of(first) is None and fold_of(second) is None):
        return NotImplemented
    left, right, out = _PRODUCTS[call.func]
    parts = _parts((first, second), (left, right))
    if parts is None or (added and len(parts["n"]) > 1):
        return NotImplemented
    factors = _spread(first, left, parts), _spread(second, right, parts)
    if factors[0] is None or factors[1] is None:
        return NotImplemented
    result = _multiplied([factors[0], factors[1]], (left, right, out), parts)
    for x in added:
        result = aten.add.Tensor(result, x)
    return aten._unsafe_view.default(result, [math.prod(parts[dim]) for dim in out])


def _parts(given: Sequence[torch.Tensor], dims: Sequence[str]) -> dict[str, Shape] | None:
    """The sizes that each dim is merged from, or None where two tensors do not agree on them."""
    parts: dict[str, Shape] = {}
    for x, names in zip(given, dims, strict=True):
        for name, sizes in zip(names, _sizes(x), strict=True):
            known = parts.setdefault(name, sizes)
            if len(known) == 1:
                parts[name] = sizes
            elif len(sizes) > 1 and sizes != known:
                return None
    return parts


def _sizes(x: torch.Tensor) -> Iterator[Shape]:
    """For each dim, the sizes that it is merged from."""
    folded = fold_of(x)
    if folded is None:
        yield from ((size,) for size in x.shape)
        return
    start = 0
    for group in folded.groups:
        yield tuple(folded.of.shape[start : start + group])
        start += group


def _spread(x: torch.Tensor, dims: str, parts: dict[str, Shape]) -> torch.Tensor | None:
    """A tensor with its dims as they were before they were merged, or None where its elements would have to move."""
    folded = fold_of(x)
    y = x if folded is None else folded.of
    shape = [size for dim in dims for size in parts[dim]]
    if not isinstance(y, ShardedTensor):
        return y.reshape(shape)
    for dim, sizes in zip(dims, _sizes(x), strict=True):
        if len(sizes) < len(parts[dim]) and isinstance(x, ShardedTensor) and x._layout.splits[dims.index(dim)]:
            return free_reshape(aten.reshape.default, y, shape)
    return y if list(y.shape) == shape else y.reshape(shape)


def _multiplied(given: list[torch.Tensor], dims: tuple[str, str, str], parts: dict[str, Shape]) -> torch.Tensor:
    letters = (chr(ord("a") + k) for k in count())
    names = {dim: [next(letters) for _ in sizes] for dim, sizes in parts.items()}
    first, second, out = ([name for dim in each for name in names[dim]] for each in dims)
    sizes = {name: size for dim, each in parts.items() for name, size in zip(names[dim], each, strict=True)}
    factors = Factors((one_each(first), one_each(second)), (one_each(out),), sizes, linear="each")
    choice = chosen(factors, given, next(x._layout.mesh for x in given if isinstance(x, ShardedTensor)))
    equation = f"{''.join(first)},{''.join(second)}->{''.join(out)}"
    rule = Rule(lambda _: factors)
    product = run_in(BoundCall(aten.einsum.default, (equation, given)), choice.inputs, choice.outputs, rule)
    assert isinstance(product, ShardedTensor)
    # Products of few dims lie row by row, those of many as it comes.
    return with_strides(product, row_major(product.shape))


@_for_folded(aten.t.default, aten.transpose.int, aten.permute.default)
def _turned(call: BoundCall) -> object:
    x = call.tensor("self")
    folded = fold_of(x)
    if not isinstance(x, ShardedTensor) or folded is None or x.dim() < 2:
        return NotImplemented
    if call.func is aten.t.default and x.dim() > 2:
        return NotImplemented
    order = list(range(x.dim()))
    if call.func is aten.permute.default:
        order = call.dims("dims")
        if sorted(order) != list(range(x.dim())):
            return NotImplemented
    else:
        first, second = (call.dim("dim0"), call.dim("dim1")) if call.func is aten.transpose.int else (0, 1)
        order[first], order[second] = order[second], order[first]
    starts = [sum(folded.groups[:dim]) for dim in range(x.dim())]
    inner = [starts[dim] + k for dim in order for k in range(folded.groups[dim])]
    stand = stand_of(x)  # which stays what it is when the tensor is turned in place

    def turned() -> tuple[Pieces, Total | None]:
        value = stand.tensor._value
        pieces = tuple(piece.permute(order) for piece in value.pieces)
        if value.total is None:
            return pieces, None
        # A write to one is one to both.
        return pieces, Total(value.total.value.permute(order), value.total.written)

    y = fold(
        aten.permute.default(folded.of, inner),
        tuple(folded.groups[dim] for dim in order),
        x._layout.permuted(order),
        [x.shape[dim] for dim in order],
        turned,
        [x.stride(dim) for dim in order],
        begins_at(x),
        through=x,
    )
    keep_marks(call, y)
    return remember_alias(y, x)


@_for_folded(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default)
def _unfolded(call: BoundCall) -> object:
    """Back to the dims that it was merged from, or to others that moves nothing: a view of the other tensor."""
    x, size = call.tensor("self"), call.integers("shape" if call.has("shape") else "size")
    folded = fold_of(x)
    if not isinstance(x, ShardedTensor) or folded is None:
        return NotImplemented
    if -1 in size:
        size[size.index(-1)] = x.numel() // max(1, -math.prod(size))
    if math.prod(size) != x.numel():
        return NotImplemented
    if call.func is not aten._unsafe_view.default and not _shares(x, folded):
        return NotImplemented
    if _is_cut(folded.of.shape, size):
        return aten.view.default(folded.of, size)
    free = free_reshape(call.func, folded.of, size)
    return NotImplemented if free is None else free


def _shares(x: ShardedTensor, folded: Fold) -> bool:
    """Has a folded tensor that is no view show the other one, of which views are taken for its own; False where it has views that do not know."""
    through = fold_of(folded.through)
    if folded.through is not None and through is not None:
        shares = _shares(folded.through, through)
        remember_alias(x, folded.through)
        return shares
    if x._value.shown is not None or x._is_view():
        return True
    if not x._value.is_viewed:
        show_folded(x, folded.of)
    return not x._value.is_viewed


@_for_folded(aten.clone.default)
def _copied(call: BoundCall) -> object:
    """A copy row by row, folded in turn: what torch makes before a reshape."""
    x = call.tensor("self")
    folded = fold_of(x)
    if folded is None or call.arg("memory_format") is not torch.contiguous_format:
        return NotImplemented
    return aten._unsafe_view.default(call.replaced(self=folded.of)(), list(x.shape))


def _is_cut(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a reshape leaves each dim as it is or cuts it into several.

    >>> _is_cut((6, 4, 8), (6, 1, 4, 2, 4)), _is_cut((6, 4), (3, 8))
    (True, False)
    """
    if math.prod(old) != math.prod(new) or 0 in old:
        return False
    return all(len(first) == 1 for first, _ in reshape_groups(old, [size for size in new if size != 1]))


@_for_folded(aten.sum.dim_IntList)
def _sum(call: BoundCall) -> object:
    """The sum over all merged dims, such as the gradient of what was added to every row."""
    x, dims = call.tensor("self"), set(call.dims("dim"))
    folded = fold_of(x)
    if folded is None:
        return NotImplemented
    if any(group > 1 and dim not in dims for dim, group in enumerate(folded.groups)):
        return NotImplemented
    starts = [sum(folded.groups[:dim]) for dim in range(x.dim())]
    inner = [starts[dim] + k for dim in dims for k in range(folded.groups[dim])]
    if not inner:
        return NotImplemented
    total = aten.sum.dim_IntList(folded.of, inner, False, dtype=call.dtype())
    keeps = call.flag("keepdim")
    left = [1 if dim in dims else size for dim, size in enumerate(x.shape) if keeps or dim not in dims]
    return total if list(total.shape) == left else aten.view.default(total, left)
