"""Random graphs over many devices give what the same program gives in plain torch, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import given
from hypothesis import strategies as st

from weft import graph as wg
from weft.devices import CPU
from weft.graph import DeviceRef, Graph, Signals, TensorType, TensorValue, ops
from weft.runtime.machine import use_separate_memory

DEVICES = 3


@dataclass
class Both:
    """The same program twice: as graph values and as plain tensors, one pair for each value so far."""

    signals: list
    graph: list[TensorValue] = field(default_factory=list)
    plain: list[torch.Tensor] = field(default_factory=list)

    def add(self, value: TensorValue, tensor: torch.Tensor) -> None:
        self.graph.append(value)
        self.plain.append(tensor)

    def together(self, device: DeviceRef) -> list[tuple[TensorValue, torch.Tensor]]:
        return [(v, t) for v, t in zip(self.graph, self.plain, strict=True) if v.device == device]


UNARY: list[tuple[Callable, Callable]] = [
    (ops.tanh, torch.tanh),
    (ops.sin, torch.sin),
    (ops.relu, torch.relu),
    (lambda x: x * 0.5 + 1, lambda x: x * 0.5 + 1),
    (lambda x: ops.softmax(x, 0), lambda x: torch.softmax(x, 0)),
    (lambda x: ops.sum(x, 0, keepdims=True) * x, lambda x: x.sum(0, keepdim=True) * x),
    (ops.layer_norm, lambda x: torch.nn.functional.layer_norm(x, (x.shape[-1],))),
    (lambda x: ops.flip(x, 0), lambda x: x.flip(0)),
    (lambda x: x.permute([1, 0]).permute([1, 0]), lambda x: x),
    (lambda x: x.reshape([-1]).reshape(x.shape), lambda x: x),
    (lambda x: ops.concat([x[:, 1:], x[:, :1]], 1), lambda x: torch.cat([x[:, 1:], x[:, :1]], 1)),
]
BINARY: list[tuple[Callable, Callable]] = [
    (lambda a, b: a + b, torch.add),
    (lambda a, b: a - b, torch.sub),
    (lambda a, b: a * b, torch.mul),
    (ops.maximum, torch.maximum),
    (lambda a, b: a @ b.T @ b, lambda a, b: a @ b.T @ b),
    (lambda a, b: ops.where(a > b, a, b * 2), lambda a, b: torch.where(a > b, a, b * 2)),
]


COLLECTIVES: list[tuple[Callable, Callable]] = [
    (ops.allreduce.sum, lambda xs: [sum(xs[1:], xs[0])] * len(xs)),
    (ops.allreduce.mean, lambda xs: [sum(xs[1:], xs[0]) / len(xs)] * len(xs)),
    (ops.allreduce.max, lambda xs: [torch.stack(xs).amax(0)] * len(xs)),
    (lambda xs, s: ops.ppermute(xs, s, [(0, 1), (1, 2), (2, 0)]), lambda xs: [xs[2], xs[0], xs[1]]),
    (lambda xs, s: ops.ppermute(xs, s, [(0, 1)]), lambda xs: [xs[0] * 0, xs[0], xs[0] * 0]),
    (lambda xs, s: ops.distributed_broadcast(xs[1], s), lambda xs: [xs[1]] * len(xs)),
    (
        lambda xs, s: ops.allgather(ops.reducescatter.sum(xs, s), s),
        lambda xs: [sum(xs[1:], xs[0])] * len(xs),
    ),
    (
        lambda xs, s: [g[: x.shape[0]] for g, x in zip(ops.allgather(xs, s), xs, strict=True)],
        lambda xs: [xs[0]] * len(xs),
    ),
]


def step(both: Both, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["unary", "binary", "transfer", "collective"]))
    if kind == "unary":
        at = data.draw(st.integers(0, len(both.graph) - 1))
        mine, plain = data.draw(st.sampled_from(UNARY))
        both.add(mine(both.graph[at]), plain(both.plain[at]))
    elif kind == "binary":
        device = both.graph[data.draw(st.integers(0, len(both.graph) - 1))].device
        pairs = both.together(device)
        (a, x), (b, y) = data.draw(st.sampled_from(pairs)), data.draw(st.sampled_from(pairs))
        mine, plain = data.draw(st.sampled_from(BINARY))
        both.add(mine(a, b), plain(x, y))
    elif kind == "transfer":
        at, to = data.draw(st.integers(0, len(both.graph) - 1)), data.draw(st.integers(0, DEVICES - 1))
        both.add(both.graph[at].to(CPU(to)), both.plain[at])
    else:
        pairs = [data.draw(st.sampled_from(both.together(DeviceRef.CPU(i)))) for i in range(DEVICES)]
        mine, plain = data.draw(st.sampled_from(COLLECTIVES))
        values, tensors = mine([v for v, _ in pairs], both.signals), plain([t for _, t in pairs])
        for value, tensor in zip(values, tensors, strict=True):
            both.add(value, tensor)


@given(data=st.data())
def test_random_graphs_equal_plain_torch(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    inputs = [torch.randn(rows, columns, dtype=torch.float64, requires_grad=True) for _ in range(DEVICES)]
    signals = Signals([CPU(i) for i in range(DEVICES)])
    shape = [data.draw(st.sampled_from(["rows", rows])), columns]
    kinds = [TensorType("float64", shape, CPU(i)) for i in range(DEVICES)]
    use_separate_memory(data.draw(st.booleans()))
    try:
        with Graph("random", input_types=[*kinds, *signals.input_types()]) as graph:
            both = Both(graph.inputs[DEVICES:], list(graph.inputs[:DEVICES]), list(inputs))
            for _ in range(data.draw(st.integers(1, 8))):
                step(both, data)
            loss = ops.sum(both.graph[-1])
            graph.output(loss, *both.graph)
        wg.grad(graph, wrt=list(range(DEVICES)))
        results = wg.compile(graph).execute(*[x.detach() for x in inputs], *signals.buffers())
    finally:
        use_separate_memory(False)
    wants = [both.plain[-1].sum(), *both.plain]
    for got, want, value in zip(results, wants, [loss, *both.graph], strict=False):
        torch.testing.assert_close(got, want.detach(), rtol=1e-9, atol=1e-9)
        assert value.shape.subs({"rows": rows}) == tuple(want.shape)
    grads = torch.autograd.grad(wants[0], inputs, allow_unused=True)
    for got, want in zip(results[len(wants) :], grads, strict=True):
        torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want, rtol=1e-8, atol=1e-8)
