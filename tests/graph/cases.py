# ruff: noqa: PLW0108 - each case is written as one would write it
"""Every compute op beside the plain torch that it should equal, with inputs for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from weft.graph import ops


@dataclass(frozen=True)
class Case:
    name: str
    graph: Callable
    torch: Callable
    inputs: tuple[torch.Tensor, ...]
    gradient: bool = True
    symbolic: bool = True

    def __repr__(self) -> str:
        return self.name


_random = torch.Generator().manual_seed(7)


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_random, dtype=torch.float64)


def positive(*shape: int) -> torch.Tensor:
    return floats(*shape).abs() + 0.5


def whole(*shape: int, below: int = 5) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=_random)


def flags(*shape: int) -> torch.Tensor:
    return floats(*shape) > 0


X, Y, Z = floats(5, 4), floats(5, 4), floats(4)
A3, B3 = floats(2, 5, 4), floats(2, 4, 3)
POINTS = positive(5, 4)
N, M = whole(5, 4) + 1, whole(5, 4) + 1
B1, B2 = flags(5, 4), flags(5, 4)
TIED = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=torch.float64)
WITH_ZEROS = torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 2.0]], dtype=torch.float64)

UNARY = [
    *(
        (name, getattr(torch, name), X)
        for name in ["neg", "abs", "exp", "square", "sin", "cos", "tanh", "erf", "sigmoid", "relu"]
    ),
    *((name, getattr(torch, name), POINTS) for name in ["log", "log1p", "sqrt", "rsqrt", "reciprocal"]),
    ("silu", F.silu, X),
    ("gelu", F.gelu, X),
]
FLAT = [
    *((name, getattr(torch, name), X) for name in ["sign", "floor", "ceil", "round", "trunc"]),
    ("is_nan", torch.isnan, X / torch.zeros(4)),
    ("is_inf", torch.isinf, X / torch.zeros(4)),
    ("logical_not", torch.logical_not, B1),
    ("bitwise_not", torch.bitwise_not, N),
]
BINARY = [
    *((name, getattr(torch, name), X, Z) for name in ["add", "sub", "mul"]),
    ("div", torch.div, X, POINTS),
    ("maximum", torch.maximum, X, Y),
    ("maximum", torch.maximum, TIED, TIED.flip(1)),
    ("minimum", torch.minimum, TIED, TIED.flip(1)),
    ("minimum", torch.minimum, X, Z),
    ("atan2", torch.atan2, X, Y),
    ("pow", torch.pow, POINTS, X),
    ("mod", torch.remainder, X, POINTS),
]
FLAT_BINARY = [
    ("floordiv", torch.floor_divide, N * 3, M),
    ("mod", torch.remainder, N * 3, M),
    *(
        (name, op, N, M)
        for name, op in [
            ("equal", torch.eq),
            ("not_equal", torch.ne),
            ("less", torch.lt),
            ("less_equal", torch.le),
            ("greater", torch.gt),
            ("greater_equal", torch.ge),
            ("bitwise_and", torch.bitwise_and),
            ("bitwise_or", torch.bitwise_or),
            ("bitwise_xor", torch.bitwise_xor),
        ]
    ),
    *((name, getattr(torch, name), B1, B2) for name in ("logical_and", "logical_or", "logical_xor")),
]
REDUCED = [
    ("sum", torch.sum),
    ("mean", torch.mean),
    ("max", torch.amax),
    ("min", torch.amin),
    ("logsumexp", torch.logsumexp),
]


def _reduce(name: str, axis: object, keep: bool) -> Callable:
    return lambda x: getattr(ops, name)(x, axis, keepdims=keep)


def _reduce_torch(op: Callable, axis: object, keep: bool) -> Callable:
    return lambda x: op(x, tuple(range(x.ndim)) if axis is None else axis, keepdim=keep)


OTHER = [
    Case("gelu tanh", lambda x: ops.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), (X,)),
    Case("pow number", lambda x: x**3, lambda x: x**3, (X,)),
    Case("pow zero", lambda x: x**0, lambda x: x**0, (WITH_ZEROS,)),
    Case("number pow", lambda x: 2.0**x, lambda x: 2.0**x, (X,)),
    Case("number sub", lambda x: 1 - x, lambda x: 1 - x, (X,)),
    Case("number div", lambda x: 1 / x, lambda x: 1 / x, (POINTS,)),
    Case("number floordiv", lambda x: 7 // x, lambda x: 7 // x, (N,), gradient=False),
    Case("number mod", lambda x: 7 % x, lambda x: 7 % x, (N,), gradient=False),
    Case("invert", lambda x: ~x, lambda x: ~x, (B1,), gradient=False),
    Case("abs operator", abs, abs, (X,)),
    Case("where", lambda c, x, y: ops.where(c, x, y), torch.where, (B1, X, Y)),
    Case("where numbers", lambda c, x: ops.where(c, x, 0.0), lambda c, x: torch.where(c, x, 0.0), (B1, X)),
    Case("clamp", lambda x: ops.clamp(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5), (X,)),
    Case("clamp lower", lambda x: ops.clamp(x, 0.1), lambda x: x.clamp(0.1), (X,)),
    Case("clamp whole", lambda x: ops.clamp(x, upper=2), lambda x: x.clamp(max=2), (N,), gradient=False),
    Case("cast", lambda x: x.cast("float32"), lambda x: x.float(), (X,)),
    Case("prod", lambda x: ops.prod(x, 1), lambda x: x.prod(1), (WITH_ZEROS,)),
    Case("prod all", lambda x: ops.prod(x), lambda x: x.prod(), (X,)),
    Case("max ties", lambda x: ops.max(x, 1), lambda x: torch.amax(x, 1), (TIED,)),
    Case("min ties", lambda x: ops.min(x), lambda x: torch.amin(x), (TIED,)),
    Case("any", lambda x: ops.any(x, 0), lambda x: x.any(0), (B1,), gradient=False),
    Case("all", lambda x: ops.all(x), lambda x: x.all(), (B1,), gradient=False),
    Case("variance", lambda x: ops.variance(x, 1), lambda x: x.var(1, correction=0), (X,)),
    Case("variance 1", lambda x: ops.variance(x, correction=1), lambda x: x.var(), (X,)),
    Case("argmax", lambda x: ops.argmax(x), lambda x: x.argmax(-1), (X,), gradient=False),
    Case(
        "argmin", lambda x: ops.argmin(x, 0, keepdims=True), lambda x: x.argmin(0, keepdim=True), (X,), gradient=False
    ),
    Case("cumsum", lambda x: ops.cumsum(x, 0), lambda x: x.cumsum(0), (X,)),
    Case("matmul 2 2", ops.matmul, torch.matmul, (X, floats(4, 3))),
    Case("matmul 1 1", ops.matmul, torch.matmul, (Z, floats(4))),
    Case("matmul 2 1", ops.matmul, torch.matmul, (X, Z)),
    Case("matmul 1 2", ops.matmul, torch.matmul, (Z, floats(4, 3))),
    Case("matmul 3 2", ops.matmul, torch.matmul, (A3, floats(4, 3))),
    Case("matmul 3 1", ops.matmul, torch.matmul, (A3, Z)),
    Case("matmul 1 3", ops.matmul, torch.matmul, (Z, B3)),
    Case("matmul 3 3", ops.matmul, torch.matmul, (A3, B3)),
    Case("matmul stretched", ops.matmul, torch.matmul, (floats(2, 1, 5, 4), B3)),
    Case("softmax", lambda x: ops.softmax(x, 0), lambda x: x.softmax(0), (X,)),
    Case("log_softmax", lambda x: ops.log_softmax(x), lambda x: x.log_softmax(-1), (X,)),
    Case("layer_norm", ops.layer_norm, lambda x, w, b: F.layer_norm(x, (4,), w, b), (A3, Z, floats(4))),
    Case("layer_norm bare", lambda x: ops.layer_norm(x, epsilon=1e-3), lambda x: F.layer_norm(x, (4,), eps=1e-3), (X,)),
    Case("rms_norm", ops.rms_norm, lambda x, w: F.rms_norm(x, (4,), w, 1e-6), (A3, Z)),
    Case("rms_norm bare", ops.rms_norm, lambda x: F.rms_norm(x, (4,), eps=1e-6), (X,)),
    Case("attention", ops.attention, F.scaled_dot_product_attention, (A3, floats(2, 6, 4), floats(2, 6, 3))),
    Case(
        "attention causal",
        lambda q, k, v: ops.attention(q, k, v, causal=True, scale=0.3),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        (A3, floats(2, 5, 4), floats(2, 5, 4)),
    ),
    Case(
        "attention mask",
        ops.attention,
        F.scaled_dot_product_attention,
        (A3, floats(2, 6, 4), floats(2, 6, 4), floats(5, 6)),
    ),
    Case("reshape", lambda x: x.reshape([-1, 2, 5]), lambda x: x.reshape(-1, 2, 5), (X,), symbolic=False),
    Case("flatten", lambda x: x.flatten(1), lambda x: x.flatten(1), (A3,)),
    Case("flatten number", lambda x: ops.sum(x).flatten(), lambda x: x.sum().flatten(), (X,)),
    Case("broadcast_to", lambda x: x.broadcast_to([2, 5, 4]), lambda x: x.broadcast_to(2, 5, 4), (X,), symbolic=False),
    Case("permute", lambda x: x.permute([2, 0, 1]), lambda x: x.permute(2, 0, 1), (A3,)),
    Case("transpose", lambda x: x.transpose(0, -1), lambda x: x.transpose(0, -1), (A3,)),
    Case("T", lambda x: x.T, lambda x: x.mT, (A3,)),
    Case("squeeze", lambda x: ops.squeeze(x, 1), lambda x: x.squeeze(1), (floats(3, 1, 2),)),
    Case("unsqueeze", lambda x: ops.unsqueeze(x, -1), lambda x: x.unsqueeze(-1), (X,)),
    Case("concat", lambda x, y: ops.concat([x, y, x], 1), lambda x, y: torch.cat([x, y, x], 1), (X, floats(5, 2))),
    Case("stack", lambda x, y: ops.stack([x, y], 1), lambda x, y: torch.stack([x, y], 1), (X, Y)),
    Case("split", lambda x: ops.split(x, [1, 3], 1), lambda x: x.split([1, 3], 1), (X,), symbolic=False),
    Case("split one used", lambda x: ops.split(x, [1, 3], 1)[1], lambda x: x.split([1, 3], 1)[1], (X,), symbolic=False),
    Case("chunk", lambda x: ops.chunk(x, 3), lambda x: x.split([2, 2, 1]), (X,)),
    Case("flip", lambda x: ops.flip(x, -1), lambda x: x.flip(-1), (X,)),
    Case("tile", lambda x: ops.tile(x, [2, 3]), lambda x: x.tile(2, 3), (X,)),
    Case("tril", lambda x: ops.tril(x, 1), lambda x: x.tril(1), (X,)),
    Case("triu", lambda x: ops.triu(x), lambda x: x.triu(), (X,)),
    Case("index", lambda x: x[1], lambda x: x[1], (X,)),
    Case("index from the back", lambda x: x[..., -1], lambda x: x[..., -1], (A3,)),
    Case("slice", lambda x: x[1:4, ::2], lambda x: x[1:4, ::2], (X,)),
    Case("slice past the end", lambda x: x[2:100, -9:2], lambda x: x[2:100, -9:2], (X,), symbolic=False),
    Case("slice empty", lambda x: x[3:1], lambda x: x[3:1], (X,)),
    Case("index none", lambda x: x[:, None, 1:], lambda x: x[:, None, 1:], (X,)),
    Case("index tensor", lambda x, i: x[:, i], lambda x, i: x[:, i], (X, whole(3, below=4))),
    Case("gather", lambda x, i: ops.gather(x, i, 1), lambda x, i: x[:, i], (X, whole(2, 3, below=4))),
    Case(
        "scatter_add",
        lambda x, i: ops.scatter_add(x, i, 6),
        lambda x, i: torch.zeros(6, 4, dtype=x.dtype).index_add(0, i, x),
        (X, whole(5)),
    ),
    Case("take_along", lambda x, i: ops.take_along(x, i), lambda x, i: x.gather(-1, i), (X, whole(5, 2, below=4))),
    Case(
        "put_along",
        lambda x, i: ops.put_along(x, i, 6),
        lambda x, i: torch.zeros(5, 6, dtype=x.dtype).scatter_add(-1, i, x),
        (X, whole(5, 4)),
    ),
    Case("pad", lambda x: ops.pad(x, 1, 1, 12, 3), lambda x: _padded(x), (X,)),
    Case("embedding", ops.embedding, lambda w, i: F.embedding(i, w), (X, whole(2, 3))),
    Case("one_hot", lambda i: ops.one_hot(i, 5), lambda i: F.one_hot(i, 5), (whole(3),), gradient=False),
    Case("top_k", lambda x: ops.top_k(x, 2), lambda x: x.topk(2), (X,)),
    Case(
        "argsort", lambda x: ops.argsort(x, descending=True), lambda x: x.argsort(descending=True), (X,), gradient=False
    ),
    Case("nonzero", lambda x: ops.nonzero(x, "found"), torch.nonzero, (B1,), gradient=False),
    Case("zeros", lambda x: ops.zeros(x.shape) + x, lambda x: torch.zeros(x.shape) + x, (X,)),
    Case("ones", lambda x: ops.ones([4]) * x, lambda x: torch.ones(4) * x, (X,), symbolic=False),
    Case("full", lambda x: ops.full(x.shape, 2.5, x.dtype) * x, lambda x: torch.full_like(x, 2.5) * x, (X,)),
    Case("arange", lambda x: ops.arange(1, x.shape[0], 2), lambda x: torch.arange(1, 5, 2), (X,), gradient=False),
    Case("constant", lambda x: x + ops.constant(Z), lambda x: x + Z, (X,), symbolic=False),
    Case("implicit constant", lambda x: x @ Z.numpy(), lambda x: x @ Z, (X,), symbolic=False),
    Case("numpy on the left", lambda x: Z.numpy() + x, lambda x: Z + x, (X,), symbolic=False),
    Case("sizes", lambda x: x * x.shape[0], lambda x: x * 5, (X,)),
]


def _padded(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(5, 12, dtype=x.dtype)
    out[:, 1::3] = x
    return out


CASES = [
    *(Case(name, getattr(ops, name), op, (x,)) for name, op, x in UNARY),
    *(Case(name, getattr(ops, name), op, (x,), gradient=False) for name, op, x in FLAT),
    *(Case(f"{name} {x.shape[0]}", getattr(ops, name), op, (x, y)) for name, op, x, y in BINARY),
    *(Case(f"{name} whole", getattr(ops, name), op, (x, y), gradient=False) for name, op, x, y in FLAT_BINARY),
    *(
        Case(f"{name} {axis} {keep}", _reduce(name, axis, keep), _reduce_torch(op, axis, keep), (A3,))
        for name, op in REDUCED
        for axis in (0, -1, (0, 2), None)
        for keep in (False, True)
    ),
    *OTHER,
]
