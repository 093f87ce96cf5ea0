"""Matrix products, norms, softmax, attention: the parts of a transformer."""

from __future__ import annotations

import torch
from torch.nn import functional

from ...sharding.dims import Shape
from ..recording.graph import Graph
from ..recording.op import Op
from ..recording.types import TensorType
from ..recording.values import TensorLike, TensorValue, operation
from .inference import broadcast_shape, common_device, listed
from .reductions import along

MATMUL = Op("matmul", torch.matmul)
SOFTMAX = Op("softmax", torch.softmax)
LOG_SOFTMAX = Op("log_softmax", torch.log_softmax)
LAYER_NORM = Op("layer_norm", functional.layer_norm)
RMS_NORM = Op("rms_norm", functional.rms_norm)
# Which kernel computes it, and with which gradient, torch decides for a device, sizes and dtype, when it runs.
ATTENTION = Op("attention", functional.scaled_dot_product_attention, opaque=True)


@operation
def matmul(lhs: TensorLike, rhs: TensorLike) -> TensorValue:
    """The matrix product, with torch's rules for vectors and for dims in front.

    >>> from weft.graph import Graph, TensorType
    >>> kinds = [TensorType("float32", ["batch", 8, 16]), TensorType("float32", [16, 4])]
    >>> with Graph("g", input_types=kinds) as graph:
    ...     matmul(*graph.inputs)
    TensorValue(matmul: f32[batch, 8, 4] on cpu:0)
    """
    graph = Graph.current()
    on = next((operand.device for operand in (lhs, rhs) if isinstance(operand, TensorValue)), None)
    a, b = graph.tensor(lhs, on), graph.tensor(rhs, on)
    if a.rank == 0 or b.rank == 0:
        raise ValueError(f"matmul needs tensors of rank 1 or more, but got {a.type} and {b.type}: use * for numbers")
    if a.dtype != b.dtype:
        raise TypeError(
            f"matmul needs one dtype, but got {a.type} and {b.type}: cast one, for instance rhs.cast({a.dtype})"
        )
    left, right = _matrix(a.shape, front=True), _matrix(b.shape, front=False)
    if left[-1] != right[-2]:
        raise ValueError(
            f"matmul cannot contract {a.type} with {b.type}: the sizes {left[-1]} and {right[-2]} differ; "
            "transpose one, or if they are the same, say so with x.rebind(shape)"
        )
    rows = [left[-2]] if a.rank > 1 else []
    columns = [right[-1]] if b.rank > 1 else []
    shape = broadcast_shape([left[:-2], right[:-2]], "matmul") + rows + columns
    return graph.record(MATMUL, (a, b), [TensorType(a.dtype, shape, common_device((a, b), "matmul"))])[0]


def _matrix(shape: Shape, *, front: bool) -> Shape:
    if len(shape) > 1:
        return shape
    return Shape([1, *shape]) if front else Shape([*shape, 1])


def softmax(x: TensorLike, axis: int = -1) -> TensorValue:
    """Exponentials that add up to 1 along a dim.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     softmax(graph.inputs[0])
    TensorValue(softmax: f32[batch, 4] on cpu:0)
    """
    return along(SOFTMAX, x, axis)


def log_softmax(x: TensorLike, axis: int = -1) -> TensorValue:
    """The logarithm of `softmax`.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     log_softmax(graph.inputs[0])
    TensorValue(log_softmax: f32[batch, 4] on cpu:0)
    """
    return along(LOG_SOFTMAX, x, axis)


def layer_norm(
    x: TensorLike, gamma: TensorLike | None = None, beta: TensorLike | None = None, epsilon: float = 1e-5
) -> TensorValue:
    """The last dim brought to mean 0 and variance 1, then scaled by `gamma` and moved by `beta`.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4]), TensorType("float32", [4])]) as graph:
    ...     layer_norm(*graph.inputs)
    TensorValue(layer_norm: f32[batch, 4] on cpu:0)
    """
    graph, value, parts = _normed(x, (gamma, beta), "layer_norm")
    return graph.record(LAYER_NORM, (value, (value.shape[-1],), *parts, epsilon), [value.type])[0]


def rms_norm(x: TensorLike, weight: TensorLike | None = None, epsilon: float = 1e-6) -> TensorValue:
    """The last dim divided by the root of its mean square, then scaled by `weight`.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4]), TensorType("float32", [4])]) as graph:
    ...     rms_norm(*graph.inputs)
    TensorValue(rms_norm: f32[batch, 4] on cpu:0)
    """
    graph, value, parts = _normed(x, (weight,), "rms_norm")
    return graph.record(RMS_NORM, (value, (value.shape[-1],), *parts, epsilon), [value.type])[0]


def _normed(
    x: TensorLike, weights: tuple[TensorLike | None, ...], what: str
) -> tuple[Graph, TensorValue, list[TensorValue | None]]:
    graph = Graph.current()
    value = graph.tensor(x)
    if value.rank == 0 or not value.dtype.is_floating_point:
        raise ValueError(f"{what} needs floats of rank 1 or more, but got {value.type}")
    parts = [None if weight is None else graph.tensor(weight, value.device) for weight in weights]
    given = [part for part in parts if part is not None]
    for part in given:
        if part.shape != value.shape[-1:] or part.dtype != value.dtype:
            raise ValueError(f"{what} of {value.type} needs weights of its last dim and dtype, but got {part.type}")
    common_device([value, *given], what)
    return graph, value, parts


def attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    mask: TensorLike | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> TensorValue:
    """Scaled dot-product attention over the last two dims (position, feature).

    >>> from weft.graph import Graph, TensorType
    >>> head = TensorType("float32", ["batch", 8, "seq", 64])
    >>> with Graph("g", input_types=[head] * 3) as graph:
    ...     attention(*graph.inputs, causal=True)
    TensorValue(attention: f32[batch, 8, seq, 64] on cpu:0)
    """
    graph = Graph.current()
    q, k, v = graph.tensor(query), graph.tensor(key), graph.tensor(value)
    if min(q.rank, k.rank, v.rank) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"attention cannot match the query, key and value {listed((q.type, k.type, v.type))}")
    bias = None if mask is None else graph.tensor(mask, q.device)
    given = [q, k, v] if bias is None else [q, k, v, bias]
    if len({q.dtype, k.dtype, v.dtype}) > 1:
        raise TypeError(f"attention needs one dtype, but got {listed((q.type, k.type, v.type))}")
    front = broadcast_shape([q.shape[:-2], k.shape[:-2], v.shape[:-2]], "attention")
    kind = TensorType(q.dtype, [*front, q.shape[-2], v.shape[-1]], common_device(given, "attention"))
    return graph.record(ATTENTION, (q, k, v, bias, 0.0, causal), [kind], kwargs={"scale": scale})[0]
