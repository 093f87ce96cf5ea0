"""The in-process runtime reduces with the kernels where they apply, and gets what its chain of adds gets."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.kernels.participants import DEVICE
from weft import P, ReduceOp
from weft.kernels.combining import combine_into
from weft.runtime import accelerator_kernels, machine
from weft.runtime.accelerator_kernels import few_launches
from weft.runtime.all_reducing import is_small
from weft.runtime.reduction import reduced
from weft.sharding import make_mesh
from weft.sharding.layout import Layout


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the kernels serve CPU tensors, in Triton's interpreter, where there is no GPU, and note which ones do."""
    monkeypatch.setattr(accelerator_kernels, "_DEVICES", frozenset({torch.device(DEVICE).type}))
    monkeypatch.setenv("WEFT_VIRTUAL_ACCELERATORS", "8")
    kernel = accelerator_kernels._kernel
    used: list[str] = []

    def noted(name: str):
        used.append(name.rpartition(":")[2])
        return kernel(name)

    monkeypatch.setattr(accelerator_kernels, "_kernel", noted)
    return used


def parts_of(dtype: torch.dtype, count: int, shape: tuple[int, ...] = (5, 7)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randint(0, 4, shape, generator=generator).to(DEVICE, dtype) for _ in range(count)]


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PROD], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8], ids=str)
def test_one_launch_gives_what_the_chain_gives(served, op, dtype) -> None:
    parts = parts_of(dtype, 4)
    applies = dtype.is_floating_point or op is not ReduceOp.AVG
    if not applies:
        assert not accelerator_kernels.reducible(op, parts)
        return
    chain = reduced(op, parts)
    assert not served
    with few_launches():
        got = reduced(op, parts)
    # A GPU's own division by a number multiplies by its inverse.
    torch.testing.assert_close(got, chain, rtol=1e-6 if op is ReduceOp.AVG else 0, atol=0)
    assert served == ["combine_into"]


def test_parts_of_larger_tensors() -> None:
    rows = torch.arange(24.0, device=DEVICE).reshape(6, 4)
    out = torch.empty(2, 4, device=DEVICE)
    combine_into(out, [rows[:2], rows[2:4], rows[4:]])
    assert torch.equal(out, rows[:2] + rows[2:4] + rows[4:])


def test_parts_keep_sharing_memory_with_their_copies() -> None:
    plain = torch.arange(3.0, device=DEVICE)
    copy = torch._lazy_clone(plain)
    out = torch.empty(3, device=DEVICE)
    combine_into(out, [copy, plain, copy])
    assert torch._C._is_cow_tensor(copy)
    assert out.tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    "parts",
    [
        parts_of(torch.float32, 2),
        parts_of(torch.float32, 9),
        [part.T for part in parts_of(torch.float32, 4)],
        parts_of(torch.complex64, 4),
        parts_of(torch.bool, 4),
    ],
    ids=["too few", "too many", "strided", "complex", "bool"],
)
def test_what_the_kernels_do_not_serve_is_chained(served, parts) -> None:
    with few_launches():
        got = reduced(ReduceOp.SUM, parts)
    assert not served
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    assert torch.equal(got, expected)


def test_tracers_see_torch_operations(served) -> None:
    parts = parts_of(torch.float32, 4)
    with few_launches():
        traced = torch.fx.experimental.proxy_tensor.make_fx(lambda *xs: reduced(ReduceOp.SUM, xs))(*parts)
    assert not served
    adds = (torch.ops.aten.add.out, torch.ops.aten.add_.Tensor)
    assert sum(node.target in adds for node in traced.graph.nodes) == 3


def test_an_all_reduce_between_memories_is_one_kernel_for_each_group(served) -> None:
    mesh = make_mesh({"dp": 2, "tp": 3})
    machine.use_separate_memory(True)
    try:
        x, w = torch.arange(24.0).reshape(4, 6), torch.arange(12.0).reshape(6, 2)
        y = weft.shard(x, mesh, P("dp", "tp")) @ weft.shard(w, mesh, P("tp", None))
        assert y._layout.pending_axes == ("tp",)
        with few_launches():
            whole = weft.shard(y, mesh, P("dp", None))
        assert served.count("DistributedAllReduce") == 2
        assert torch.equal(whole.full_tensor().cpu(), x @ w)
        assert len({shard.data_ptr() for shard in whole.local_shards}) == 6
    finally:
        machine.use_separate_memory(False)


def test_results_of_an_all_reduce_on_one_accelerator_are_parted_when_written_to(served) -> None:
    mesh = make_mesh({"dp": 2, "tp": 3})
    machine.use_separate_memory(True)
    try:
        x, w = torch.arange(24.0).reshape(4, 6), torch.arange(12.0).reshape(6, 2)
        y = weft.shard(x, mesh, P("dp", "tp")) @ weft.shard(w, mesh, P("tp", None))
        whole = weft.shard(y, mesh, P("dp", None))
        assert not served
        shards = [shard.clone() for shard in whole.local_shards]
        whole._value.pieces[0].zero_()
        assert all(torch.equal(a, b) for a, b in zip(whole.local_shards[1:], shards[1:], strict=True))
        assert torch.equal(torch.cat([shards[0], shards[3]]).cpu(), x @ w)
    finally:
        machine.use_separate_memory(False)


def test_reductions_of_several_kinds_are_left_to_the_planner() -> None:
    pending = Layout(make_mesh({"dp": 2, "tp": 3}), [()], {"dp": ReduceOp.SUM, "tp": ReduceOp.MAX})
    contributions = (torch.ones(4),)
    assert not is_small(contributions, pending)
    assert is_small(contributions, pending.with_pending({"dp": ReduceOp.SUM}))
