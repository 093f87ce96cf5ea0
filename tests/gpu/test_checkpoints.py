"""Checkpoints of what is on GPUs: saved through pinned memory while the program goes on, loaded in any layout."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")
pytest.importorskip("xxhash")

import weft
from weft import NamedMapping, P
from weft.checkpoint import load, save, saving
from weft.sharding import make_mesh

pytestmark = pytest.mark.gpu

SPECS = [P("x"), P(None, "x"), P()]


def value() -> torch.Tensor:
    return torch.arange(1024.0 * 768).reshape(1024, 768)


def whole(x: object) -> torch.Tensor:
    return x.full_tensor().cpu() if isinstance(x, weft.Tensor) else torch.as_tensor(x).cpu()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_is_saved_is_the_state_at_the_call(memory, spec, tmp_path: Path) -> None:
    x = weft.shard(value(), make_mesh({"x": 4}), spec)
    assert x.local_shards[0].is_cuda
    handle = save({"x": x}, tmp_path, wait=False)
    x.fill_(-1)
    handle.wait()
    assert torch.equal(whole(load(tmp_path)["x"]), value())


def test_the_copies_are_in_pinned_memory(memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    write = saving.write_file

    def looked_at(path: Path, shards: dict[str, torch.Tensor]) -> Generator[int, None, object]:
        seen.extend(shards.values())
        return (yield from write(path, shards))

    monkeypatch.setattr(saving, "write_file", looked_at)
    save({"x": weft.shard(value(), make_mesh({"x": 4}), P("x"))}, tmp_path, wait=False).wait()
    assert seen
    assert all(x.device.type == "cpu" and x.is_pinned() for x in seen)


def test_the_call_does_not_wait_for_the_gpu(memory, tmp_path: Path) -> None:
    x = weft.shard(value(), make_mesh({"x": 4}), P("x"))
    save({"x": x}, tmp_path, wait=False).wait()  # torch keeps the pinned memory
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    handle = save({"x": x}, tmp_path, wait=False)
    assert not torch.cuda.current_stream().query(), "the call has waited for the GPU"
    x.mul_(-1)
    handle.wait()
    assert torch.equal(whole(load(tmp_path)["x"]), value())


@pytest.mark.parametrize("after", SPECS, ids=str)
@pytest.mark.parametrize("before", SPECS, ids=str)
def test_any_layout_loads_into_any_other(memory, before, after, tmp_path: Path) -> None:
    mesh = make_mesh({"x": 4})
    save({"x": weft.shard(value(), mesh, before)}, tmp_path)
    found = load(tmp_path, {"x": NamedMapping(mesh, after)})["x"]
    assert found.local_shards[0].is_cuda
    assert torch.equal(whole(found), value())


@pytest.mark.parametrize("after", [*SPECS, P("x", "y"), P(None, ("y", "x"))], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_are_sent_while_the_next_are_read(memory, after, dtype, tmp_path: Path) -> None:
    x = torch.arange(3001.0 * 1536).reshape(3001, 1536)  # 18 MB, which threads send in several parts each
    save({"x": x}, tmp_path)
    like = weft.shard(torch.zeros(3001, 1536, dtype=dtype), make_mesh({"x": 2, "y": 2}), after)
    for _ in range(3):
        assert torch.equal(whole(load(tmp_path, {"x": like}, cast=True)["x"]), x.to(dtype))


def test_a_load_comes_after_what_a_stream_still_reads(memory, tmp_path: Path) -> None:
    layer = weft.nn.shard_module(torch.nn.Linear(768, 1024), make_mesh({"x": 4}), {"weight": P("x")})
    save(layer, tmp_path)
    with torch.no_grad():
        layer.weight.fill_(1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        torch.cuda._sleep(500_000_000)
        before = layer.weight * 1
        load(tmp_path, layer)
        after = layer.weight * 1
    torch.cuda.synchronize()
    assert torch.equal(whole(before), torch.ones(1024, 768))
    assert not torch.equal(whole(after), torch.ones(1024, 768))
