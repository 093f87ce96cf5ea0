"""What is saved in any layout is loaded in any layout, bit for bit."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import weft
from weft import NamedMapping, P
from weft.checkpoint import reading
from weft.checkpoint.files import blocks, filling
from weft.checkpoint.files.opening import index_at

MESH = weft.make_mesh({"dp": 2, "tp": 3})
SPECS = [P(), P("dp"), P(None, "tp"), P("tp", "dp"), P(("dp", "tp")), P(None, ("tp", "dp"))]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]


def values(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()].reshape(shape).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    whole = a.full_tensor() if isinstance(a, weft.Tensor) else a
    return whole.dtype == b.dtype and torch.equal(whole.cpu().view(torch.uint8), b.cpu().view(torch.uint8))


@settings(max_examples=25)
@given(
    before=st.sampled_from(SPECS),
    after=st.sampled_from(SPECS),
    shape=st.sampled_from([(4, 6), (5, 7), (1, 2), (3, 1)]),
    dtype=st.sampled_from(DTYPES),
)
def test_any_layout_loads_into_any_other(before, after, shape, dtype) -> None:
    x = values(shape, dtype)
    with tempfile.TemporaryDirectory() as folder:
        weft.checkpoint.save({"x": weft.shard(x, MESH, before)}, folder)
        loaded = weft.checkpoint.load(folder, {"x": NamedMapping(MESH, after)})
    assert loaded["x"].mapping.spec == after
    assert same(loaded["x"], x)


def test_another_mesh_loads_too(tmp_path: Path) -> None:
    x = values((8, 6))
    other = weft.make_mesh({"x": 4})
    weft.checkpoint.save({"x": weft.shard(x, MESH, P("tp", "dp"))}, tmp_path)
    loaded = weft.checkpoint.load(tmp_path, {"x": NamedMapping(other, P(None, "x"))})
    assert loaded["x"].mesh == other
    assert same(loaded["x"], x)


def test_the_structure_comes_back(tmp_path: Path) -> None:
    state = {"a": [1, 2.5, None], "b": ("x", True), "c": {7: torch.ones(2), "n": {}}, "s": torch.tensor(3.0)}
    weft.checkpoint.save(state, tmp_path)
    back = weft.checkpoint.load(tmp_path)
    assert torch.equal(back["c"].pop(7), state["c"].pop(7))
    assert torch.equal(back.pop("s"), state.pop("s"))
    assert back == state


def test_names_that_fall_together_are_kept_apart(tmp_path: Path) -> None:
    weft.checkpoint.save({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, tmp_path)
    back = weft.checkpoint.load(tmp_path)
    assert (back["a.b"].item(), back["a"]["b"].item()) == (0, 1)


def test_a_pending_sum_is_saved_as_its_value(tmp_path: Path) -> None:
    x = weft.shard(values((4, 6)), MESH, P(None, "tp"))
    total = x @ weft.shard(torch.ones(6, 2), MESH, P("tp", None))
    weft.checkpoint.save({"x": total}, tmp_path)
    assert torch.equal(weft.checkpoint.load(tmp_path)["x"], values((4, 6)) @ torch.ones(6, 2))


def test_tied_parameters_are_saved_once(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 6, bias=False))
    model[1].weight = model[0].weight
    weft.nn.shard_module(model, MESH, {"0.weight": P("tp", None)})
    weft.checkpoint.save(model, tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert size < 2 * 6 * 6 * 4 + 600
    back = weft.checkpoint.load(tmp_path)
    assert torch.equal(back["0.weight"], back["1.weight"])


def test_an_unsharded_checkpoint_is_plain_safetensors(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 4)
    weft.checkpoint.save(model, tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    assert torch.equal(load_file(file)["weight"], model.weight)


def test_a_single_file_is_plain_in_any_layout(tmp_path: Path) -> None:
    model = weft.nn.shard_module(torch.nn.Linear(6, 4), MESH, {"weight": P("dp", "tp")})
    weft.checkpoint.save(model, tmp_path / "model.safetensors")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["weight"], model.weight.full_tensor().cpu())
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    other = weft.nn.shard_module(torch.nn.Linear(6, 4), MESH, {"weight": P(None, "tp")})
    weft.checkpoint.load(tmp_path / "model.safetensors", other)
    assert torch.equal(other.weight.full_tensor(), model.weight.full_tensor())


def test_files_of_other_libraries_load(tmp_path: Path) -> None:
    save_file({"weight": values((4, 6))}, tmp_path / "part-1.safetensors")
    save_file({"bias": values((4,))}, tmp_path / "part-2.safetensors")
    model = weft.nn.shard_module(torch.nn.Linear(6, 4), MESH, {"weight": P("dp", "tp")})
    weft.checkpoint.load(tmp_path, model)
    assert same(model.weight.detach(), values((4, 6)))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"weight": "part-1.safetensors"}}')
    assert list(weft.checkpoint.load(tmp_path)) == ["weight"]


def test_patterns_and_one_mapping_say_layouts(tmp_path: Path) -> None:
    weft.checkpoint.save({"a.weight": values((4, 6)), "b.weight": values((6, 6))}, tmp_path)
    by_pattern = weft.checkpoint.load(tmp_path, {"a.*": NamedMapping(MESH, P("dp")), "*": NamedMapping(MESH, P("tp"))})
    assert [x.mapping.spec for x in by_pattern.values()] == [P("dp"), P("tp")]
    alike = weft.checkpoint.load(tmp_path, NamedMapping(MESH, P(None, "tp")))
    assert [x.mapping.spec for x in alike.values()] == [P(None, "tp")] * 2


def test_only_needed_blocks_are_read(tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weft.checkpoint.save({"x": values((8, 1 << 16)), "y": values((4,))}, tmp_path)  # 2 MiB of two blocks
    read = []
    found = blocks.read_into
    monkeypatch.setattr(blocks, "read_into", lambda file, at, room: (read.append(len(room)), found(file, at, room)))
    x = weft.checkpoint.load(tmp_path, {"x": NamedMapping(MESH, P("dp"))}, strict=False)["x"]
    assert same(x, values((8, 1 << 16)))
    assert sum(read) == 2 << 20
    if memory == "separate":
        read.clear()
        part = torch.empty(2, 1 << 16)
        reader = reading.Reader(tmp_path, index_at(tmp_path))
        reader.want("x", part, ((2, 4), (0, 1 << 16)))
        with reader.opened() as go:
            go(lambda count: None)
        assert torch.equal(part, values((8, 1 << 16))[2:4])
        assert sum(read) == 1 << 20


@pytest.mark.parametrize("spec", [P(), P(None, "tp"), P(None, ("dp", "tp")), P("dp", "tp")], ids=str)
@pytest.mark.parametrize("saved", [P(), P("dp"), P(None, "dp")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_block_is_read_once_for_all_devices(tmp_path: Path, spec: P, saved: P, dtype, monkeypatch) -> None:
    x = values((1024, 1024))  # of which each half has two blocks
    weft.checkpoint.save({"x": weft.shard(x, MESH, saved)}, tmp_path)
    read, found = [], blocks.read_into
    monkeypatch.setattr(
        blocks, "read_into", lambda file, at, room: (read.append((at, len(room))), found(file, at, room))
    )
    like = weft.shard(torch.zeros(1024, 1024, dtype=dtype), MESH, spec)
    assert same(weft.checkpoint.load(tmp_path, {"x": like}, cast=True)["x"], x.to(dtype))
    assert len(read) == len(set(read))
    assert sum(size for _, size in read) == x.nbytes


@pytest.mark.parametrize("spec", [P(), P(None, "tp"), P("dp", "tp"), P(("tp", "dp"))], ids=str)
@pytest.mark.parametrize("verify", [True, False])
def test_threads_share_a_large_tensor(tmp_path: Path, spec: P, verify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values((1002, 1233))  # 5 MB in rows that end in no block
    weft.checkpoint.save({"x": x}, tmp_path)
    monkeypatch.setattr(reading, "_WORKERS", 3)
    monkeypatch.setattr(reading, "_LEAST", 1 << 20)
    filled, fill = [], reading.fill
    monkeypatch.setattr(reading, "fill", lambda part, source: (filled.append(part.rows), fill(part, source)))
    assert same(weft.checkpoint.load(tmp_path, {"x": NamedMapping(MESH, spec)}, verify=verify)["x"], x)
    assert len(filled) >= (2 if spec[1:] else 3)  # fewer threads hand out parts of rows
    assert sorted(filled)[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(sorted(filled)))


@pytest.mark.parametrize("spec", [P(), P("dp", "tp"), P(None, "tp", "dp"), P(None, None, ("tp", "dp"))], ids=str)
@pytest.mark.parametrize("bucket", [24, 128, 1024])
def test_rows_longer_than_a_bucket(tmp_path: Path, spec: P, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values((5, 7, 12))
    weft.checkpoint.save({"x": x}, tmp_path)
    monkeypatch.setattr(filling, "BUCKET", bucket)
    monkeypatch.setattr(filling, "NEAR", bucket)
    monkeypatch.setattr(filling, "CUT", bucket)
    assert same(weft.checkpoint.load(tmp_path, {"x": NamedMapping(MESH, spec)})["x"], x)


@pytest.mark.parametrize("bucket", [24, 128, 1024])
def test_rows_that_nobody_wants_between_others(tmp_path: Path, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values((5, 7, 12))
    weft.checkpoint.save({"x": x}, tmp_path)
    monkeypatch.setattr(filling, "BUCKET", bucket)
    monkeypatch.setattr(filling, "NEAR", bucket)
    monkeypatch.setattr(filling, "CUT", bucket)
    reader = reading.Reader(tmp_path, index_at(tmp_path))
    boxes = [((0, 5), (0, 2), (1, 12)), ((0, 5), (5, 7), (0, 11)), ((1, 2), (6, 7), (0, 12)), ((4, 5), (0, 7), (0, 12))]
    found = [reader.box("x", box) for box in boxes]
    with reader.opened() as read:
        read(lambda _: None)
    for part, box in zip(found, boxes, strict=True):
        assert torch.equal(part, x[tuple(slice(*each) for each in box)])


BOXES = [((0, 901), (300, 620)), ((17, 800), (0, 1)), ((0, 901), (1, 1237)), ((890, 901), (3, 5))]


@pytest.mark.parametrize("box", BOXES, ids=str)
@pytest.mark.parametrize("verify", [True, False])
def test_rows_that_end_in_a_block_do_not_make_it_read_twice(tmp_path: Path, verify, box, monkeypatch) -> None:
    x = values((901, 1237))  # 4.5 MB in rows of 4948 bytes, of which no number ends with a block
    weft.checkpoint.save({"x": x}, tmp_path)
    read, found = [], blocks.read_into
    monkeypatch.setattr(
        blocks, "read_into", lambda file, at, room: (read.append((at, len(room))), found(file, at, room))
    )
    monkeypatch.setattr(filling, "NEAR", 1 << 19)
    monkeypatch.setattr(filling, "CUT", 1 << 19)  # rows are copied half a MiB at a time
    reader = reading.Reader(tmp_path, index_at(tmp_path), verify)
    (rows, columns), part = box, torch.empty([stop - start for start, stop in box])
    reader.want("x", part, box)
    with reader.opened() as go:
        go(lambda count: None)
    assert torch.equal(part, x[slice(*rows), slice(*columns)])
    read.sort()
    assert all(a + size == b for (a, size), (b, _) in pairwise(read))
    assert sum(size for _, size in read) <= (rows[1] - rows[0]) * 4948 + (2 << 20 if verify else 0)


def test_threads_find_memory_that_is_shared_with_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weft.checkpoint.save({"x": weft.shard(values((8, 6)), MESH, P("dp", "tp"))}, tmp_path)
    layer = torch.nn.Module()
    layer.x = torch.nn.Parameter(weft.shard(torch.zeros(8, 6), MESH, P(None, "tp")))
    kept = layer.x.local_shards  # copies, once one of the two is written to
    shared: list[bool] = []
    fill = reading.fill

    def seen(part: filling.Part, source: blocks.ShardBytes) -> None:
        shared.extend(torch._C._is_cow_tensor(place.target) for place in part.places)
        fill(part, source)

    monkeypatch.setattr(reading, "fill", seen)
    weft.checkpoint.load(tmp_path, layer)
    assert shared
    assert not any(shared)
    assert same(layer.x.detach(), values((8, 6)))
    assert not any(shard.any() for shard in kept)


def test_no_process_holds_a_split_tensor_whole(tmp_path: Path, memory: str) -> None:
    weft.checkpoint.save({"x": weft.shard(values((8, 6)), MESH, P("dp", "tp"))}, tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    shapes = {tuple(x.shape) for x in load_file(file).values()}
    assert shapes == ({(8, 6)} if memory == "unified" else {(4, 2)})


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD], ids=lambda o: o.__name__)
def test_training_goes_on_from_a_checkpoint_in_another_layout(tmp_path: Path, optimizer) -> None:
    options = {"lr": 0.05} | ({"momentum": 0.9} if optimizer is torch.optim.SGD else {})
    batch = torch.randn(12, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def made(patterns):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()
        if patterns is not None:
            weft.nn.shard_module(model, MESH, patterns)
        return model, optimizer(model.parameters(), **options)

    def trained(model, opt, steps: int) -> float:
        for _ in range(steps):
            opt.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            opt.step()
        return loss.item()

    expected = trained(*made(None), 6)
    model, opt = made({"0.*": P("tp"), "2.weight": P(None, "tp")})
    trained(model, opt, 3)
    weft.checkpoint.save({"model": model, "optimizer": opt, "step": 3}, tmp_path)
    other, other_opt = made({"0.weight": P(None, "tp"), "2.*": P("tp")})
    state = weft.checkpoint.load(tmp_path, {"model": other, "optimizer": other_opt, "step": None})
    assert state["step"] == 3
    assert state["model"] is other
    assert trained(other, other_opt, 3) == pytest.approx(expected, rel=1e-12)
    moments = [v for v in other_opt.state[other[0].weight].values() if isinstance(v, weft.Tensor)]
    assert [m.mapping.spec for m in moments] == [P(None, "tp")] * len(moments) != []


@pytest.mark.parametrize(
    ("cores", "together", "checkers", "rows"),
    [(6, 1, 2, 6), (4, 1, 0, 25), (5, 1, 1, 1), (16, 4, 0, 15), (24, 4, 2, 15)],
)
@pytest.mark.parametrize("verify", [True, False])
def test_all_threads_read_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, together: int, checkers: int, rows: int, verify: bool
) -> None:
    """Where processes that read at once leave cores, some more threads read if checksums are taken."""
    monkeypatch.setattr(reading, "_RUN", 16 << 20)
    monkeypatch.setattr(reading, "_LEAST", 1 << 20)
    state = {str(i): torch.empty(rows, 1 << 16) for i in range(8)}
    weft.checkpoint.save(state, tmp_path)
    monkeypatch.setattr(reading, "_CORES", cores)
    monkeypatch.setattr(reading, "_WORKERS", 4)
    reader = reading.Reader(tmp_path, index_at(tmp_path), verify)
    reader.share_checks(range(together))
    for name, x in state.items():
        reader.want(name, x)
    sizes = [sum(part.nbytes for part in run) for run in reader._runs()]
    threads = 4 + (checkers if verify else 0)
    assert sum(sizes) == 8 * rows << 18
    busy = [0] * threads
    for size in sizes:
        busy[busy.index(min(busy))] += size
    assert max(busy) <= sum(sizes) / threads + (1 << 20)
    assert max(sizes) <= 18 << 20


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_threads_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    state = {str(i): torch.randn(i, 3) for i in range(20)}
    weft.checkpoint.save(state, tmp_path)
    monkeypatch.setattr(reading, "_WORKERS", workers)
    monkeypatch.setattr(reading, "_RUN", 100)
    found = weft.checkpoint.load(tmp_path)
    assert all(torch.equal(found[name], x) for name, x in state.items())


def test_loads_in_inference_mode(tmp_path: Path) -> None:
    x = torch.arange(24.0).view(6, 4)
    weft.checkpoint.save({"a": weft.shard(x, MESH, P("tp")), "b": x}, tmp_path)
    there = weft.shard(torch.zeros(6, 4), MESH, P("tp"))
    with torch.inference_mode():
        found = weft.checkpoint.load(tmp_path, {"a": NamedMapping(MESH, P(None, "dp")), "b": there})
        assert torch.equal(found["a"].full_tensor(), x)
        assert torch.equal(found["b"].full_tensor(), x)
    weft.checkpoint.load(tmp_path, torch.nn.ParameterDict({"a": there, "b": torch.zeros(6, 4)}))
    assert torch.equal(there.full_tensor(), x)
