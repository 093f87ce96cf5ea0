"""Tensors without values, everywhere: they keep layouts, and what is asked of them is planned as if they had any."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft
from tests.paper.test_dryrun import thought_of
from weft import P

HERE = weft.make_mesh({"dp": 2, "tp": 4})
MESHES = {"devices that are here": HERE, "devices that nobody has": thought_of(dp=2, tp=4)}


@pytest.fixture(params=MESHES)
def mesh(request: pytest.FixtureRequest) -> weft.DeviceMesh:
    return MESHES[request.param]


def empty(mesh: weft.DeviceMesh, spec: P, *shape: int) -> weft.Tensor:
    x = weft.shard(torch.empty(*shape, device="meta"), mesh, spec)
    assert isinstance(x, weft.Tensor)
    return x


def test_layouts_are_kept(mesh: weft.DeviceMesh) -> None:
    x = empty(mesh, P("dp", "tp"), 8, 16)
    for y in (torch.empty_like(x), torch.zeros_like(x, device="meta"), x.to("meta"), x.to(torch.float16), x.clone()):
        assert y.is_meta
        assert y.mapping.spec == P("dp", "tp")  # type: ignore[attr-defined]


def test_modules_go_to_meta_and_stay_laid_out() -> None:
    layer = weft.nn.shard_module(nn.Linear(8, 16), HERE, {"weight": P("tp", "dp")})
    gone = layer.to("meta")
    assert gone.weight.is_meta
    assert gone.weight.mapping.spec == P("tp", "dp")  # type: ignore[attr-defined]
    back = gone.to_empty(device="cpu")
    assert not back.weight.is_meta
    assert back.weight.mapping.spec == P("tp", "dp")  # type: ignore[attr-defined]


def test_shards_without_values_are_put_together() -> None:
    mapping = weft.NamedMapping(HERE, P("dp", "tp"))
    x = weft.from_local([torch.empty(4, 4, device="meta") for _ in range(8)], mapping)
    assert (x.is_meta, tuple(x.shape), x.mapping) == (True, (8, 16), mapping)
    there = weft.NamedMapping(MESHES["devices that nobody has"], P("dp", "tp"))
    assert weft.from_local([torch.empty(4, 4, device="meta")], there).shape == (8, 16)


def test_logs_are_those_of_values(mesh: weft.DeviceMesh) -> None:
    def program(x: torch.Tensor) -> None:
        y = weft.shard(x, x.mesh, P(None, "tp"))  # type: ignore[attr-defined]
        weft.reduce_scatter((y @ y.T).sum(0), 0)  # type: ignore[attr-defined]
        y.sort(1)  # type: ignore[attr-defined]
        weft.ppermute(x, [(i, (i + 1) % 8) for i in range(8)])

    with weft.comm_log() as said:
        program(empty(mesh, P("dp", "tp"), 16, 16))
    with weft.comm_log() as log:
        program(weft.shard(torch.ones(16, 16), HERE, P("dp", "tp")))  # type: ignore[arg-type]
    assert [(r.kind, r.axes, r.bytes_received, r.op) for r in said] == [
        (r.kind, r.axes, r.bytes_received, r.op) for r in log
    ]


def test_local_map_runs_for_the_device_that_stands_for_all() -> None:
    mesh = MESHES["devices that nobody has"]

    def softmax(x: torch.Tensor) -> torch.Tensor:
        top = weft.all_reduce(x.amax(-1, keepdim=True), "max", reduce_axes="tp")
        assert isinstance(top, torch.Tensor)
        e = (x - top).exp()
        total = weft.all_reduce(e.sum(-1, keepdim=True), reduce_axes="tp")
        assert isinstance(total, torch.Tensor)
        return e / total

    def program(x: torch.Tensor) -> torch.Tensor:
        return weft.local_map(softmax, P("dp", "tp"), P("dp", "tp"), mesh=mesh, check=False)(x)

    x = empty(mesh, P("dp", "tp"), 8, 16)
    assert program(x).shape == (8, 16)
    report = weft.dryrun(program, x, topology="h100")
    assert set(report.bytes_by("axis")) == {"tp"}
    assert report.bytes_by("kind") == {"all_reduce": 2 * (4 * 4 * 2 * 3 // 4)}


def test_movements_between_meshes_are_held_where_they_arrive() -> None:
    first, second = (
        weft.make_mesh({"tp": 4}, devices=[weft.Accelerator(1000 + start + i) for i in range(4)]) for start in (0, 4)
    )
    x, w = empty(first, P(None, "tp"), 64, 64), empty(second, P(None, "tp"), 64, 64)

    def stages(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = weft.shard(x * 2, second, P())
        assert isinstance(y, torch.Tensor)
        return y @ w

    report = weft.dryrun(stages, x, w, topology="h100")
    assert {each.device for each in report.operations} == {weft.Accelerator(1000), weft.Accelerator(1004)}
    assert report.memory.device == weft.Accelerator(1004)
    assert report.memory.peak == 4 * (64 * 16 + 64 * 64 + 64 * 16)
    # The second stage begins when what it needs has come.
    product = next(each for each in report.operations if each.op == "mm")
    (moved,) = (each for each in report.movements if each.record.bytes_received)
    assert product.start >= moved.start + moved.seconds > 0


def test_a_graph_of_tensors_without_values_says_what_it_costs() -> None:
    def products(mesh: weft.DeviceMesh) -> object:
        x, w = empty(mesh, P("dp"), 16, 16), empty(mesh, P(None, "tp"), 16, 16)
        return weft.capture(lambda x, w: (x @ w).relu(), x, w).cost()

    assert products(HERE).flops == 2 * 16**3 + 16 * 16  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError, match=r"a graph is for devices that are there, but .* run the program by weft\.dryrun"
    ):
        products(MESHES["devices that nobody has"])


def test_the_plan_of_a_state_needs_no_values() -> None:
    there = weft.make_mesh({"x": 512}, devices=[weft.Accelerator(i) for i in range(512)])
    here = weft.make_mesh({"dp": 64, "tp": 8}, devices=there.devices)
    with torch.device("meta"):
        layer = weft.nn.shard_module(torch.nn.Linear(8192, 28672, bias=False), here, {"weight": P("tp", "dp")})
    plan = weft.plan_state(layer.state_dict(), weft.NamedMapping(there, P("x")))
    assert plan.bytes_received.total == plan.lower_bound.total
    assert 0 < plan.bytes_received.max <= layer.weight.numel() * 4 // 512
