"""Products: the factor that both sides share and the result lacks becomes a pending sum when it is split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from ...sharding.placements import ReduceOp
from ..call import BoundCall
from ..dims import broadcast_into, numbered, one_each, sizes_of
from ..factors import Dims, Factors, parse
from ..registry import Local, Region, Rule, Spec, ops_named, row, rules

aten = torch.ops.aten


def _added_to(notation: str, local: Local | None = None) -> Rule:
    """The rule of a product that is added to a first tensor, which is broadcast to the result, and added once."""
    product = parse(notation)

    def factors(call: BoundCall) -> Factors | None:
        if any(isinstance(x, (float, complex)) and x - x != 0 for x in call.kwargs.values()):
            return None  # whether kernels take a sum infinitely often, or what it is made of, hangs on their sizes
        first, *rest = call.tensors
        factors = product.meet([spec.shape for spec in rest])
        (output,) = factors.outputs
        assert output is not None
        sizes = [factors.sizes[dim[0]] for dim in output]
        _check_expands(first.shape, sizes)
        added = broadcast_into(first.shape, output, sizes)
        inputs = (added, *factors.inputs)
        return Factors(inputs, (output,), factors.sizes, linear="each", added=frozenset({0}))

    return Rule(factors, local=local)


def _local_addmv(call: BoundCall, _: Sequence[Region], outputs: Sequence[Region]) -> object:
    """With what is added as large as the result: torch's kernel does not broadcast it to a product of no elements."""
    return call.replaced(self=call.tensor("self").expand(outputs[0].shape))()


def _check_expands(shape: Sequence[int], sizes: Sequence[int]) -> None:
    """Refuses what cannot be expanded as torch's kernels do; its accounts of some products take it where `beta` is 0."""
    for k in range(1, min(len(shape), len(sizes)) + 1):
        if shape[-k] not in (1, sizes[-k]):
            raise RuntimeError(
                f"The expanded size of the tensor ({sizes[-k]}) must match the existing size ({shape[-k]}) at non-singleton "
                f"dimension {len(sizes) - k}.  Target sizes: {list(sizes)}.  Tensor sizes: {list(shape)}"
            )


def _linear(call: BoundCall) -> Factors | None:
    """`x @ w.T + b`; `b` is broadcast."""
    x, weight, *bias = call.tensors
    lead, out, sizes = _linear_dims(x, weight)
    output = (*lead, *out)
    if any(b.ndim > len(output) for b in bias):
        return None
    shape = [sizes[dim[0]] for dim in output]
    inputs = ((*lead, ("k",)), (*out, ("k",)), *(broadcast_into(b.shape, output, shape) for b in bias))
    return Factors(inputs, (output,), sizes, linear="each", added=frozenset({2} if bias else ()))


def _linear_gradients(call: BoundCall) -> Factors:
    """Those of `x`, a sum over what comes out, and of `w` and `b`, sums over all rows; no sum over what goes in is."""
    x, _, weight = call.tensors
    lead, out, sizes = _linear_dims(x, weight)
    inputs = ((*lead, ("k",)), (*lead, *out), (*out, ("k",)))
    gradients = (inputs[0], inputs[2], out)
    outputs = tuple(
        dims if is_wanted else None for dims, is_wanted in zip(gradients, call.flags("output_mask"), strict=True)
    )
    return Factors(inputs, outputs, sizes, linear=1, repeated=frozenset({(2, "k")}))


def _linear_dims(x: torch.Tensor, weight: torch.Tensor) -> tuple[Dims, Dims, dict[str, int]]:
    """The dims of a linear layer that lead, the one that comes out, and the sizes of all; `k` is what goes in."""
    lead, out = tuple(numbered(x.ndim - 1)), one_each(["n"] if weight.ndim == 2 else [])
    return lead, out, sizes_of(x.shape[:-1]) | {"k": x.shape[-1]} | ({"n": weight.shape[0]} if out else {})


Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def linear_backward(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, output_mask: Sequence[bool]
) -> Gradients:
    """The gradients of a linear layer of real numbers, by `x`, weight and bias, where they are wanted, as plain torch lays them.

    >>> of_x, of_weight, of_bias = linear_backward(
    ...     torch.ones(2, 4, 3), torch.ones(2, 4, 5), torch.ones(5, 3), [True] * 3
    ... )
    >>> of_x.shape == (2, 4, 3), of_weight.shape == (5, 3), of_bias.shape == (5,)
    (True, True, True)
    """
    into, out = (t if t.ndim == 2 else t.flatten(0, -2) for t in (x, grad))
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        of_x = torch.mm(weight.t(), out.t()).t() if _is_by_columns(into) else torch.mm(out, weight)
        of_x = of_x if x.ndim == 2 else of_x.reshape(x.shape)
    if output_mask[1]:
        by_rows = _is_by_columns(weight.t())
        of_weight = torch.mm(out.t(), into) if by_rows else torch.mm(into.t(), out).t()
    if output_mask[2]:
        of_bias = out.sum(0)
    return of_x, of_weight, of_bias


def _is_by_columns(x: torch.Tensor) -> bool:
    """Whether a matrix lies column by column: torch computes its gradient so then."""
    return x.stride(0) == 1 and x.stride(1) == x.shape[0]


