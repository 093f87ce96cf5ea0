"""Values on a mesh: as inputs and outputs, shard by shard, and captured from eager functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import CPU, P
from weft import graph as wg
from weft.graph import Graph, TensorType, ops
from weft.runtime.machine import use_separate_memory
from weft.sharding import (
    DistributedBufferType,
    DistributedTensorType,
    NamedMapping,
    Partial,
    Replicated,
    Sharded,
    TensorLayout,
)

CPUS = [CPU(i) for i in range(8)]
MESH = weft.make_mesh({"dp": 2, "tp": 4}, devices=CPUS)
SQUARE = weft.make_mesh({"dp": 2, "tp": 2}, devices=CPUS[:4])
LINE = weft.make_mesh({"dp": 4}, devices=CPUS[:4])


@pytest.fixture(params=["shared", "separate"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    use_separate_memory(request.param == "separate")
    yield request.param
    use_separate_memory(False)


def equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    assert isinstance(got, weft.Tensor)
    return torch.equal(got.full_tensor(), want)


KINDS = [
    DistributedTensorType("float32", ["n", 6], MESH, [Sharded(0), Sharded(1)]),
    DistributedTensorType("float32", ["n", 6], MESH, [Sharded(0), Sharded(0)]),
    DistributedTensorType("float32", ["n", 6], MESH, [Replicated(), Replicated()]),
    DistributedTensorType("float32", [10, 6], MESH, [Replicated(), Sharded(1)]),
    DistributedTensorType("float32", ["n", 6], MESH, [Partial(), Sharded(1)]),
    TensorLayout("float32", ["n", 6], NamedMapping(MESH, P(("tp", "dp"), None))),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_on_a_mesh_goes_in_and_comes_out(kind) -> None:
    with Graph("same", input_types=[kind]) as graph:
        graph.output(graph.inputs[0], ops.distributed(list(graph.inputs[0]), kind))
    model = wg.compile(graph)
    for n in (10,) if kind.shape.is_static else (10, 8, 3):
        data = torch.randn(n, 6)
        x = weft.tensor(data, mapping=kind.mapping)
        for got in model(x):
            assert equal(got, data)
            assert got._layout is x._layout


@pytest.mark.parametrize("kind", KINDS[:4], ids=str)
def test_each_device_computes_on_its_shard(kind) -> None:
    with Graph("local", input_types=[kind]) as graph:
        x = graph.inputs[0]
        assert [v.device.to_device() for v in x] == list(MESH.devices)
        graph.output(ops.distributed([v * (2.0 + 0 * i) for i, v in enumerate(x)], kind), x[3] + 1)
    data = torch.randn(10, 6)
    whole, one = wg.compile(graph)(weft.tensor(data, mapping=kind.mapping))
    assert equal(whole, data * 2)
    assert torch.equal(one, weft.tensor(data, mapping=kind.mapping).local_shards[3] + 1)


def test_what_can_stand_for_a_value_on_a_mesh() -> None:
    kind = DistributedTensorType("float32", ["n"], LINE, [Sharded(0)])
    with Graph("double", input_types=[kind]) as graph:
        graph.output(ops.distributed([v * 2 for v in graph.inputs[0]], kind))
    model = wg.compile(graph)
    data = torch.randn(7)
    elsewhere = weft.shard(data, weft.make_mesh({"x": 2}, devices=CPUS[:2]), P("x"))
    for given_ in (data, data.numpy(), weft.shard(data, LINE, P("dp")), weft.shard(data, LINE, P(None)), elsewhere):
        assert equal(model(given_), data * 2)
    assert equal(model([data[:2], data[2:4], data[4:6], data[6:]]), data * 2)


def test_a_tensor_on_a_mesh_can_stand_for_one_on_a_device() -> None:
    with Graph("plain", input_types=[TensorType("float32", ["n"])]) as graph:
        graph.output(graph.inputs[0] * 2)
    data = torch.randn(6)
    assert torch.equal(wg.compile(graph)(weft.shard(data, LINE, P("dp"))), data * 2)


def test_sharded_buffers_are_written_in_place(memory: str) -> None:
    kind = DistributedBufferType("float32", [7], LINE, [Sharded(0)])
    with Graph("count", input_types=[kind]) as graph:
        for buffer in graph.inputs[0]:
            buffer[...] = buffer[...] + 1
        graph.output()
    model = wg.compile(graph)
    state = weft.shard(torch.arange(7.0), LINE, P("dp"))
    for _ in range(3):
        model(state)
    assert torch.equal(state.full_tensor(), torch.arange(7.0) + 3)
    with pytest.raises(
        ValueError, match=r"input0 of graph 'count' is written to, so it needs a weft.Tensor that lies as"
    ):
        model(torch.zeros(7))


def test_what_is_refused() -> None:
    kind = DistributedTensorType("float32", ["n", 4], LINE, [Sharded(0)])
    with Graph("g", input_types={"x": kind}) as graph:
        x = graph.inputs[0]
        with pytest.raises(ValueError, match=r"needs one shard per device of dp=4, 4, but got 2"):
            ops.distributed(list(x)[:2], kind)
        with pytest.raises(ValueError, match=r"shard 0 of .* lies on cpu:0 and has its dtype and rank"):
            ops.distributed(list(x)[::-1], kind)
        with pytest.raises(IndexError, match="has 4 shards, but got 4"):
            x[4]
        with pytest.raises(TypeError, match="a buffer is an input of the graph"):
            ops.distributed(list(x), DistributedBufferType("float32", [4], LINE, [Sharded(0)]))
        graph.output(x)
    model = wg.compile(graph)
    with pytest.raises(ValueError, match=r"x of graph 'g' .* of rank 2, but got the shape \(4,\)"):
        model(torch.zeros(4))
    with pytest.raises(ValueError, match=r"x of graph 'g' .* dim 1 is 5, not 4"):
        model(torch.zeros(4, 5))
    with pytest.raises(ValueError, match=r"x of graph 'g' needs .*, but got torch.float64"):
        model(torch.zeros(4, 4, dtype=torch.float64))
    other = Graph("b", input_types=[DistributedBufferType("float32", [4], LINE, [Sharded(0)])])
    with other, pytest.raises(TypeError, match="is a buffer, which the caller already has"):
        other.output(other.inputs[0])


def test_gradients_reach_shards_and_wholes() -> None:
    kind = DistributedTensorType("float64", ["n"], LINE, [Sharded(0)])
    with Graph("loss", input_types=[kind]) as graph:
        x = graph.inputs[0]
        total = ops.constant(0.0, "float64")
        for i, shard in enumerate(x):
            total = total + ops.sum(shard**2 * (i + 1)).to(total.device)
        graph.output(total)
    grads = wg.grad(graph, wrt=list(x))
    assert [g.type for g in grads] == [v.type for v in x]
    data = torch.randn(7, dtype=torch.float64)
    got = wg.compile(graph).execute(weft.shard(data, LINE, P("dp")))[1:]
    weights = torch.tensor([1.0, 1, 2, 2, 3, 3, 4], dtype=torch.float64)
    torch.testing.assert_close(torch.cat(got), 2 * data * weights)


LAYOUTS = [P(None, None), P("dp", None), P(None, "tp"), P("dp", "tp"), P(("tp", "dp"), None), P(("dp", "tp"), None)]


def mlp(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w) @ v + x.mean()


@settings(max_examples=8)
@given(data=st.data())
def test_a_captured_function_gives_what_the_function_gives(data: st.DataObject) -> None:
    layouts = [data.draw(st.sampled_from(LAYOUTS)) for _ in range(3)]
    rows = data.draw(st.sampled_from([8, 10]))
    shapes = [(rows, 8), (8, 12), (12, 8)]
    x, w, v = (weft.shard(torch.randn(s), SQUARE, p) for s, p in zip(shapes, layouts, strict=True))
    model = wg.compile(wg.capture(mlp, x, w, v))
    want, got = mlp(x, w, v), model(x, w, v)
    assert got._layout is want._layout
    # A graph adds up what each device contributes; tensors in one memory are computed whole, which rounds otherwise.
    torch.testing.assert_close(got.full_tensor(), want.full_tensor())
    again = weft.shard(torch.randn(shapes[0]), SQUARE, layouts[0])
    torch.testing.assert_close(model(again, w, v).full_tensor(), mlp(again, w, v).full_tensor())


def communication(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    moved = weft.shard(x, MESH, P(None, "tp"))
    return (
        moved,
        weft.all_gather(moved),
        weft.all_reduce(x),
        weft.reduce_scatter(x, 1),
        weft.ppermute(x, [(i, (i + 4) % 8) for i in range(8)]),
    )


def test_communication_is_captured() -> None:
    x = weft.shard(torch.randn(8, 8), MESH, P("dp", None))
    got = wg.compile(wg.capture(communication, x))(x)
    for mine, want in zip(got, communication(x), strict=True):
        assert mine._layout is want._layout
        assert torch.equal(mine.full_tensor(), want.full_tensor())


def test_gradients_are_captured() -> None:
    x, w, v = (weft.shard(torch.randn(8, 8), MESH, p) for p in (P("dp", None), P(None, "tp"), P("tp", None)))
    step = torch.func.grad(lambda w, v, x: mlp(x, w, v).square().sum(), argnums=(0, 1))
    for got, want in zip(wg.compile(wg.capture(step, w, v, x))(w, v, x), step(w, v, x), strict=True):
        torch.testing.assert_close(got.full_tensor(), want.full_tensor())


def test_a_captured_graph_can_be_differentiated() -> None:
    x, w, v = (weft.shard(torch.randn(8, 8, dtype=torch.float64), MESH, P(None, None)) for _ in range(3))
    graph = wg.capture(lambda x, w, v: mlp(x, w, v).square().sum(), x, w, v)
    wg.grad(graph, wrt=[graph.inputs[1].pieces[0]])
    leaf = w.full_tensor().requires_grad_()
    loss = mlp(x.full_tensor(), leaf, v.full_tensor()).square().sum()
    got = wg.compile(graph).execute(x, w, v)[-1]
    torch.testing.assert_close(got, torch.autograd.grad(loss, leaf)[0])


def test_what_a_function_closes_over_is_a_constant() -> None:
    w = weft.shard(torch.ones(4, 4), LINE, P(None, "dp"))
    plain = torch.full((4,), 2.0)
    x = weft.shard(torch.randn(8, 4), LINE, P("dp", None))
    model = wg.compile(wg.capture(lambda x: x @ w + plain, x))
    torch.testing.assert_close(model(x).full_tensor(), x.full_tensor() @ torch.ones(4, 4) + 2)


def test_writing_in_place_stays_inside() -> None:
    def careless(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.add_(1)
        y[0] = 0
        return y

    x = weft.shard(torch.randn(8, 4), LINE, P("dp", None))
    model = wg.compile(wg.capture(careless, x))
    before = x.full_tensor().clone()
    assert torch.equal(model(x).full_tensor(), careless(x).full_tensor())
    assert torch.equal(x.full_tensor(), before)


def test_random_numbers_are_drawn_anew_at_each_run() -> None:
    x = weft.shard(torch.ones(64), LINE, P("dp"))
    model = wg.compile(wg.capture(lambda x: torch.nn.functional.dropout(x, 0.5), x))
    one, other = model(x).full_tensor(), model(x).full_tensor()
    assert not torch.equal(one, other)


def test_plain_tensors_and_types_can_be_captured() -> None:
    kind = DistributedTensorType("float32", [8, 4], LINE, [Sharded(0)])
    graph = wg.capture(lambda x, y: (x * y, y + 1), kind, TensorType("float32", [4]), name="mixed")
    assert graph.name == "mixed"
    data, y = torch.randn(8, 4), np.ones(4, dtype=np.float32)
    product, more = wg.compile(graph)(data, y)
    assert equal(product, data)
    assert torch.equal(more, torch.full((4,), 2.0))


def test_what_cannot_be_captured() -> None:
    with pytest.raises(ValueError, match=r"needs numbers for sizes, but got f32\[n\] on cpu:0"):
        wg.capture(torch.exp, TensorType("float32", ["n"]))
    with pytest.raises(TypeError, match="capture takes tensors and their types"):
        wg.capture(torch.exp, 3)
    with pytest.raises(TypeError, match="a captured function gives tensors, but this one gave 3"):
        wg.capture(lambda x: 3, torch.ones(2))


def test_what_each_device_holds_can_be_a_graphs_input() -> None:
    kind = DistributedTensorType("float32", [4, 6], LINE, [Sharded(0)])
    with Graph(
        "local", input_types=[*kind.local_types, *DistributedBufferType("u8", [8], LINE, [Sharded(0)]).local_types]
    ) as graph:
        graph.output(graph.inputs[0] * 2)
    assert [str(given) for given in graph.input_types] == [
        *map(str, kind.local_types),
        *map(str, DistributedBufferType("u8", [8], LINE, [Sharded(0)]).local_types),
    ]
