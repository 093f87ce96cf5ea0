"""A model on a GPU is one launch from its second run on, and gives what it gives without."""

from __future__ import annotations

import math
import os

import pytest
import torch

import weft
from tests.graph.cases import CASES, Case
from tests.graph.running import as_list, named
from tests.graph.simulated_gpu import simulated_gpu  # noqa: F401 - a fixture
from weft import CPU, Accelerator, P
from weft import graph as wg
from weft.graph import BufferType, DeviceRef, Graph, Signals, TensorType, ops
from weft.graph.running.cuda_capture import Recorded, why_not
from weft.runtime import machine
from weft.sharding import DeviceMesh, make_mesh

HOST_MADE = {"zeros", "ones", "full", "arange", "constant", "implicit", "numpy", "one_hot"}
"""Cases that make values on the host, where the others' are not."""


os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "64")


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> str:
    """The torch device that records: the host in the place of a GPU, and a GPU where there is one."""
    return request.getfixturevalue("simulated_gpu") if request.param == "simulated" else request.param


def device(place: str, index: int = 0) -> DeviceRef:
    return DeviceRef.GPU(index) if place == "cuda" else DeviceRef.CPU(index)


def mesh_of(place: str, **sizes: int) -> DeviceMesh:
    count = math.prod(sizes.values())
    return make_mesh(sizes, devices=[(Accelerator if place == "cuda" else CPU)(i) for i in range(count)])


def recordings(model: wg.Model) -> int:
    assert isinstance(model._function, Recorded)
    return model._function.recordings


def on_gpu(place, function, *tensors: torch.Tensor, symbolic: bool = False) -> Graph:
    kinds = [TensorType(x.dtype, named(x) if symbolic else tuple(x.shape), device(place)) for x in tensors]
    with Graph("tried", input_types=kinds) as graph:
        graph.output(*as_list(function(*graph.inputs)))
    return graph


@pytest.mark.parametrize("case", [case for case in CASES if case.name.split()[0] not in HOST_MADE], ids=repr)
def test_every_op_gives_what_it_gives_on_the_host(place, case: Case) -> None:
    want = as_list(case.torch(*case.inputs))
    graph = on_gpu(place, case.graph, *case.inputs)
    model = wg.compile(graph)
    for run in range(4):
        inputs = [x.to(place).clone() for x in case.inputs]
        for mine, theirs in zip(model.execute(*inputs), want, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-9, atol=1e-9, equal_nan=True)
        if run and not why_not(graph):  # nothing to launch where there are only views
            assert recordings(model) == 1


def step(values, buffers):
    """Some work on every device, and everything that several do together."""
    total = ops.allreduce.sum([ops.tanh(v) for v in values], buffers)
    parts = ops.reducescatter.sum([t * v for t, v in zip(total, values, strict=True)], buffers)
    everywhere = ops.allgather(parts, buffers)
    turned = ops.ppermute(everywhere, buffers, [(i, (i + 1) % len(values)) for i in range(len(values))])
    first = ops.distributed_broadcast(turned[1], buffers)
    return [a + b for a, b in zip(first, total, strict=True)]


def plain_step(values: list[torch.Tensor]) -> list[torch.Tensor]:
    total = sum(torch.tanh(v) for v in values)
    return [sum(total * v for v in values) + total] * len(values)


@pytest.mark.parametrize("separate", [False, True])
def test_a_step_over_eight_devices_is_one_launch(place, separate) -> None:
    machine.use_separate_memory(separate)
    try:
        signals = Signals([device(place, i) for i in range(8)])
        kinds = [TensorType("float64", ["n", 3], device(place, i)) for i in range(8)]
        with Graph("step", input_types=[*kinds, *signals.input_types()]) as graph:
            graph.output(*step(graph.inputs[:8], graph.inputs[8:]))
        model = wg.compile(graph, cuda_graph=True)
        for run in range(6):
            values = [torch.randn(16 + run % 2, 3, dtype=torch.float64, device=place) for _ in range(8)]
            got = model.execute(*values, *signals.buffers())
            for mine, theirs in zip(got, plain_step(values), strict=True):
                torch.testing.assert_close(mine, theirs)
        assert recordings(model) == 2
    finally:
        machine.use_separate_memory(False)


def test_results_stay_when_the_model_runs_again(place) -> None:
    model = wg.compile(on_gpu(place, lambda x: x * 2, torch.ones(4)))
    results = [model(torch.full((4,), float(run), device=place)) for run in range(5)]
    assert [result[0].item() for result in results] == [0, 2, 4, 6, 8]