def _linear_results(call: BoundCall) -> tuple[Spec | None, ...]:
    """Torch's own account of them gives those that are not wanted too."""
    x, grad, weight = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in call.tensors)
    gradients = linear_backward(x, grad, weight, call.flags("output_mask"))
    return tuple(map(_as_told, gradients))


def _matmul(call: BoundCall) -> Factors:
    """Products of many dims, which are broadcast."""
    shapes = [spec.shape for spec in call.tensors]
    lead = [shape[:-2] if len(shape) > 1 else () for shape in shapes]
    ends = [(("m", "k") if len(shapes[0]) > 1 else ("k",)), (("k", "n") if len(shapes[1]) > 1 else ("k",))]
    sizes = {name: size for shape, end in zip(shapes, ends, strict=True) for name, size in _ends(shape, end)}
    ranks = max(map(len, lead))
    names = [f"d{i}" for i in range(ranks)]
    wholes = torch.broadcast_shapes(*lead)
    sizes |= dict(zip(names, wholes, strict=True))
    left, right = (
        (*broadcast_into(each, one_each(names), wholes), *one_each(end)) for each, end in zip(lead, ends, strict=True)
    )
    out = one_each([*names, *(name for end in ends for name in end if name != "k")])
    return Factors((left, right), (out,), sizes, linear="each")


def _matmul_gradients(call: BoundCall) -> Factors:
    """Those of each factor are sums over the dims that only the other has, those that it was broadcast along included."""
    _, x, y = call.tensors
    product = _matmul(BoundCall(aten.matmul.default, (x, y)))
    (out,) = product.outputs
    assert out is not None
    gradients = tuple(
        dims if is_wanted else None for dims, is_wanted in zip(product.inputs, call.flags("mask"), strict=True)
    )
    return Factors((out, *product.inputs), gradients, product.sizes, linear=0)


def matmul_backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of a product of many dims by its factors, where they are wanted, as plain torch lays them.

    >>> of_x, of_y = matmul_backward(torch.ones(2, 7, 4, 5), torch.ones(2, 7, 4, 3), torch.ones(7, 3, 5), [True] * 2)
    >>> of_x.shape == (2, 7, 4, 3), of_y.shape == (7, 3, 5)
    (True, True)
    """
    if y.ndim == 2:
        of_x, of_y, _ = linear_backward(x, grad, y.t(), (*mask, False))
        return of_x, None if of_y is None else of_y.t()
    lead, (rows, inner), columns = grad.shape[:-2], x.shape[-2:], y.shape[-1]
    count = math.prod(lead)
    each = grad.reshape(count, rows, columns)
    of_x = of_y = None
    if mask[0]:
        other = y.expand(*lead, inner, columns).reshape(count, inner, columns)
        of_x = torch.bmm(each, other.mT).reshape(*lead, rows, inner).sum_to_size(x.shape)
    if mask[1]:
        other = x.expand(*lead, rows, inner).reshape(count, rows, inner)
        of_y = torch.bmm(other.mT, each).reshape(*lead, inner, columns).sum_to_size(y.shape)
    return of_x, of_y


def _matmul_results(call: BoundCall) -> tuple[Spec | None, ...]:
    grad, x, y = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in call.tensors)
    return tuple(_as_told(g) for g in matmul_backward(grad, x, y, call.flags("mask")))


def _as_told(x: torch.Tensor | None) -> Spec | None:
    return None if x is None else Spec(tuple(x.shape), x.dtype, x.stride())


def _ends(shape: Sequence[int], names: Sequence[str]) -> Iterable[tuple[str, int]]:
    return zip(names, shape[-len(names) :], strict=True)


def _trilinear(call: BoundCall) -> Factors:
    """A product of three tensors, each with some dims of size 1 put in, summed over some dims."""
    new = [call.integers(f"expand{k}") for k in (1, 2, 3)]
    rank = call.tensors[0].ndim + len(new[0])
    dims = [[f"d{i}" for i in range(rank) if i not in expanded] for expanded in new]
    sizes = {
        name: size
        for names, spec in zip(dims, call.tensors, strict=True)
        for name, size in zip(names, spec.shape, strict=True)
    }
    summed = call.integers("sumdim")
    output = one_each(f"d{i}" for i in range(rank) if i not in summed)
    return Factors(tuple(map(one_each, dims)), (output,), sizes, linear="each")


rules |= {
    aten._trilinear.default: Rule(_trilinear, of_nothing=ReduceOp.SUM),
    aten.mm.default: row("m k, k n -> m n", linear="each"),
    aten.bmm.default: row("b m k, b k n -> b m n", linear="each"),
    aten.mv.default: row("m k, k -> m", linear="each"),
    aten.dot.default: row("k, k -> ", linear="each"),
    aten.vdot.default: row("k, k -> ", linear="each"),
    aten.linear.default: Rule(_linear),
    aten.linear_backward.default: Rule(_linear_gradients, results=_linear_results),
    aten.matmul.default: Rule(_matmul),
    aten.matmul_backward.default: Rule(_matmul_gradients, results=_matmul_results),
}
for _name, _product in {
    "addmm": "m k, k n -> m n",
    "baddbmm": "b m k, b k n -> b m n",
    "addbmm": "b m k, b k n -> m n",
    "addmv": "m k, k -> m",
    "addr": "m, n -> m n",
}.items():
    for _op in ops_named(f"{_name} {_name}_"):
        rules[_op] = _added_to(_product)
rules[aten.addmv.default] = _added_to("m k, k -> m", _local_addmv)
