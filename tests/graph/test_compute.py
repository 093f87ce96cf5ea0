"""Every compute op gives what plain torch gives, in values, dtypes, shapes and gradients."""

from __future__ import annotations

import pytest
import torch

from tests.graph.cases import CASES, Case
from tests.graph.running import as_list, graph_of, run, weighted, weights
from weft import graph as wg
from weft.graph import ops
from weft.graph.gradients.table import NO_GRADIENT


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_it_equals_torch(case: Case) -> None:
    want = as_list(case.torch(*case.inputs))
    for symbolic in (False, True) if case.symbolic else (False,):
        graph = graph_of(case.graph, *case.inputs, symbolic=symbolic)
        got = wg.compile(graph).execute(*case.inputs)
        assert len(got) == len(want)
        for mine, theirs, kind in zip(got, want, graph.output_types, strict=True):
            assert mine.dtype == theirs.dtype == kind.dtype
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)
            if not symbolic and kind.shape.is_static:
                assert kind.shape == tuple(theirs.shape)


@pytest.mark.parametrize("case", [case for case in CASES if case.gradient], ids=repr)
def test_its_gradient_equals_torchs(case: Case) -> None:
    def loss(*values: wg.TensorValue) -> list[wg.TensorValue]:
        results = [result for result in as_list(case.graph(*values)) if result.dtype.is_floating_point]
        sizes = [r.shape.subs({f"size{n}": n for n in range(1, 13)}).sizes for r in results]
        parts = [
            ops.sum(result.cast("float64") * ops.constant(weights(size)).rebind(result.shape))
            for result, size in zip(results, sizes, strict=True)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return [total]

    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in case.inputs]
    floats = [i for i, x in enumerate(case.inputs) if x.is_floating_point()]
    want = torch.autograd.grad(weighted(as_list(case.torch(*leaves))), [leaves[i] for i in floats])
    for symbolic in (False, True) if case.symbolic else (False,):
        graph = graph_of(loss, *case.inputs, symbolic=symbolic)
        grads = wg.grad(graph, wrt=floats)
        assert [g.type for g in grads] == [graph.inputs[i].type for i in floats]
        got = wg.compile(graph).execute(*case.inputs)[1:]
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


def test_every_op_has_a_case() -> None:
    movements = {"allgather", "alltoall", "distributed_broadcast", "distributed_scatter", "ppermute"}
    elsewhere = {*movements, "allreduce", "reducescatter", "shard_and_stack", "transfer_to"}
    elsewhere |= {"buffer_load", "buffer_store", "custom", "distributed", "rebind", "slice_tensor"}
    tested = {case.name.split()[0] for case in CASES}
    assert set(ops.__all__) - elsewhere - tested == set()


def test_ops_without_a_gradient_have_none() -> None:
    assert {case.name.split()[0] for case in CASES if not case.gradient} - {
        "number",
        "clamp",
        "invert",
        "mod",
    } <= NO_GRADIENT


@pytest.mark.parametrize("other", [torch.int64, torch.float32, torch.bfloat16, torch.bool, 2, 2.5, True], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int64, torch.float16, torch.float32, torch.float64, torch.bool], ids=str
)
@pytest.mark.parametrize("name", ["add", "mul", "div", "pow", "greater", "maximum"])
def test_promotion_is_torchs(name: str, dtype: torch.dtype, other: object) -> None:
    if name == "pow" and {dtype, other} <= {torch.bool}:
        return  # torch knows the dtype and has no kernel
    x = torch.ones(2, dtype=dtype)
    y = torch.ones((), dtype=other) if isinstance(other, torch.dtype) else other
    tensor = y if isinstance(y, torch.Tensor) else torch.tensor(y)
    want = {"add": torch.add, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "greater": torch.gt}.get(name)
    try:
        expected = torch.maximum(x, tensor) if want is None else want(x, y)
    except RuntimeError:
        with pytest.raises(TypeError, match=f"{name} does not take"):
            graph_of(lambda a: getattr(ops, name)(a, y), x)
        return
    (got,) = run(lambda a: getattr(ops, name)(a, y), x)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)
