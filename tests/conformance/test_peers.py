"""Where other libraries of this kind hurt their users: each case as such a user meets it, and what Weft does there.

What only several processes can show, or a law says of every layout, is tested elsewhere; `ELSEWHERE` says where.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import weft
from tests.conformance.test_conformance import functions_of
from weft import CPU, DeviceMesh, P, Partial, PlacementMapping, ReduceOp, Replicated, Sharded
from weft.runtime import machine

MESH = weft.make_mesh({"dp": 2, "tp": 4})
LINE = weft.make_mesh({"d": 4})
ELSEWHERE = {
    "scalar reads of a pending sum are the value, also as a bool and in lists": "tensor/test_tensor.py::test_scalar_reads_reduce_first",
    "and are the same in every process": "multiprocess/test_contract.py::test_processes_give_what_one_gives",
    "a scalar or bias is added once, in every spelling": "tensor/test_tensor.py::test_a_scalar_or_bias_is_added_once",
    "every op in every layout equals one device": "rules/test_opinfo.py::test_one_device_says_the_same",
    "every row of the gradient table passes gradcheck, twice": "tensor/test_gradients.py::test_combinations",
    "bytes are at the lower bound": "planning/test_bounds.py::test_movements_reach_the_bound_on_each_device",
    "peak memory is source and target": "planning/test_bounds.py::test_memory_is_source_and_target",
    "no direct path costs more than a detour": "planning/test_laws.py::test_no_movement_costs_more_than_a_detour",
    "the order of axes is in the layout": "tensor/test_tensor.py::test_an_order_that_is_not_the_mesh_s_is_kept",
    "any reshape of any layout": "rules/test_views.py::test_any_reshape_of_any_layout",
    "any index of any layout": "rules/test_slicing.py::test_any_index_of_any_layout",
    "each needed byte crosses to another mesh once": "planning/test_bounds.py::test_disjoint_meshes_receive_everything_once",
    "an op without a rule is right and reported": "tensor/test_tensor.py::test_an_unknown_op_is_right_and_reported",
    "random numbers do not depend on the layout": "tensor/test_tensor.py::test_random_numbers_do_not_depend_on_the_layout",
    "a stuck process is named, with its call": "multiprocess/test_faults.py::test_a_process_that_is_too_slow_is_named_and_so_is_its_last_call",
    "shard then gather of a named size is that size": "graph/test_symbolic_sizes.py::test_shard_then_gather_of_a_named_size_is_that_size",
    "one script, one process or torchrun": "multiprocess/test_torchrun.py::test_an_example_runs_unchanged",
    "save on one mesh, load on another": "checkpoint/test_round_trip.py::test_any_layout_loads_into_any_other",
    "never the whole of a split tensor in memory": "checkpoint/test_round_trip.py::test_no_process_holds_a_split_tensor_whole",
    "every transition of processes uses the collective that it is": "multiprocess/test_contract.py::test_processes_give_what_one_gives",
}


@pytest.fixture(params=["unified", "separate"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    machine.use_separate_memory(request.param == "separate")
    yield
    machine.use_separate_memory(False)


def summed(value: torch.Tensor, kind: str = "sum") -> torch.Tensor:
    """A value of which every device along "tp" has a contribution: itself, or nothing."""
    parts = [value, *[torch.zeros_like(value)] * 3] if kind == "sum" else [value] * 4
    return weft.from_local(parts * 2, weft.NamedMapping(MESH, P(), unreduced={"tp": ReduceOp(kind)}))


def test_what_is_tested_elsewhere_is_tested() -> None:
    where = [test.partition("::") for test in ELSEWHERE.values()]
    assert [f"{path}::{name}" for path, _, name in where if name not in functions_of(f"tests/{path}")] == []


@pytest.mark.parametrize("read", [torch.max, torch.min, torch.argmax, torch.norm, torch.median, torch.any])
def test_what_is_read_of_a_pending_sum_is_the_value(read) -> None:
    value = torch.tensor([3.0, -5.0, 4.0, 0.5])
    assert read(summed(value)).item() == read(value).item()


def test_a_pending_sum_does_not_turn_into_another_kind() -> None:
    x = summed(torch.ones(4))
    with pytest.raises(weft.PlanError, match="a pending sum over mesh axis 'tp' cannot become a pending max"):
        x.redistribute(placements=[Replicated(), Partial("max")])
    both = weft.from_local([torch.ones(2)] * 8, PlacementMapping(MESH, [Partial("sum"), Partial("max")]))
    with pytest.raises(weft.PlanError, match="give different results in different orders: say the order"):
        both.tolist()
    assert weft.all_reduce(weft.all_reduce(both, "max", "tp"), "sum").tolist() == [2.0, 2.0]


def test_the_mean_over_uneven_shards_gathers_nothing() -> None:
    x = weft.shard(torch.arange(70, dtype=torch.float64).reshape(10, 7), MESH, P("tp", "dp")).requires_grad_()
    with weft.comm_log() as log:
        mean = x.mean()
        assert mean.item() == pytest.approx(34.5, rel=1e-15)
    assert set(log.counts()) <= {"all_reduce"}
    mean.backward()
    torch.testing.assert_close(x.grad.full_tensor(), torch.full((10, 7), 1 / 70, dtype=torch.float64))


def test_one_split_to_another_is_one_exchange() -> None:
    x = weft.shard(torch.ones(8, 8), LINE, P("d"))
    with weft.comm_log() as log:
        weft.shard(x, LINE, P(None, "d"))
    assert log.counts() == {"all_to_all": 1}
    assert log.bytes_received == 3 * 4 * 2 * 2


def test_hidden_movement_of_the_backward_pass_is_told_too() -> None:
    x = weft.shard(torch.randn(4, 8), MESH, P("dp")).requires_grad_()
    y = x.softmax(1)
    there = weft.shard(torch.randn(4, 8), MESH, P(None, "tp"))
    told = r"_softmax_backward_data.* at .*test_peers\.py:\d+ moves a tensor of shape \(4, 8\)"
    with weft.reshard_policy("raise"), pytest.raises(weft.ReshardError, match=told):
        y.backward(there)


def test_a_slice_of_a_split_dim_stays_split() -> None:
    x = weft.shard(torch.arange(64.0).reshape(16, 4), LINE, P("d"))
    y = x[2:14]
    assert y.mapping.spec == P("d", None)
    assert torch.equal(y.full_tensor(), torch.arange(64.0).reshape(16, 4)[2:14])


def test_an_uneven_dim_can_be_viewed() -> None:
    x = weft.shard(torch.arange(30.0).reshape(10, 3), LINE, P("d"))
    assert torch.equal(x.view(5, 2, 3).full_tensor(), torch.arange(30.0).reshape(5, 2, 3))
    assert torch.equal(x.view(-1).full_tensor(), torch.arange(30.0))


@pytest.mark.parametrize("size", [0, 1, 3, 10])
def test_any_size_is_split_and_not_silently_replicated(size: int) -> None:
    x = weft.shard(torch.arange(size), LINE, P("d"))
    assert sum(len(shard) for shard in x.local_shards) == size
    assert x.tolist() == list(range(size))


@pytest.mark.parametrize("there", [(4, 5, 6, 7), (2, 3, 4, 5), (3, 2, 1, 0), (0, 1)], ids=str)
def test_another_mesh_is_a_movement_with_a_gradient(there: tuple[int, ...]) -> None:
    other = DeviceMesh([CPU(i) for i in there], (len(there),), ("m",))
    x = weft.shard(torch.arange(24.0).reshape(6, 4), LINE, P("d")).requires_grad_()
    y = weft.shard(x, other, P(None, "m"))
    assert torch.equal(y.full_tensor(), x.full_tensor())
    (y * y).sum().backward()
    assert x.grad.mesh == LINE
    assert torch.equal(x.grad.full_tensor(), 2 * x.full_tensor())


def test_plain_and_sharded_tensors_mix() -> None:
    x = weft.shard(torch.ones(4, 4), MESH, P("dp", "tp"))
    assert torch.equal((torch.arange(4.0) + x).full_tensor(), torch.arange(4.0) + torch.ones(4, 4))
    assert torch.equal(
        torch.cat([x, torch.zeros(1, 4)]).full_tensor(), torch.cat([torch.ones(4, 4), torch.zeros(1, 4)])
    )


@pytest.mark.parametrize(
    "make",
    {
        "pending": lambda: summed(torch.ones(3)),
        "with a gradient": lambda: weft.shard(torch.ones(3), MESH, P("tp")).requires_grad_() * 2,
        "without elements": lambda: weft.shard(torch.ones(0, 3), MESH, P("dp", "tp")),
        "of short floats": lambda: weft.shard(torch.ones(3, dtype=torch.bfloat16), MESH, P("tp")),
        "complex": lambda: weft.shard(torch.ones(3, dtype=torch.complex64), MESH, P("tp")),
        "a parameter": lambda: torch.nn.Parameter(weft.shard(torch.ones(3), MESH, P("tp"))),
        "large": lambda: weft.shard(torch.ones(512, 4096), MESH, P("dp", "tp")),
        "without storage": lambda: weft.shard(torch.ones(3, device="meta"), MESH, P("tp")),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_printing_never_fails(make) -> None:
    assert "on dp=2 × tp=4" in repr(make[1]())
    assert str(make[1]())


def test_printing_inside_a_transform() -> None:
    seen = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        seen.append(repr(x))
        return (x * x).sum()

    torch.func.grad(loss)(weft.shard(torch.ones(3), MESH, P("tp")))
    assert "3@tp" in seen[0]


def test_dlpack_hands_over_shards_and_says_why_not_the_whole() -> None:
    x = weft.shard(torch.arange(8.0), LINE, P("d"))
    assert [torch.from_dlpack(shard).tolist() for shard in x.local_shards] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(BufferError, match="lies on 4 devices"):
        torch.from_dlpack(x)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod", "mean"])
def test_every_kind_of_reduction_is_pending_resolved_and_differentiated(kind: str) -> None:
    values = torch.tensor([[2.0, 5.0], [3.0, 1.0], [4.0, 7.0], [1.5, 2.0]], dtype=torch.float64)
    plain = {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "prod": torch.prod, "mean": torch.mean}[kind]
    x = weft.shard(values, LINE, P("d"))
    leaf = values.clone().requires_grad_()
    mine = weft.shard(leaf, LINE, P("d"))
    found = weft.all_reduce(mine, kind)
    torch.testing.assert_close(found.full_tensor()[0], plain(values, 0))
    found.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.func.grad(lambda v: plain(v, 0).sum())(values))
    tangent = torch.ones_like(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, moved = torch.func.jvp(lambda v: weft.all_reduce(v, kind), (x,), (weft.shard(tangent, LINE, P("d")),))
        _, expected = torch.func.jvp(lambda v: plain(v, 0), (values,), (tangent,))
    torch.testing.assert_close(moved.full_tensor()[0], expected)


def test_a_maximum_that_is_pending_is_no_sum() -> None:
    assert summed(torch.tensor([3.0, 4.0]), "max").tolist() == [3.0, 4.0]
    assert summed(torch.tensor([3.0, 4.0]), "mean").tolist() == [3.0, 4.0]


def test_an_axis_that_the_mesh_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'model'.*'dp', 'tp'"):
        weft.shard(torch.ones(4), MESH, P("model"))


def test_a_broadcast_counts_its_gradient_once() -> None:
    x = torch.ones(4, requires_grad=True)
    weft.distributed_broadcast(x, MESH).sum().backward()
    assert x.grad.tolist() == [1.0] * 4


def test_a_split_tensor_goes_to_one_device_whole() -> None:
    x = weft.to_device(weft.shard(torch.arange(8.0), LINE, P("d")), CPU(0))
    assert x.local_shards[0].tolist() == list(range(8))


def test_placements_print_as_what_they_are() -> None:
    x = weft.shard(torch.ones(8, 8), MESH, PlacementMapping(MESH, [Sharded(0), Replicated()]))
    assert str(x.placements) == "(Sharded(0), Replicated())"
