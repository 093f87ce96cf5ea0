"""Transposes of reductions, matrix products, norms and softmax."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from weft.graph.gradients.table import Backward, Contribution, transpose_of, unbroadcast
from weft.graph.ops import elementwise as ops
from weft.graph.ops.indexing import gather, put_along, scatter_add, take_along
from weft.graph.ops.linear import matmul
from weft.graph.ops.reductions import cumsum, mean, reduced_shape
from weft.graph.ops.reductions import sum as reduce_sum
from weft.graph.ops.shaping import broadcast_to, flip, reshape
from weft.graph.recording.graph import Graph
from weft.graph.recording.values import TensorLike, TensorValue
from weft.sharding.dims import Dim
from weft.sharding.shape import Shape


def _stretched(back: Backward, value: TensorValue) -> TensorValue:
    """A result of a reduction, or its gradient, as wide as the argument was."""
    x, axes, _ = cast("tuple[TensorValue, Sequence[int], bool]", back.call.args)
    kept = reshape(value, reduced_shape(x.shape, axes, keepdims=True))
    return broadcast_to(kept, x.shape)


@transpose_of("sum")
def _sum(back: Backward) -> Iterable[Contribution]:
    x = cast(TensorValue, back.call.args[0])
    yield x, _stretched(back, back.grad).cast(x.dtype)


@transpose_of("mean")
def _mean(back: Backward) -> Iterable[Contribution]:
    x, axes, _ = cast("tuple[TensorValue, Sequence[int], bool]", back.call.args)
    count = Shape([x.shape[i] for i in axes]).numel()
    yield x, _stretched(back, back.grad) / _number(count, x)


def _number(size: Dim, like: TensorValue) -> TensorLike:
    return int(size) if size.is_static else Graph.current().tensor(size, like.device)


@transpose_of("max", "min")
def _extreme(back: Backward) -> Iterable[Contribution]:
    """The gradient goes to where the value came from, shared equally among ties."""
    x, axes, _ = cast("tuple[TensorValue, Sequence[int], bool]", back.call.args)
    here = ops.equal(x, _stretched(back, back.result)).cast(x.dtype)
    yield x, _stretched(back, back.grad) * here / reduce_sum(here, axes, keepdims=True)


@transpose_of("logsumexp")
def _logsumexp(back: Backward) -> Iterable[Contribution]:
    x = cast(TensorValue, back.call.args[0])
    yield x, _stretched(back, back.grad) * ops.exp(x - _stretched(back, back.result))


@transpose_of("cumsum")
def _cumsum(back: Backward) -> Iterable[Contribution]:
    x, axis = cast("tuple[TensorValue, int]", back.call.args)
    yield x, flip(cumsum(flip(back.grad, axis), axis), axis).cast(x.dtype)


@transpose_of("matmul")
def _matmul(back: Backward) -> Iterable[Contribution]:
    a, b = cast("tuple[TensorValue, TensorValue]", back.call.args)
    left = a if a.rank > 1 else reshape(a, [1, *a.shape])
    right = b if b.rank > 1 else reshape(b, [*b.shape, 1])
    rows = [left.shape[-2]]
    columns = [right.shape[-1]]
    front = back.result.shape[: back.result.rank - (a.rank > 1) - (b.rank > 1)]
    g = reshape(back.grad, [*front, *rows, *columns])
    yield a, reshape(unbroadcast(matmul(g, right.T), left), a.shape)
    if right.rank == 2 and left.rank > 2:
        # One product over all dims in front, rather than many that are then added.
        many = [*left.shape[:-1]]
        flat = Shape(many).numel()
        yield b, reshape(matmul(reshape(left, [flat, left.shape[-1]]).T, reshape(g, [flat, *columns])), b.shape)
    else:
        yield b, reshape(unbroadcast(matmul(left.T, g), right), b.shape)


@transpose_of("softmax")
def _softmax(back: Backward) -> Iterable[Contribution]:
    x, axis = cast("tuple[TensorValue, int]", back.call.args)
    weighted = back.grad * back.result
    yield x, weighted - back.result * reduce_sum(weighted, axis, keepdims=True)


@transpose_of("log_softmax")
def _log_softmax(back: Backward) -> Iterable[Contribution]:
    x, axis = cast("tuple[TensorValue, int]", back.call.args)
    yield x, back.grad - ops.exp(back.result) * reduce_sum(back.grad, axis, keepdims=True)


@transpose_of("layer_norm")
def _layer_norm(back: Backward) -> Iterable[Contribution]:
    x, _, gamma, beta, epsilon = back.call.args
    assert isinstance(x, TensorValue)
    away = x - mean(x, -1, keepdims=True)
    scale = ops.rsqrt(mean(away * away, -1, keepdims=True) + cast(float, epsilon))
    normed = away * scale
    inner = back.grad if gamma is None else back.grad * cast(TensorValue, gamma)
    centred = inner - mean(inner, -1, keepdims=True) - normed * mean(inner * normed, -1, keepdims=True)
    yield x, scale * centred
    if isinstance(gamma, TensorValue):
        yield gamma, unbroadcast(back.grad * normed, gamma)
    if isinstance(beta, TensorValue):
        yield beta, unbroadcast(back.grad, beta)


@transpose_of("rms_norm")
def _rms_norm(back: Backward) -> Iterable[Contribution]:
    x, _, weight, epsilon = back.call.args
    assert isinstance(x, TensorValue)
    scale = ops.rsqrt(mean(x * x, -1, keepdims=True) + cast(float, epsilon))
    normed = x * scale
    inner = back.grad if weight is None else back.grad * cast(TensorValue, weight)
    yield x, scale * (inner - normed * mean(inner * normed, -1, keepdims=True))
    if isinstance(weight, TensorValue):
        yield weight, unbroadcast(back.grad * normed, weight)


@transpose_of("gather")
def _gather(back: Backward) -> Iterable[Contribution]:
    x, at, axis = cast("tuple[TensorValue, TensorValue, int]", back.call.args)
    yield x, scatter_add(back.grad, at, x.shape[axis], axis)


@transpose_of("scatter_add")
def _scatter_add(back: Backward) -> Iterable[Contribution]:
    x, at, axis, _ = cast("tuple[TensorValue, TensorValue, int, Dim]", back.call.args)
    yield x, gather(back.grad, at, axis)


@transpose_of("embedding")
def _embedding(back: Backward) -> Iterable[Contribution]:
    table, at = cast("tuple[TensorValue, TensorValue]", back.call.args)
    yield table, scatter_add(back.grad, at, table.shape[0])


@transpose_of("take_along")
def _take_along(back: Backward) -> Iterable[Contribution]:
    x, axis, at = cast("tuple[TensorValue, int, TensorValue]", back.call.args)
    yield x, put_along(back.grad, at, x.shape[axis], axis)


@transpose_of("put_along")
def _put_along(back: Backward) -> Iterable[Contribution]:
    x, at, axis, _ = cast("tuple[TensorValue, TensorValue, int, Dim]", back.call.args)
    yield x, take_along(back.grad, at, axis)


@transpose_of("top_k")
def _top_k(back: Backward) -> Iterable[Contribution]:
    x, _, axis = cast("tuple[TensorValue, int, int]", back.call.args)
    grad, _ = back.filled()
    yield x, put_along(grad, back.results[1], x.shape[axis], axis)
