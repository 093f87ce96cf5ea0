"""One compile serves every size; names agree or the error says who does not."""

from __future__ import annotations

import pytest
import torch

from weft import graph as wg
from weft.graph import DeviceRef, Dim, Graph, Signals, TensorType, ops

DEVICES = [DeviceRef.CPU(i) for i in range(4)]


def test_one_compile_runs_for_twenty_sizes() -> None:
    with Graph("mlp", input_types=[TensorType("float32", ["batch", 8]), TensorType("float32", [8, 3])]) as graph:
        x, w = graph.inputs
        graph.output(ops.softmax(ops.relu(x @ w)), x.reshape([-1, 2, 4]).sum(axis=1))
    model = wg.compile(graph)
    w_data = torch.randn(8, 3)
    for batch in range(20):
        data = torch.randn(batch, 8)
        scores, sums = model(data, w_data)
        assert torch.equal(scores, torch.softmax(torch.relu(data @ w_data), -1))
        assert torch.equal(sums, data.reshape(-1, 2, 4).sum(1))


def test_shard_then_gather_of_a_named_size_is_that_size() -> None:
    signals = Signals(DEVICES)
    with Graph("there_and_back", input_types=[TensorType("float32", ["s", 3]), *signals.input_types()]) as graph:
        x, *buffers = graph.inputs
        pieces = [piece.to(device) for piece, device in zip(ops.chunk(x, 4), DEVICES, strict=True)]
        gathered = ops.allgather(pieces, buffers)
        assert all(value.shape[0] == Dim("s") for value in gathered)
        graph.output(*gathered)
    model = wg.compile(graph)
    for size in (0, 1, 3, 4, 5, 10, 17):
        data = torch.randn(size, 3)
        for got in model(data, *signals.buffers()):
            assert torch.equal(got, data)


def test_two_inputs_that_share_a_name_must_agree() -> None:
    with Graph("sum", input_types={"x": TensorType("float32", ["n"]), "y": TensorType("float32", ["n"])}) as graph:
        graph.output(graph.inputs[0] + graph.inputs[1])
    model = wg.compile(graph)
    with pytest.raises(ValueError, match=r"dim 0 of y is n, which should be 3, but got 4 \(n is 3 by dim 0 of x\)"):
        model(torch.ones(3), torch.ones(4))


def test_arithmetic_on_names_is_checked_at_run_time() -> None:
    kinds = {"x": TensorType("float32", ["n"]), "y": TensorType("float32", ["n * 2"])}
    with Graph("pair", input_types=kinds) as graph:
        x, y = graph.inputs
        graph.output(ops.concat([x, x]) + y)
    model = wg.compile(graph)
    assert torch.equal(model(torch.ones(2), torch.ones(4)), torch.full((4,), 2.0))
    with pytest.raises(ValueError, match=r"dim 0 of y is n \* 2, which should be 4, but got 5"):
        model(torch.ones(2), torch.ones(5))


def test_a_name_that_no_input_says_is_refused() -> None:
    with pytest.raises(ValueError, match="no input has a dim that is just n"):
        Graph("g", input_types=[TensorType("float32", ["n * 2"])])
    with Graph("g"), pytest.raises(ValueError, match="graph 'g' knows no size n"):
        ops.zeros(["n"])


def test_sizes_become_numbers_in_the_program() -> None:
    with Graph("sizes", input_types=[TensorType("float32", ["n", "m"])]) as graph:
        x = graph.inputs[0]
        graph.output(x.shape[0] * 2 + 1, x.shape, ops.arange(0, x.shape[1]), ops.full(["m // 2"], 7))
    got = wg.compile(graph)(torch.zeros(3, 5))
    assert [value.tolist() for value in got] == [7, [3, 5], [0, 1, 2, 3, 4], [7, 7]]


def test_rules_between_sizes_are_checked_when_the_sizes_are_known() -> None:
    with Graph("halves", input_types=[TensorType("float32", ["n"])]) as graph:
        graph.output(graph.inputs[0].reshape([-1, 2]))
    model = wg.compile(graph)
    assert model(torch.arange(6.0)).shape == (3, 2)
    with pytest.raises(ValueError, match=r"must keep the number of elements: that needs .* \(n = 5\)"):
        model(torch.arange(5.0))


def test_a_slice_of_a_named_size_must_fit() -> None:
    with Graph("head", input_types=[TensorType("float32", ["n"])]) as graph:
        x = graph.inputs[0]
        graph.output(x[:4], x[:-1], x[-1], x[x.shape[0] // 2 :])
    model = wg.compile(graph)
    data = torch.arange(7.0)
    for got, want in zip(model(data), (data[:4], data[:-1], data[-1], data[3:]), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(
        ValueError, match=r"the slice \[:4\] of dim 0 of input0, which has size n: that needs 4 <= n \(n = 3\)"
    ):
        model(torch.arange(3.0))


def test_rebind_says_that_two_names_are_one_size() -> None:
    with Graph("g", input_types=[TensorType("float32", ["a"]), TensorType("float32", ["b"])]) as graph:
        x, y = graph.inputs
        with pytest.raises(
            ValueError, match=r"the sizes a and b differ; if they are the same, say so with x.rebind\(shape\)"
        ):
            x + y
        graph.output(x + y.rebind(["a"]))
    model = wg.compile(graph)
    assert torch.equal(model(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(ValueError, match=r"rebind of input1 says that dim 0 is a: that needs b == a \(a = 2, b = 3\)"):
        model(torch.ones(2), torch.ones(3))


def test_sizes_found_during_the_run() -> None:
    with Graph("g", input_types=[TensorType("float32", ["n"])]) as graph:
        x = graph.inputs[0]
        found = ops.nonzero(x > 0, "hits")
        graph.output(found.reshape(["hits"]), ops.zeros(["hits + 1"]))
    at, zeros = wg.compile(graph)(torch.tensor([1.0, -1.0, 2.0]))
    assert at.tolist() == [0, 2]
    assert zeros.shape == (3,)
