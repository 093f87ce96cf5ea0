"""Recording: what belongs where, what prints how, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weft import graph as wg
from weft.devices import CPU, Accelerator
from weft.graph import BufferType, DeviceRef, Dim, Graph, Shape, Signals, TensorType, ops

F32 = TensorType("float32", ["batch", 4])


@pytest.mark.parametrize(
    "value",
    [DeviceRef.CPU(), DeviceRef.GPU(3), F32, BufferType("uint8", [64], DeviceRef.GPU(1)), TensorType("bool", [])],
    ids=repr,
)
def test_values_read_back(value: object) -> None:
    names = {"TensorType": TensorType, "BufferType": BufferType, "DeviceRef": DeviceRef, "Shape": Shape, "torch": torch}
    assert eval(repr(value), names) == value
    assert hash(eval(repr(value), names)) == hash(value)


def test_devices() -> None:
    assert DeviceRef.of(CPU(2)) == DeviceRef.CPU(2)
    assert DeviceRef.GPU(1).to_device() == Accelerator(1)
    assert DeviceRef.GPU(1).is_gpu()
    assert not DeviceRef.GPU(1).is_cpu()
    assert DeviceRef.CPU() != DeviceRef.GPU()
    with pytest.raises(TypeError, match="a DeviceRef needs CPU"):
        DeviceRef("cpu")


def test_types() -> None:
    assert TensorType("f32", ["batch", 4]) == F32 == TensorType(torch.float32, Shape(["batch", 4]), CPU(0))
    assert F32 != BufferType("float32", ["batch", 4])
    assert str(F32.num_bytes()) == "batch * 16"
    with pytest.raises(TypeError, match="unknown dtype 'float3'"):
        TensorType("float3", [])
    with pytest.raises(ValueError, match="0 or more, but got -1"):
        TensorType("float32", [-1])
    with pytest.raises(AttributeError):
        F32.dtype = torch.int8  # type: ignore[misc]


def test_a_graph_prints_readably() -> None:
    signals = Signals([CPU(i) for i in range(8)])
    with Graph(
        "block", input_types={"x": F32, **{f"s{i}": kind for i, kind in enumerate(signals.input_types())}}
    ) as graph:
        x, *buffers = graph.inputs
        copies = ops.distributed_broadcast(x, buffers)
        halves = ops.reshape(copies[0], [-1, 8])
        graph.output(halves + ops.constant([1.0] * 8), copies[7])
    lines = str(graph).splitlines()
    assert lines[:2] == ["graph block(", "    x: f32[batch, 4] on cpu:0,"]
    assert lines[10:] == [
        ")",
        "  distributed_broadcast_0, distributed_broadcast_1, .., distributed_broadcast_7 = distributed_broadcast(x, [s0, s1, .., s7])"
        "  f32[batch, 4] on cpu:0, cpu:1, .., cpu:7",
        "  reshape = reshape(distributed_broadcast_0, [batch // 2, 8])  f32[batch // 2, 8] on cpu:0",
        "  constant = constant(<8 numbers>)  f32[8] on cpu:0",
        "  add = add(reshape, constant)      f32[batch // 2, 8] on cpu:0",
        "  where batch // 2 * 8 == batch * 4" if "where batch // 2 * 8 == batch * 4" in str(graph) else lines[15],
        "  return add, distributed_broadcast_7",
    ]
    assert repr(graph) == f"<Graph 'block': 9 inputs, {len(graph.fx.nodes) - 9} operations>"


def test_forward_writes_the_whole_graph() -> None:
    graph = Graph("scaled", forward=lambda x: x * 2, input_types=[F32])
    assert wg.compile(graph)(torch.ones(1, 4)).tolist() == [[2, 2, 2, 2]]


def test_values_belong_to_one_graph() -> None:
    with Graph("a", input_types=[F32]) as a:
        x = a.inputs[0]
        y = x + 1
    with Graph("b", input_types=[F32]) as b:
        with pytest.raises(ValueError, match=r"TensorValue\(add: .*\) belongs to graph 'a', but is used in graph 'b'"):
            b.inputs[0] + y
        with pytest.raises(ValueError, match="belongs to graph 'a', but is used in graph 'b'"):
            b.output(y)
        with pytest.raises(ValueError, match="belongs to graph 'a'"):
            ops.concat([b.inputs[0], y])
    with pytest.raises(ValueError, match=r"there is no graph to record in: write this inside `with graph:`"):
        x + 1
    with pytest.raises(ValueError, match="there is no graph to record in"):
        ops.constant(1.0)


def test_graphs_nest() -> None:
    with Graph("outer", input_types=[F32]) as outer:
        with Graph("inner", input_types=[F32]) as inner:
            assert Graph.current() is inner
            inner.output(inner.inputs[0] + 1)
        assert Graph.current() is outer
        outer.output(outer.inputs[0] + 2)
    with outer:
        assert Graph.current() is outer


def test_a_graph_is_left_also_when_something_fails() -> None:
    with pytest.raises(ZeroDivisionError), Graph("g"):
        1 / 0  # noqa: B018
    with pytest.raises(ValueError, match="no graph to record in"):
        Graph.current()


def test_outputs_are_given_once() -> None:
    with Graph("g", input_types=[F32]) as graph:
        graph.output(graph.inputs[0])
        with pytest.raises(ValueError, match="already has its outputs input0"):
            graph.output(graph.inputs[0])


def test_values_have_no_truth_and_no_length_yet() -> None:
    with Graph("g", input_types=[F32]) as graph:
        x = graph.inputs[0]
        with pytest.raises(TypeError, match=r"has no truth before the graph runs: use ops\.where"):
            bool(x > 0)
        with pytest.raises(TypeError, match="cannot be looped over before the graph runs"):
            list(x)
        for number in (float, int, complex, [1, 2].__getitem__):
            with pytest.raises(TypeError, match="is no number before the graph runs"):
                number(x)
        with pytest.raises(TypeError, match=r"cannot be written to: use ops\.where"):
            x[0] = 1


def test_input_types_must_be_types() -> None:
    with pytest.raises(
        TypeError, match="input0 of graph 'g' needs a TensorType, a BufferType or a distributed type, but got 3"
    ):
        Graph("g", input_types=[3])
    with pytest.raises(TypeError, match="input_types is a sequence of types"):
        Graph("g", input_types=F32)
    with pytest.raises(TypeError, match="a graph's name is a string"):
        Graph(3)


def test_whatever_can_give_a_value_is_one() -> None:
    class Weight:
        def __tensorvalue__(self) -> wg.TensorValue:
            return ops.constant([1.0, 2.0, 3.0, 4.0])

    class Memory:
        def __init__(self, value: wg.BufferValue) -> None:
            self.value = value

        def __buffervalue__(self) -> wg.BufferValue:
            return self.value

    signals = Signals([CPU(0), CPU(1)])
    with Graph("g", input_types=[F32, *signals.input_types()]) as graph:
        x, *buffers = graph.inputs
        graph.output(x + Weight(), *ops.distributed_broadcast(Weight(), [Memory(b) for b in buffers]))
    got = wg.compile(graph)(torch.zeros(1, 4), *signals.buffers())
    assert [value.flatten().tolist() for value in got] == [[1, 2, 3, 4]] * 3


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (3, torch.int64, 3),
        (2.5, torch.float32, 2.5),
        (True, torch.bool, True),
        ([1, 2], torch.int64, [1, 2]),
        (np.float64(1.5), torch.float64, 1.5),
        (np.float16(1.5), torch.float16, 1.5),
        (np.int32(3), torch.int32, 3),
        (np.bool_(True), torch.bool, True),
        (np.arange(3, dtype=np.int16), torch.int16, [0, 1, 2]),
        (torch.ones(2, dtype=torch.bfloat16), torch.bfloat16, [1, 1]),
        (Shape([2, 3]), torch.int64, [2, 3]),
        (Dim(4), torch.int64, 4),
    ],
    ids=str,
)
def test_constants(value: object, dtype: torch.dtype, want: object) -> None:
    with Graph("g") as graph:
        graph.output(graph.tensor(value))
    got = wg.compile(graph)()
    assert got.dtype == dtype
    assert got.tolist() == want


def test_what_is_no_constant() -> None:
    with Graph("g") as graph, pytest.raises(TypeError, match="a tensor is a TensorValue, a Shape, a Dim, a number"):
        graph.tensor("text")


WRONG = [
    (ValueError, r"add computes on one device, but x is on cpu:0 and far is on cpu:1: move one", lambda v: v.x + v.far),
    (ValueError, r"mul cannot match the shapes \[batch, 4\], \[3\]: the sizes 4 and 3 differ", lambda v: v.x * v.three),
    (ValueError, r"matmul cannot contract", lambda v: v.x @ v.x),
    (TypeError, r"matmul needs one dtype", lambda v: v.x @ v.whole),
    (ValueError, r"matmul needs tensors of rank 1 or more", lambda v: v.x @ ops.constant(1.0)),
    (TypeError, r"mean does not take torch.int64", lambda v: ops.mean(v.whole)),
    (
        IndexError,
        r"softmax: axis 2 is out of range for a tensor of rank 2: -2 <= axis < 2",
        lambda v: ops.softmax(v.x, 2),
    ),
    (
        IndexError,
        r"sum: axis 0 is out of range for a tensor of rank 0: a tensor of rank 0 has none",
        lambda v: ops.sum(ops.constant(1.0), 0),
    ),
    (ValueError, r"sum: an axis is named twice in \[0, -2\]", lambda v: ops.sum(v.x, [0, -2])),
    (TypeError, r"sum takes a whole number as axis, but got 'a'", lambda v: ops.sum(v.x, ["a"])),
    (ValueError, r"reshape takes one -1 at most", lambda v: v.x.reshape([-1, -1])),
    (
        ValueError,
        r"reshape of i64\[4, 5\] on cpu:0 to \[3, 7\] must keep the number of elements",
        lambda v: v.whole.reshape([3, 7]),
    ),
    (ValueError, r"cannot tell the size -1", lambda v: v.whole.reshape([0, -1])),
    (ValueError, r"broadcast_to: f32\[3\] on cpu:0 does not stretch to \[1\]", lambda v: v.three.broadcast_to([1])),
    (ValueError, r"permute .* needs each of its 2 dims once, but got \[0, 0\]", lambda v: v.x.permute([0, 0])),
    (ValueError, r"squeeze takes out a dim of size 1", lambda v: ops.squeeze(v.x, 1)),
    (ValueError, r"concat needs at least one tensor", lambda v: ops.concat([])),
    (ValueError, r"concat needs one dtype", lambda v: ops.concat([v.x, v.whole])),
    (ValueError, r"concat needs tensors of one rank", lambda v: ops.concat([v.x, v.three])),
    (ValueError, r"concat along axis 0 needs all other dims equal", lambda v: ops.concat([v.x, v.five])),
    (ValueError, r"stack needs tensors of one shape", lambda v: ops.stack([v.x, v.five])),
    (ValueError, r"needs sizes that add up to 5, but got 2, 2", lambda v: ops.split(v.whole, [2, 2], 1)),
    (ValueError, r"chunk needs 1 piece or more", lambda v: ops.chunk(v.x, 0)),
    (ValueError, r"flatten: start_dim 1 comes after end_dim 0", lambda v: v.x.flatten(1, 0)),
    (ValueError, r"tile .* needs one count", lambda v: ops.tile(v.x, [2])),
    (ValueError, r"tril needs a tensor of rank 2", lambda v: ops.tril(v.three)),
    (ValueError, r"rebind keeps the rank", lambda v: v.x.rebind(["a"])),
    (ValueError, r"rebind of three says that dim 0 is 4", lambda v: v.three.rebind([4])),
    (IndexError, r"index 3 of dim 0 of three", lambda v: v.three[3]),
    (IndexError, r"index -4 of dim 0 of three", lambda v: v.three[-4]),
    (IndexError, r"names 2 dims, but .* has 1", lambda v: v.three[0, 0]),
    (TypeError, r"a value is indexed by numbers", lambda v: v.three["a"]),
    (ValueError, r"a slice counts up by 1 or more", lambda v: v.three[::-1]),
    (TypeError, r"gather needs whole numbers as positions", lambda v: ops.gather(v.x, v.three)),
    (ValueError, r"embedding needs a table of rank 2", lambda v: ops.embedding(v.three, v.whole)),
    (TypeError, r"one_hot needs int64", lambda v: ops.one_hot(v.x, 3)),
    (ValueError, r"take_along needs int64 positions", lambda v: ops.take_along(v.x, v.whole)),
    (ValueError, r"put_along needs one position per update", lambda v: ops.put_along(v.x, v.whole, 3)),
    (ValueError, r"scatter_add along axis 0", lambda v: ops.scatter_add(v.x, v.whole, 3)),
    (ValueError, r"top_k takes 9 of 3 elements", lambda v: ops.top_k(v.three, 9)),
    (ValueError, r"nonzero finds a new size", lambda v: ops.nonzero(v.x, "batch")),
    (ValueError, r"pad of dim 0 of three", lambda v: ops.pad(v.three, 0, 2, 4)),
    (TypeError, r"where needs a condition", lambda v: ops.where(v.x, v.x, 0.0)),
    (ValueError, r"clamp needs a lower or an upper bound", lambda v: ops.clamp(v.x)),
    (ValueError, r"gelu knows approximate='none' and 'tanh', but got 'fast'", lambda v: ops.gelu(v.x, "fast")),
    (ValueError, r"layer_norm needs floats of rank 1 or more", lambda v: ops.layer_norm(v.whole)),
    (ValueError, r"rms_norm of .* needs weights of its last dim", lambda v: ops.rms_norm(v.x, v.three)),
    (ValueError, r"attention cannot match", lambda v: ops.attention(v.x, v.five, v.five)),
    (ValueError, r"arange counts up by 1 or more", lambda v: ops.arange(0, 3, 0)),
    (ValueError, r"arange counts up from 3 to 0", lambda v: ops.arange(3, 0)),
    (ValueError, r"graph 'wrong' knows no size other", lambda v: ops.zeros(["other"])),
    (
        ValueError,
        r"has a size in a, which no input and no earlier value has",
        lambda v: ops.custom(abs, [v.x], TensorType("float32", ["a * 2"])),
    ),
    (ValueError, r"but hits is known only during the run", lambda v: ops.nonzero(v.x, "hits").rebind([3, 2])),
]


class Wrong:
    def __init__(self) -> None:
        types = {
            "x": F32,
            "far": TensorType("float32", ["batch", 4], CPU(1)),
            "three": TensorType("float32", [3]),
            "five": TensorType("float32", ["batch", 5]),
            "whole": TensorType("int64", [4, 5]),
        }
        self.graph = Graph("wrong", input_types=types)
        for value in self.graph.inputs:
            setattr(self, value.name, value)


@pytest.mark.parametrize(("error", "text", "call"), WRONG, ids=[text[:40] for _, text, _ in WRONG])
def test_wrong_calls_are_refused(error: type[Exception], text: str, call) -> None:
    values = Wrong()
    with values.graph, pytest.raises(error, match=text):
        call(values)


GRADIENT_REFUSALS = [
    (r"is no single number: reduce it first", lambda g: wg.grad(g, of=g.inputs[0])),
    (r"has 2 inputs, but wrt names input 5", lambda g: wg.grad(g, wrt=5)),
    (r"gradients are with respect to tensors of floats", lambda g: wg.grad(g, wrt=1)),
    (r"has no gradient: only floats have", lambda g: wg.grad(g, of=g.inputs[1])),
    (r"seed is the gradient of", lambda g: wg.grad(g, seed=[1.0, 2.0])),
]


@pytest.mark.parametrize(("text", "call"), GRADIENT_REFUSALS)
def test_what_has_no_gradient(text: str, call) -> None:
    with Graph("g", input_types=[F32, TensorType("int64", [2])]) as graph:
        graph.output(ops.sum(graph.inputs[0]))
    with pytest.raises(ValueError, match=text):
        call(graph)


def test_a_training_step_is_one_graph() -> None:
    kinds = {"w": TensorType("float64", [3]), "x": TensorType("float64", ["n", 3]), "y": TensorType("float64", ["n"])}
    with Graph("step", input_types=kinds) as graph:
        w, x, y = graph.inputs
        loss = ops.mean(ops.square(x @ w - y))
        (slope,) = wg.grad(graph, wrt=w, of=loss)
        graph.output(w - slope * 0.1, loss)
    model = wg.compile(graph)
    torch.manual_seed(0)
    target, w = torch.randn(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for n in (8, 9, 10) * 60:
        x = torch.randn(n, 3, dtype=torch.float64)
        w, _ = model(w, x, x @ target)
    torch.testing.assert_close(w, target, rtol=1e-3, atol=1e-3)


def test_what_does_not_matter_has_gradient_zero() -> None:
    with Graph("g", input_types=[F32, F32]) as graph:
        graph.output(ops.sum(graph.inputs[0]))
    wg.grad(graph)
    _, first, second = wg.compile(graph)(torch.ones(2, 4), torch.ones(2, 4))
    assert torch.equal(first, torch.ones(2, 4))
    assert torch.equal(second, torch.zeros(2, 4))


def test_a_seed_weighs_the_outputs() -> None:
    with Graph("g", input_types=[TensorType("float32", [3])]) as graph:
        graph.output(graph.inputs[0] ** 2)
    wg.grad(graph, seed=[1.0, 0.0, 2.0])
    assert wg.compile(graph)(torch.ones(3))[1].tolist() == [2, 0, 4]


def test_gradients_of_gradients() -> None:
    with Graph("g", input_types=[TensorType("float64", [3])]) as graph:
        x = graph.inputs[0]
        (first,) = wg.grad(graph, wrt=x, of=ops.sum(x**4))
        graph.output(*wg.grad(graph, wrt=x, of=ops.sum(first)))
    data = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(wg.compile(graph)(data), 12 * data**2)
