"""Reductions on a GPU: one launch gives what the chain gives, and what the host gives."""

from __future__ import annotations

import pytest
import torch

import weft
import weft.tensor  # tensors are made of its class
from weft import ReduceOp
from weft.engine.sharded import wrap
from weft.runtime import accelerator_kernels, machine
from weft.runtime.accelerator_kernels import few_launches
from weft.runtime.reduction import reduced
from weft.sharding import make_mesh
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8]


def parts_of(dtype: torch.dtype, count: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randint(0, 4, shape, generator=generator).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", list(ReduceOp), ids=lambda op: op.name)
@pytest.mark.parametrize("count", [2, 3, 8, 11])
def test_one_launch_gives_what_the_host_gives(dtype, op, count) -> None:
    if op is ReduceOp.AVG and not dtype.is_floating_point:
        return
    for shape in ((5, 7), (1000,), (), (0, 3)):
        parts = parts_of(dtype, count, shape)
        with few_launches():
            got = reduced(op, [part.cuda() for part in parts])
        torch.testing.assert_close(got.cpu(), reduced(op, parts))


def test_the_short_floats_are_added_in_float32() -> None:
    parts = [torch.full((4096,), value, dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0, 1.0, 1.0)]
    with few_launches():
        assert torch.equal(reduced(ReduceOp.SUM, [part.cuda() for part in parts]).cpu(), reduced(ReduceOp.SUM, parts))


def launches(run) -> int:
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def test_a_large_reduction_is_one_launch() -> None:
    parts = [torch.ones(1 << 20, device="cuda") for _ in range(8)]
    assert launches(lambda: reduced(ReduceOp.SUM, parts)) == 1


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX], ids=lambda op: op.name)
@pytest.mark.parametrize("separate", [False, True])
def test_pending_reductions_of_tensors(op, separate, monkeypatch) -> None:
    mesh = make_mesh({"dp": 2, "tp": 4})
    calls = []
    kernel = accelerator_kernels.all_reduce
    monkeypatch.setattr(accelerator_kernels, "all_reduce", lambda *args: calls.append(kernel(*args)) or calls[-1])
    machine.use_separate_memory(separate)
    try:
        layout = Layout(mesh, [("dp",), ()], {"tp": op})
        whole = [torch.randn(6, 70000, dtype=torch.float64) for _ in range(4)]
        at = [(slot // 4, slot % 4) for slot in range(8)]
        if separate:
            pieces = tuple(whole[t][3 * d : 3 * d + 3].cuda() for d, t in at)
        else:
            pieces = tuple(part.cuda() for part in whole)
        x = wrap(pieces, layout, (6, 70000))
        with few_launches():
            y = weft.shard(x, mesh, named_mapping(layout.resolved))
        assert calls == ([True, True] if separate else [])
        torch.testing.assert_close(y.full_tensor().cpu(), reduced(op, whole))
        again = weft.shard(x, mesh, named_mapping(layout.resolved))
        assert torch.equal(again.full_tensor(), y.full_tensor())
    finally:
        machine.use_separate_memory(False)
