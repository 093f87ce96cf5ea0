"""Folders of torch's DCP load here in any layout, and what is written here as such a folder loads there."""

from __future__ import annotations

import os
import pickle
import resource
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import weft
from weft import NamedMapping, P
from weft.checkpoint import CheckpointError, load, save, save_dcp, verify
from weft.checkpoint.command import checkpoint
from weft.checkpoint.comparing import differences

MESH = weft.make_mesh({"dp": 2, "tp": 3})
SPECS = [P(), P("dp"), P(None, "tp"), P("tp", "dp"), P(("dp", "tp"))]
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning"),
]


@pytest.fixture
def small_files() -> Iterator[None]:
    """The system lets no file grow beyond 64 KiB, as if the disk were full then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def state() -> dict[str, object]:
    torch.manual_seed(0)
    return {
        "model": {"weight": torch.randn(7, 6), "half": torch.randn(5).bfloat16(), "scalar": torch.tensor(2.5)},
        "moments": [torch.arange(4), torch.randn(2, 3, 2).double()],
        "step": 3,
        "options": {"lr": 0.1, "names": ["a", "b"], "betas": (0.9, 0.99)},
    }


def same(a: object, b: object) -> bool:
    if isinstance(a, weft.Tensor):
        a = a.full_tensor()
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_a_folder_of_torch_s_loads_as_it_was(tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path)
    assert same(load(tmp_path), state())
    found = verify(tmp_path)
    assert (found.tensors, found.checksums) == (5, False)


def test_a_folder_of_an_older_torch(tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path)
    listing = tmp_path / ".metadata"
    metadata = pickle.loads(listing.read_bytes())
    for entry in metadata.state_dict_metadata.values():
        if isinstance(entry, TensorStorageMetadata):
            entry.properties = TensorProperties(entry.properties.dtype)
    for place in metadata.storage_data.values():
        vars(place).pop("transform_descriptors", None)
    for name in ("storage_meta", "version"):
        vars(metadata).pop(name, None)
    listing.write_bytes(pickle.dumps(metadata))
    assert same(load(tmp_path), state())


def test_a_list_with_words_of_another_torch_is_named(tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path)
    listing = tmp_path / ".metadata"
    listing.write_bytes(listing.read_bytes().replace(b"ChunkStorageMetadata", b"BlockStorageMetadata"))
    with pytest.raises(
        CheckpointError, match=r"it names torch\.distributed\.checkpoint\.metadata\.BlockStorageMetadata"
    ):
        load(tmp_path)


def test_lists_that_torch_keeps_as_one_value_are_lists(tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path / "theirs")
    save(state(), tmp_path / "ours")
    assert list(differences(tmp_path / "ours", tmp_path / "theirs")) == []
    found = load(tmp_path / "theirs", {"options": {"betas": (None, None), "lr": None, "names": None}}, strict=False)
    assert found == {"options": {"betas": (0.9, 0.99), "lr": 0.1, "names": ["a", "b"]}}


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_folder_of_torch_s_loads_in_any_layout(spec: P, tmp_path: Path) -> None:
    source = torch.nn.Linear(6, 7)
    dcp.save({"model": source.state_dict()}, checkpoint_id=tmp_path)
    target = weft.nn.shard_module(torch.nn.Linear(6, 7), MESH, {"weight": spec})
    load(tmp_path, {"model": target})
    assert target.weight.mapping.spec == spec
    assert same(target.weight.detach(), source.weight.detach())
    assert same(target.bias.detach(), source.bias.detach())


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_is_written_here_loads_there(spec: P, tmp_path: Path) -> None:
    here = state()
    here["model"]["weight"] = weft.shard(here["model"]["weight"], MESH, spec)
    save_dcp(here, tmp_path)
    there = state()
    for each in (*there["model"].values(), *there["moments"]):
        each.zero_()
    there["step"] = 0
    dcp.load(there, checkpoint_id=tmp_path)
    assert same(there, state())
    assert same(
        load(tmp_path, {"model.weight": NamedMapping(MESH, P("dp"))})["model"]["weight"], state()["model"]["weight"]
    )


def test_a_training_moves_between_the_two(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = weft.nn.shard_module(torch.nn.Linear(4, 4), MESH, {"weight": P("tp")})
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    save_dcp({"model": model, "optimizer": optimizer}, tmp_path)
    plain = torch.nn.Linear(4, 4)
    resumed = torch.optim.AdamW(plain.parameters())
    load(tmp_path, {"model": plain, "optimizer": resumed})
    assert same(model.weight.detach(), plain.weight.detach())
    for name, x in optimizer.state[model.weight].items():
        assert same(x, resumed.state[plain.weight][name])


@pytest.mark.parametrize("written_by", ["weft", "torch"])
def test_a_schedule_with_numbers_as_keys_goes_on(written_by: str, tmp_path: Path) -> None:
    def made() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=1.0)
        return optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])

    def rates(optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler) -> list[float]:
        found = []
        for _ in range(4):
            optimizer.step()
            schedule.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    optimizer, schedule = made()
    state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    if written_by == "weft":
        save_dcp(state, tmp_path)
    else:
        dcp.save(state, checkpoint_id=tmp_path)
    resumed = made()
    load(tmp_path, {"optimizer": resumed[0], "schedule": resumed[1]})
    assert resumed[1].milestones == schedule.milestones
    assert rates(*resumed) == rates(optimizer, schedule)


def test_tied_and_empty_tensors(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 6, bias=False))
    model[1].weight = model[0].weight
    weft.nn.shard_module(model, MESH, {"0.weight": P("tp")})
    save_dcp({"model": model, "empty": torch.empty(0, 3)}, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000
    there = {"model": {name: torch.zeros(6, 6) for name in ("0.weight", "1.weight")}, "empty": torch.empty(0, 3)}
    dcp.load(there, checkpoint_id=tmp_path)
    assert same(there["model"]["0.weight"], model[0].weight.detach().full_tensor())
    assert same(there["model"]["1.weight"], model[0].weight.detach().full_tensor())
    assert load(tmp_path)["empty"].shape == (0, 3)


SHAPES_OF_STATES: list[dict[str, object]] = [
    {"a": {}, "b": [], "c": (), "d": {"e": {}}},
    {"l": [{}, [], {"x": {}}]},
    {"o": [torch.ones(1), 5, {}, torch.zeros(1), [torch.ones(2), "text"]]},
    {"layers": [dict(torch.nn.Linear(2, 2).state_dict()), {}]},
]


@pytest.mark.parametrize("kept", SHAPES_OF_STATES, ids="-".join)
def test_what_is_empty_and_lists_of_tensors_and_values(tmp_path: Path, kept: dict[str, object]) -> None:
    save_dcp(kept, tmp_path)
    assert repr(load(tmp_path, kept)) == repr(kept)
    assert sorted(repr(load(tmp_path))) == sorted(repr(kept))  # torch writes tensors before values
    there = {name: torch.zeros(1) for name in ("o.0", "o.3") if "o" in kept}
    dcp.load(there, checkpoint_id=tmp_path)
    assert not there or there["o.0"].item() == 1


def test_a_list_of_torch_s_with_an_empty_dict(tmp_path: Path) -> None:
    dcp.save({"l": [torch.ones(1), {}, [2]]}, checkpoint_id=tmp_path)
    assert load(tmp_path) == {"l": [torch.ones(1), {}, [2]]}


def test_shards_in_tuples_and_modules_in_lists(tmp_path: Path) -> None:
    x = weft.shard(torch.arange(8.0), MESH, P("tp"))
    layers = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    save_dcp({"t": (x, 1), "layers": layers, "betas": (0.9, 0.99)}, tmp_path)
    found = load(tmp_path)
    assert same(found["t"][0], torch.arange(8.0))
    assert found["betas"] == (0.9, 0.99)
    assert same(found["layers"][1]["weight"], layers[1].weight.detach())


class OfAnotherKind(torch.Tensor):
    """A tensor that only its own library knows."""


def test_tensors_of_all_dtypes_and_kinds_and_numbers_of_numpy(tmp_path: Path) -> None:
    dtypes = (torch.complex128, torch.complex32, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.bits8)
    kept = {str(dtype): torch.arange(48, dtype=torch.uint8).view(dtype) for dtype in dtypes}
    kept["own"] = torch.ones(2).as_subclass(OfAnotherKind)
    save_dcp({"x": kept, "n": numpy.float32(0.5), "b": (numpy.int64(3),)}, tmp_path)
    found = load(tmp_path)
    assert (found["n"], found["b"]) == (0.5, (3,))
    for name, x in kept.items():
        assert found["x"][name].dtype == x.dtype
        assert torch.equal(found["x"][name].view(torch.uint8), torch.Tensor(x).view(torch.uint8)) or name == "own"
    assert type(found["x"]["own"]) is torch.Tensor


def holds_itself() -> dict[str, object]:
    kept: dict[str, object] = {}
    kept["it"] = kept
    return kept


UNFIT = {
    "is torch.sparse_coo, which torch's checkpoints have no form for": torch.eye(2).to_sparse(),
    "has no shape and no value yet": torch.nn.LazyLinear(2),
    "stand at most 100 inside each other": holds_itself(),
    r"strings or whole numbers as keys, but 'x' has \(1, 2\)": {(1, 2): torch.ones(2)},
    "strings or whole numbers as keys, but 'x' has True": {True: 1},
}


@pytest.mark.parametrize("said", UNFIT)
def test_what_a_folder_of_torch_s_cannot_hold(tmp_path: Path, said: str) -> None:
    with pytest.raises((CheckpointError, TypeError), match=said):
        save_dcp({"x": UNFIT[said]}, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["/dev/null", "/dev/null/x", "x" * 300, "a\0b"])
def test_what_is_no_folder(path: str) -> None:
    for act in (save_dcp, save, weft.checkpoint.save_pretrained):
        with pytest.raises(CheckpointError, match=r"cannot save to|is a file"):
            act(torch.nn.Linear(2, 2), path)


@pytest.mark.parametrize("kept", [{"a.b": torch.ones(2), "a": {"b": 1}}, {"a.b": 1, "a": {"b": {}}}, {1: 1, "1": 2}])
def test_names_that_torch_would_take_for_one(tmp_path: Path, kept: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=r"two names are the same \(.*\): rename one of them"):
        save_dcp(kept, tmp_path)


def test_a_new_folder_replaces_the_old(tmp_path: Path) -> None:
    for value in range(3):
        save_dcp({"x": torch.full((3,), value)}, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert load(tmp_path)["x"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("stays", [False, True])
def test_whatever_call_fails_leaves_the_old_folder_or_the_new(
    tmp_path: Path, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [(Path, "replace"), (Path, "unlink"), (os, "fsync"), (os, "open"), (Path, "mkdir")]
    for moment in range(40):
        folder = tmp_path / str(moment)
        save_dcp({"x": torch.full((3,), 1)}, folder)
        left = [moment]

        def failing(call: Callable[..., object], left: list[int] = left) -> Callable[..., object]:
            def act(*args: object, **options: object) -> object:
                left[0] -= 1
                if left[0] == -1 or (stays and left[0] < 0):
                    raise OSError(30, "Read-only file system")
                return call(*args, **options)

            return act

        with monkeypatch.context() as patch:
            for where, name in calls:
                patch.setattr(where, name, failing(getattr(where, name)))
            done = True
            try:
                save_dcp({"x": torch.full((3,), 2)}, folder)
            except CheckpointError:
                done = False
        assert load(folder)["x"].tolist() in ([[2] * 3] if done else [[1] * 3, [2] * 3])
        save_dcp({"x": torch.full((3,), 3)}, folder)
        assert load(folder)["x"].tolist() == [3] * 3
        assert len(list(folder.iterdir())) == 2
        if left[0] >= 0:
            return
    raise AssertionError("a save has more calls than were tried")


@pytest.mark.parametrize("keep", [0, 10, 400])
def test_a_truncated_file_of_torch_s(tmp_path: Path, keep: int) -> None:
    dcp.save(state(), checkpoint_id=tmp_path)
    (file,) = tmp_path.glob("*.distcp")
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="is damaged"):
        load(tmp_path)


def test_a_missing_file_of_torch_s(tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path)
    next(tmp_path.glob("*.distcp")).unlink()
    with pytest.raises(CheckpointError, match=r"is incomplete, its file '__0_0\.distcp' is missing"):
        load(tmp_path)


def test_a_state_that_is_no_dict(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="torch's checkpoints hold a dict, but the state is a list"):
        save_dcp([1, 2], tmp_path)


UNWRITABLE = {"a full disk": {"x": torch.ones(1 << 16)}, "a value": {"x": torch.ones(2), "f": lambda: 0}}


@pytest.mark.parametrize("case", UNWRITABLE)
@pytest.mark.usefixtures("small_files")
def test_a_folder_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, case: str) -> None:
    save_dcp({"x": torch.zeros(2)}, tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(
        CheckpointError, match=r"cannot save to .*: process 0 could not write: (.*File too large|.*pickle)"
    ):
        save_dcp(UNWRITABLE[case], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert torch.equal(load(tmp_path)["x"], torch.zeros(2))


@pytest.mark.parametrize("spec", [*SPECS, P("tp", None, "dp")])
def test_columns_and_channels_first_are_read_where_they_lie(spec: P, tmp_path: Path) -> None:
    x, image = torch.randn(6, 7).mT, torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last)
    turned = torch.randn(2, 3, 4).permute(2, 0, 1)
    dcp.save({"x": x, "image": image, "turned": turned}, checkpoint_id=tmp_path)
    assert same(load(tmp_path), {"x": x, "image": image, "turned": turned})
    into = torch.empty_like(image)
    assert load(tmp_path, {"image": into}, strict=False)["image"].stride() == torch.empty(4, 3, 5, 2).stride()
    found = load(tmp_path, {name: NamedMapping(MESH, spec) for name in ("image", "turned")}, strict=False)
    assert same(found, {"image": image, "turned": turned})
    if len(spec) < 3:
        assert same(load(tmp_path, {"x": NamedMapping(MESH, spec)}, strict=False)["x"], x)
    save(load(tmp_path), tmp_path / "weft")
    assert list(differences(tmp_path, tmp_path / "weft")) == []


def test_numbers_of_a_machine_with_the_other_order_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setattr("sys.byteorder", "big" if sys.byteorder == "little" else "little")
        dcp.save({"x": torch.ones(2)}, checkpoint_id=tmp_path)
    with pytest.raises(CheckpointError, match="the bytes of its elements in the other order"):
        load(tmp_path)


@pytest.mark.parametrize("value", [datetime(2026, 1, 2, tzinfo=UTC), numpy.float32(3), numpy.ones(2)])
def test_a_value_that_only_code_could_make_is_named_and_the_rest_loads(tmp_path: Path, value: object) -> None:
    dcp.save({"model": {"x": torch.ones(2)}, "best": value}, checkpoint_id=tmp_path / "torch")
    with pytest.raises(CheckpointError, match=r"'best' is a pickle that calls [\w.]+, and none .* strict=False"):
        load(tmp_path / "torch")
    assert torch.equal(load(tmp_path / "torch", {"model": {"x": None}}, strict=False)["model"]["x"], torch.ones(2))
    ran = CliRunner().invoke(checkpoint, ["ls", str(tmp_path / "torch")])
    assert "none of its code is run" in ran.output
    arguments = ["convert", str(tmp_path / "torch"), str(tmp_path / "weft"), "--only", "model"]
    assert CliRunner().invoke(checkpoint, arguments).exit_code == 0
    assert torch.equal(load(tmp_path / "weft")["x"], torch.ones(2))


@pytest.mark.parametrize("steps", [0, 1])
def test_an_optimizer_that_keeps_nothing(tmp_path: Path, steps: int) -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(steps):
        layer(torch.ones(2)).sum().backward()
        optimizer.step()
    save_dcp({"optimizer": optimizer}, tmp_path / "weft")
    dcp.save({"optimizer": optimizer.state_dict()}, checkpoint_id=tmp_path / "torch")
    for name in ("weft", "torch"):
        again = torch.optim.SGD(layer.parameters(), lr=0.1)
        load(tmp_path / name, {"optimizer": again})
        assert again.param_groups[0]["lr"] == 0.5
