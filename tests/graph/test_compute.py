"""Every compute op gives what plain torch gives, in values, dtypes and shapes."""

from __future__ import annotations

import pytest
import torch

from tests.graph.cases import CASES, Case
from tests.graph.running import as_list, graph_of, run
from weft import graph as wg
from weft.graph import ops


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


def test_every_op_has_a_case() -> None:
    movements = {"allgather", "alltoall", "distributed_broadcast", "distributed_scatter", "ppermute"}
    elsewhere = {*movements, "allreduce", "reducescatter", "shard_and_stack", "transfer_to"}
    elsewhere |= {"buffer_load", "buffer_store", "custom", "distributed", "rebind", "slice_tensor"}
    tested = {case.name.split()[0] for case in CASES}
    assert set(ops.__all__) - elsewhere - tested == set()


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