def test_inputs_may_stay_or_move(place) -> None:
    model = wg.compile(on_gpu(place, lambda x, w: x @ w, torch.ones(2, 4), torch.ones(4, 3)))
    weights = torch.randn(4, 3, device=place)
    for run in range(8):
        if run == 4:
            weights = torch.randn(4, 3, device=place)
        x = torch.randn(2, 4, device=place)
        torch.testing.assert_close(model(x, weights), x @ weights)
        weights += 1
    assert recordings(model) == 1


def test_inputs_that_share_memory_until_they_are_written_to(place) -> None:
    mesh = mesh_of(place, x=1)
    model = wg.compile(on_gpu(place, lambda x: x + 1, torch.ones(8)))
    for run in range(6):
        plain = torch.full((8,), float(run), device=place)
        x = weft.shard(plain, mesh, P())
        plain.zero_()
        assert model(x)[0].item() == run + 1


def test_buffers_are_written_where_they_are(place) -> None:
    kinds = [BufferType("float32", [4], device(place)), TensorType("float32", [4], device(place))]
    with Graph("count", input_types=kinds) as graph:
        buffer, x = graph.inputs
        ops.buffer_store(buffer, ops.buffer_load(buffer) + x)
        graph.output(ops.buffer_load(buffer) * 10)
    model = wg.compile(graph, cuda_graph=True)
    counters = [torch.zeros(4, device=place) for _ in range(2)]
    for run in range(1, 6):
        for counter in counters:
            result = model(counter, torch.ones(4, device=place))
            assert (counter[0].item(), result[0].item()) == (run, run * 10)


def test_an_output_that_is_an_input(place) -> None:
    model = wg.compile(on_gpu(place, lambda x: [x, x[1:], x + 1], torch.ones(4)))
    x = torch.arange(4.0, device=place)
    for run in range(4):
        same, part, more = model.execute(x)
        assert (same[0].item(), part[0].item(), more[0].item()) == (run, run + 1, run + 1)
        same += 100
        x += 1


@pytest.mark.gpu
def test_other_streams_wait_for_the_last_run() -> None:
    place = "cuda"
    model = wg.compile(on_gpu(place, lambda x: ops.sum(x * 2 + 1), torch.ones(1 << 22)))
    x = torch.ones(1 << 22, device=place)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for run in range(12):
        with torch.cuda.stream(streams[run % 3]):
            results.append(model(x + run))
    torch.cuda.synchronize()
    assert [int(r.item()) for r in results] == [(2 * (run + 1) + 1) << 22 for run in range(12)]


def test_random_numbers_are_new_in_every_run(place) -> None:
    mesh = mesh_of(place, x=4)
    graph = wg.capture(torch.nn.functional.dropout, weft.shard(torch.ones(1 << 12), mesh, P("x")))
    model = wg.compile(graph)
    x = weft.shard(torch.ones(1 << 12), mesh, P("x"))
    seen = {tuple(model(x).full_tensor().tolist()) for _ in range(4)}
    assert len(seen) == 4


def test_what_makes_the_host_wait_is_not_recorded(place) -> None:
    graph = on_gpu(place, lambda x: ops.nonzero(x, "found"), torch.ones(4))
    model = wg.compile(graph)
    x = torch.tensor([0.0, 1.0, 0.0, 2.0], device=place)
    for _ in range(3):
        assert model(x).tolist() == [[1], [3]]
    assert not isinstance(model._function, Recorded)
    with pytest.raises(ValueError, match=r"cannot be recorded as a CUDA graph: nonzero at .* makes the host wait"):
        wg.compile(graph, cuda_graph=True)


def test_a_captured_eager_function_is_one_launch(place) -> None:
    mesh = mesh_of(place, dp=2, tp=4)
    w = weft.shard(torch.randn(64, 64, device=place), mesh, P("tp", None))

    def run(x):
        for _ in range(4):
            x = weft.shard(torch.tanh(x @ w), mesh, P("dp", "tp"))
        return x

    x = weft.shard(torch.randn(16, 64, device=place), mesh, P("dp", "tp"))
    model = wg.compile(wg.capture(run, x))
    for _ in range(4):
        # The graph adds up what each device contributes; the function computes it together, which rounds otherwise.
        torch.testing.assert_close(model(x).full_tensor(), run(x).full_tensor(), rtol=1e-3, atol=1e-4)
    assert recordings(model) == 1
