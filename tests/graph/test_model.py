"""What a compiled graph takes, gives and refuses; buffers; that nothing is aliased in a way that shows."""

from __future__ import annotations

import gc
import linecache

import numpy as np
import pytest
import torch

from weft import graph as wg
from weft.devices import CPU
from weft.graph import BufferType, DeviceRef, Graph, Model, TensorType, ops
from weft.graph.lowering import inductor


def model_of(function, **types: TensorType | BufferType) -> Model:
    with Graph("tried", input_types=types) as graph:
        result = function(*graph.inputs)
        graph.output(*(result if isinstance(result, (tuple, list)) else [result]))
    return wg.compile(graph)


F32 = TensorType("float32", ["n", 2])


def test_a_model_takes_tensors_arrays_and_numbers() -> None:
    model = model_of(lambda x, scale: x * scale, x=F32, scale=TensorType("float32", []))
    want = torch.full((3, 2), 2.5)
    assert torch.equal(model(torch.ones(3, 2), torch.tensor(2.5)), want)
    assert torch.equal(model(np.ones((3, 2), dtype=np.float32), 2.5), want)
    assert torch.equal(model(torch.nn.Parameter(torch.ones(3, 2)), np.float32(2.5)), want)


def test_one_output_comes_alone_and_several_as_a_tuple() -> None:
    x = torch.ones(1, 2)
    assert isinstance(model_of(lambda x: x + 1, x=F32)(x), torch.Tensor)
    assert isinstance(model_of(lambda x: [x + 1, x + 2], x=F32)(x), tuple)
    assert isinstance(model_of(lambda x: x + 1, x=F32).execute(x), list)
    assert model_of(lambda x: [], x=F32)(x) == ()


REFUSED = [
    ((), ValueError, r"graph 'tried' takes 1 inputs \(x\), but got 0"),
    ((torch.ones(1, 2), torch.ones(1, 2)), ValueError, r"takes 1 inputs \(x\), but got 2"),
    (
        (torch.ones(1, 2, dtype=torch.float64),),
        ValueError,
        r"x of graph 'tried' needs f32\[n, 2\] on cpu:0, but got torch.float64",
    ),
    ((torch.ones(2),), ValueError, r"x of graph 'tried' needs .* of rank 2, but got the shape \(2,\)"),
    ((torch.ones(4, 3),), ValueError, r"x of graph 'tried' .* dim 1 is 3, not 2"),
    (("text",), TypeError, r"x of graph 'tried' needs a tensor .*, but got str: 'text'"),
    ((1.0,), TypeError, r"x of graph 'tried' needs a tensor .*, but got float: 1.0"),
    ((torch.ones(1, 2, device="meta"),), ValueError, r"x of graph 'tried' .* is torch's cpu, but got a tensor on meta"),
]


@pytest.mark.parametrize(("inputs", "error", "text"), REFUSED)
def test_wrong_inputs_are_refused_by_name(inputs: tuple, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        model_of(lambda x: x + 1, x=F32)(*inputs)


def test_a_value_of_a_graph_is_no_input() -> None:
    model = model_of(lambda x: x + 1, x=F32)
    with pytest.raises(TypeError, match=r"x of graph 'tried' is given TensorValue\(x.*, a value of a graph"):
        model(model.graph.inputs[0])


def test_numpy_arrays_come_out_where_they_are_asked_for() -> None:
    model = model_of(lambda x: [x + 1, ops.sum(x)], x=F32)
    more, total = model.numpy(np.ones((1, 2), dtype=np.float32))
    assert isinstance(more, np.ndarray)
    assert more.tolist() == [[2.0, 2.0]]
    assert total == 2.0


def test_torch_differentiates_through_a_model() -> None:
    model = model_of(lambda x: ops.sum(x**2), x=F32)
    leaf = torch.randn(3, 2, requires_grad=True)
    model(leaf).backward()
    torch.testing.assert_close(leaf.grad, 2 * leaf.detach())


def test_backends() -> None:
    with Graph("g", input_types=[F32]) as graph:
        graph.output(graph.inputs[0])
    with pytest.raises(ValueError, match="unknown backend 'fast': use one of 'eager', 'inductor'"):
        wg.compile(graph, backend="fast")
    with pytest.raises(ValueError, match="graph 'empty' has no outputs yet"):
        wg.compile(Graph("empty"))


def test_inductor_gives_the_same_for_several_sizes() -> None:
    signals = wg.Signals([CPU(0), CPU(1)])
    with Graph("fused", input_types=[F32, *signals.input_types()]) as graph:
        x, *buffers = graph.inputs
        parts = [ops.gelu(v * (i + 1)) for i, v in enumerate(ops.distributed_broadcast(x, buffers))]
        graph.output(*ops.allreduce.sum(parts, buffers), x.shape[0])
    eager, fused = wg.compile(graph), wg.compile(graph, backend="inductor")
    for n in (4, 7):
        data = torch.randn(n, 2)
        for got, want in zip(fused(data, *signals.buffers()), eager(data, *signals.buffers()), strict=True):
            torch.testing.assert_close(got, want)
    del eager, fused
    assert texts_of(graph) == []


def texts_of(graph: Graph) -> list[str]:
    """The texts that tracebacks would find of what a graph was compiled to."""
    gc.collect()
    return [file for file in linecache.cache if file.startswith(f"<weft graph {graph.name} ")]


def test_the_text_of_a_model_goes_with_it() -> None:
    graph = Graph("kept", lambda x: x + 1, [F32])
    model = wg.compile(graph)
    (file,) = texts_of(graph)
    assert linecache.getlines(file) == model.source.splitlines(keepends=True)
    for _ in range(3):
        wg.compile(graph)
    assert texts_of(graph) == [file]
    del model
    assert texts_of(graph) == []


def test_inductor_keeps_few_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + 1,)

    model = inductor._Static(function, function)
    monkeypatch.setattr(inductor._Static, "_compile", lambda _, inputs: compiled.append(inputs) or function)
    for _ in range(2):
        for width in range(4, 4 + inductor._MOST + 1):
            model(torch.zeros(4, width)[:, :4])
    assert len(model._compiled) == inductor._MOST
    assert len(compiled) == 2 * (inductor._MOST + 1)


