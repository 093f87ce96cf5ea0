"""Graphs on accelerators: eight logical ones on one GPU give what the CPU gives, again and again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from weft import graph as wg
from weft.devices import CPU, Accelerator
from weft.graph import BufferType, Graph, Signals, TensorType, ops
from weft.runtime import machine

pytestmark = pytest.mark.gpu

COUNT = 8


@pytest.fixture(autouse=True)
def eight_accelerators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEFT_VIRTUAL_ACCELERATORS", str(COUNT))
    machine.reset()
    yield
    machine.reset()


COLLECTIVES = {
    "broadcast": lambda xs, s: ops.distributed_broadcast(xs[3], s),
    "allgather": lambda xs, s: ops.allgather(xs, s, 1),
    "alltoall": lambda xs, s: ops.alltoall(xs, s, 0, 1),
    "ppermute": lambda xs, s: ops.ppermute(xs, s, [(i, (i + 1) % COUNT) for i in range(COUNT)]),
    **{
        f"allreduce {how}": lambda xs, s, how=how: getattr(ops.allreduce, how)(xs, s)
        for how in ("sum", "mean", "max", "prod")
    },
    **{
        f"reducescatter {how}": lambda xs, s, how=how: getattr(ops.reducescatter, how)(xs, s, 1)
        for how in ("sum", "min")
    },
}


def results(function, device: type, data: list[torch.Tensor], runs: int = 1) -> list[torch.Tensor]:
    signals = Signals([device(i) for i in range(COUNT)])
    kinds = [TensorType(x.dtype, ["rows", x.shape[1]], device(i)) for i, x in enumerate(data)]
    with Graph("tried", input_types=[*kinds, *signals.input_types()]) as graph:
        graph.output(*[value * 2 for value in function(graph.inputs[:COUNT], graph.inputs[COUNT:])])
    model, buffers = wg.compile(graph), signals.buffers()
    where = "cpu" if device is CPU else "cuda"
    inputs = [x.to(where) for x in data]
    for _ in range(runs):
        outputs = model.execute(*inputs, *buffers)
    assert all(x.device.type == where for x in outputs)
    return [x.cpu() for x in outputs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", COLLECTIVES.values(), ids=COLLECTIVES)
def test_collectives_give_what_the_cpu_gives(function, dtype: torch.dtype) -> None:
    data = [torch.randn(16, 24).to(dtype) for _ in range(COUNT)]
    for got, want in zip(results(function, Accelerator, data, runs=4), results(function, CPU, data), strict=True):
        torch.testing.assert_close(got, want)


def test_values_travel_between_the_host_and_accelerators() -> None:
    weight = torch.randn(4, 4)
    with Graph("travel", input_types=[TensorType("float32", ["n", 4])]) as graph:
        x = graph.inputs[0]
        parts = ops.shard_and_stack([ops.constant(weight)], [Accelerator(i) for i in range(4)], axis=1)
        ys = [ops.relu(x.to(Accelerator(i)) @ part[0]).to(CPU(0)) for i, part in enumerate(parts)]
        graph.output(ops.concat(ys, 1), x.to(Accelerator(2)))
    model = wg.compile(graph)
    assert "narrow" not in model.source
    for n in (3, 5, 3, 3):
        data = torch.randn(n, 4)
        here, there = model(data)
        assert (here.device.type, there.device.type) == ("cpu", "cuda")
        torch.testing.assert_close(here, torch.relu(data @ weight), rtol=1e-4, atol=1e-4)
        assert torch.equal(there.cpu(), data)


def test_buffers_and_gradients_on_an_accelerator() -> None:
    kinds = {"w": BufferType("float32", [3], Accelerator(1)), "x": TensorType("float32", ["n", 3], Accelerator(1))}
    with Graph("step", input_types=kinds) as graph:
        memory, x = graph.inputs
        w = memory[...]
        loss = ops.mean(ops.square(x @ w - 1.0))
        (slope,) = wg.grad(graph, wrt=w, of=loss)
        memory[...] = w - slope * 0.05
        graph.output(loss)
    model = wg.compile(graph)
    w, plain = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
    for _ in range(10):
        data = torch.randn(8, 3, device="cuda")
        leaf = plain.clone().requires_grad_()
        want = (data @ leaf - 1.0).square().mean()
        (slope_data,) = torch.autograd.grad(want, leaf)
        plain = plain - slope_data * 0.05
        torch.testing.assert_close(model(w, data), want.detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(w, plain, rtol=1e-3, atol=1e-4)


def test_a_tensor_on_the_wrong_side_is_refused() -> None:
    with Graph("g", input_types=[TensorType("float32", [2], Accelerator(0))]) as graph:
        graph.output(graph.inputs[0] + 1)
    with pytest.raises(ValueError, match=r"input0 of graph 'g' .* is torch's cuda:0, but got a tensor on cpu"):
        wg.compile(graph)(torch.ones(2))