def test_inductor_with_sizes_that_are_numbers() -> None:
    kinds = {"buffer": BufferType("float32", [3]), "x": TensorType("float32", [4, 3])}
    with Graph("fixed", input_types=kinds) as graph:
        buffer, x = graph.inputs
        y = ops.relu(x * 2 + buffer[...])
        buffer[...] = ops.sum(y, 0)
        graph.output(y, x)
    fused = wg.compile(graph, backend="inductor")
    state, data = torch.ones(3), torch.randn(4, 3)
    for x_data in (data, torch.randn(3, 4).T, data.clone()):
        want = torch.relu(x_data * 2 + state)
        y_data, same = fused(state, x_data)
        torch.testing.assert_close(y_data, want)
        torch.testing.assert_close(state, want.sum(0))
        assert torch.equal(same, x_data)
    leaf = data.clone().requires_grad_()
    fused(torch.ones(3), leaf)[0].sum().backward()
    torch.testing.assert_close(leaf.grad, 2.0 * (data * 2 + 1 > 0))


@pytest.mark.parametrize(
    "make", [torch.ones, lambda *shape: torch.from_numpy(np.ones(shape, dtype=np.float32))], ids=["torch", "numpy"]
)
def test_writing_to_outputs_changes_nothing_else(make) -> None:
    constant = torch.ones(2, 2)

    def views(x: wg.TensorValue) -> list[wg.TensorValue]:
        kept = ops.constant(constant)
        y = x + 1
        return [x, x[0], x.T, kept, kept[0], y, y, y.T, y[:1], ops.reshape(y, [-1])]

    model = model_of(views, x=TensorType("float32", [2, 2]))
    data = make(2, 2)
    first = model(data)
    want = [x.clone() for x in first]
    for i, output in enumerate(first):
        output.fill_(-5.0)
        assert torch.equal(data, torch.ones(2, 2))
        for later, value in zip(first[i + 1 :], want[i + 1 :], strict=True):
            assert torch.equal(later, value)
    for again, value in zip(model(data), want, strict=True):
        assert torch.equal(again, value)


def test_writing_to_an_input_after_the_run_changes_no_output() -> None:
    model = model_of(lambda x: [x, x.T], x=TensorType("float32", [2, 2]))
    data = torch.ones(2, 2)
    outputs = model(data)
    data.fill_(7.0)
    assert all(torch.equal(x, torch.ones(2, 2)) for x in outputs)


def test_a_constant_is_a_copy() -> None:
    data = torch.ones(2)
    model = model_of(lambda x: x + ops.constant(data), x=TensorType("float32", [2]))
    data.fill_(9.0)
    assert torch.equal(model(torch.zeros(2)), torch.ones(2))


BUFFER = BufferType("float32", [3])


def test_buffers_are_read_and_written_in_the_order_written() -> None:
    def count(buffer: wg.BufferValue, x: wg.TensorValue) -> list[wg.TensorValue]:
        before = buffer[...]
        buffer[...] = before + x
        between = buffer[...]
        buffer[0] = 100.0
        buffer[1:] = between[1:] * 2
        return [before, between, buffer[...]]

    model = model_of(count, buffer=BUFFER, x=TensorType("float32", [3]))
    state = torch.tensor([1.0, 2.0, 3.0])
    before, between, after = model(state, torch.ones(3))
    assert before.tolist() == [1, 2, 3]
    assert between.tolist() == [2, 3, 4]
    assert after.tolist() == state.tolist() == [100, 6, 8]
    state.zero_()
    assert after.tolist() == [100, 6, 8]


def test_a_buffer_that_is_only_read_is_not_copied() -> None:
    model = model_of(lambda buffer: buffer[...] * 2, buffer=BUFFER)
    assert "clone" not in model.source
    assert model(torch.ones(3)).tolist() == [2, 2, 2]


def test_a_store_is_never_dead_code() -> None:
    def write(buffer: wg.BufferValue) -> list[wg.TensorValue]:
        buffer[...] = ops.constant([1.0, 2.0, 3.0])
        return []

    state = torch.zeros(3)
    assert model_of(write, buffer=BUFFER)(state) == ()
    assert state.tolist() == [1, 2, 3]


def test_a_numpy_array_can_be_a_buffer() -> None:
    def write(buffer: wg.BufferValue) -> list[wg.TensorValue]:
        buffer[2] = 5.0
        return [buffer[...]]

    state = np.zeros(3, dtype=np.float32)
    model_of(write, buffer=BUFFER)(state)
    assert state.tolist() == [0, 0, 5]


def test_what_a_buffer_refuses() -> None:
    with Graph("g", input_types=[BUFFER, TensorType("float64", [3]), TensorType("float32", [3], CPU(1))]) as graph:
        buffer, double, far = graph.inputs
        with pytest.raises(ValueError, match="does not fit into BufferValue"):
            buffer[...] = double
        with pytest.raises(ValueError, match="does not fit into BufferValue"):
            buffer[...] = far
        with pytest.raises(ValueError, match=r"buffer_store cannot match the shapes \[2\], \[3\]"):
            buffer[...] = ops.zeros([2])
        with pytest.raises(TypeError, match="written at numbers and slices"):
            buffer[None] = 1.0
        with pytest.raises(TypeError, match="a buffer is a BufferValue"):
            ops.buffer_load(double)
        with pytest.raises(IndexError, match="index 3 of dim 0 of input0, which has size 3"):
            buffer[3] = 1.0


def test_custom_functions() -> None:
    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[: len(x) // 2].clone(), x.double()

    def both(x: wg.TensorValue) -> list[wg.TensorValue]:
        small, wide = ops.custom(halves, [x], [TensorType("float32", ["half", 2]), x.type.cast("float64")])
        return [small + 1, wide * 2, ops.zeros(["half"]), *ops.custom(lambda v: v.exp(), [x], x.type)]

    model = model_of(both, x=F32)
    x = torch.randn(5, 2)
    small, wide, zeros, grown = model(x)
    assert torch.equal(small, x[:2] + 1)
    assert torch.equal(wide, x.double() * 2)
    assert zeros.shape == (2,)
    assert torch.equal(grown, x.exp())


def test_a_custom_function_may_give_its_argument_back() -> None:
    model = model_of(lambda x: ops.custom(lambda v: v, [x], x.type), x=F32)
    data = torch.ones(2, 2)
    model(data).fill_(3.0)
    assert torch.equal(data, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("function", "kinds", "error", "text"),
    [
        (
            lambda x: x.double(),
            F32,
            ValueError,
            r"result 0 of lambda is torch.float64 \(3, 2\), but should be f32\[n, 2\]",
        ),
        (lambda x: x[:2], F32, ValueError, r"result 0 of lambda is torch.float32 \(2, 2\)"),
        (lambda x: [x], [F32, F32], ValueError, r"lambda gave 1 results, but 2 were said"),
        (lambda x: 3, F32, TypeError, r"result 0 of lambda is int"),
    ],
)
def test_custom_functions_must_give_what_was_said(function, kinds, error: type[Exception], text: str) -> None:
    model = model_of(lambda x: ops.custom(function, [x], kinds), x=F32)
    with pytest.raises(error, match=text):
        model(torch.ones(3, 2))


def test_custom_functions_have_gradients() -> None:
    with Graph("g", input_types=[TensorType("float64", ["n"])]) as graph:
        x = graph.inputs[0]
        (y,) = ops.custom(lambda v: v**3 * 2, [x], x.type)
        graph.output(ops.sum(y))
    wg.grad(graph)
    data = torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(wg.compile(graph)(data)[1], 6 * data**2)


def test_a_device_that_is_not_there_is_refused_at_compile_time() -> None:
    with Graph("g", input_types=[TensorType("float32", [2])]) as graph:
        graph.output(graph.inputs[0].to(DeviceRef.GPU(99)))
    with pytest.raises(ValueError, match=r"Accelerator\(99\) does not exist: this machine has"):
        wg.compile(graph)


def test_a_model_prints() -> None:
    assert repr(model_of(lambda x: x + 1, x=F32)) == "<Model 'tried' (eager): f32[n, 2] on cpu:0 -> f32[n, 2] on cpu:0>"
