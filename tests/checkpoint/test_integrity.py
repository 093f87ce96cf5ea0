"""What is damaged is found and named, whatever it is; what is forged is refused before memory is taken."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import struct
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import weft
from tests.checkpoint.damage import bits, data_file, flipped, forged, saved
from weft import P
from weft.checkpoint import CheckpointError, load, verify
from weft.checkpoint.files.checksums import checksum
from weft.runtime import machine

MESH = weft.make_mesh({"dp": 2, "tp": 3})


def test_a_sound_checkpoint_is_found_sound(tmp_path: Path, memory: str) -> None:
    saved(tmp_path)
    found = verify(tmp_path)
    assert (found.tensors, found.files, found.checksums) == (3, 1, True)
    assert found.nbytes == 6 * 4 * 4 + 5 * 2 + 7 * 8


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    saved(tmp_path)
    places = bits(tmp_path)
    for file, bit in random.Random(0).sample(places, 200):
        flipped(file, bit)
        with pytest.raises(CheckpointError):
            load(tmp_path)
        with pytest.raises(CheckpointError):
            verify(tmp_path)
        flipped(file, bit)
    load(tmp_path)


def test_the_flipped_bit_is_named(tmp_path: Path) -> None:
    x = torch.zeros(3 << 18)
    weft.checkpoint.save({"x": x}, tmp_path)
    file = data_file(tmp_path)
    flipped(file, 8 * (file.stat().st_size - 5))
    message = f"'x' is damaged in the file '{file.name}': bytes 2097152 to 3145728 of it have the checksum"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(tmp_path)
    assert torch.equal(load(tmp_path, verify=False)["x"][: 2 << 18], x[: 2 << 18])


def test_what_is_not_read_is_not_checked_but_verify_reads_all(tmp_path: Path) -> None:
    weft.checkpoint.save({"x": torch.zeros(3), "y": torch.zeros(3)}, tmp_path)
    file = data_file(tmp_path)
    flipped(file, 8 * (file.stat().st_size - 1))
    load(tmp_path, {"x": torch.zeros(3)}, strict=False)
    with pytest.raises(CheckpointError, match="'y' is damaged"):
        load(tmp_path, {"y": torch.zeros(3)}, strict=False)
    with pytest.raises(CheckpointError, match="is damaged: 'y' is damaged in the file"):
        verify(tmp_path)


def test_verify_says_all_that_is_wrong(tmp_path: Path) -> None:
    weft.checkpoint.save({name: torch.zeros(64) for name in "xyz"}, tmp_path)
    file = data_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[-1] = content[-600] = 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        verify(tmp_path)
    assert "'x' is damaged" in str(error.value)
    assert "'y' is damaged" not in str(error.value)
    assert "'z' is damaged" in str(error.value)


@pytest.mark.parametrize("change", [-1000, -8, -1, 1, 8], ids=str)
def test_a_file_of_another_size(tmp_path: Path, change: int) -> None:
    weft.checkpoint.save({"x": torch.ones(600)}, tmp_path)
    size = data_file(tmp_path).stat().st_size
    os.truncate(data_file(tmp_path), size + change)
    with pytest.raises(CheckpointError, match=f"is damaged, it has {size + change} bytes, but {size} were saved"):
        load(tmp_path)


def test_the_file_of_another_save_under_the_right_name(tmp_path: Path) -> None:
    state = {"x": torch.ones(6)}
    weft.checkpoint.save(state, tmp_path / "a")
    weft.checkpoint.save({"x": torch.zeros(6)}, tmp_path / "b")
    data_file(tmp_path / "b").replace(data_file(tmp_path / "a"))
    with pytest.raises(CheckpointError, match="'x' is damaged in the file 'tensors-"):
        load(tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"is incomplete, its file 'tensors-.*' is missing"):
        load(tmp_path / "b")


def test_files_that_have_changed_places(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(weft.checkpoint.saving_plan, "_FILE_BYTES", 100)
    weft.checkpoint.save({"x": torch.ones(30), "y": torch.zeros(30)}, tmp_path)
    one, other = sorted(tmp_path.glob("tensors-*"))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(CheckpointError, match="its head is not the one that was saved"):
        load(tmp_path)


def test_a_stale_index(tmp_path: Path) -> None:
    saved(tmp_path)
    old = (tmp_path / "index.json").read_bytes()
    saved(tmp_path, 1)
    (tmp_path / "index.json").write_bytes(old)
    with pytest.raises(CheckpointError, match="is incomplete, its file"):
        load(tmp_path)


def first(content: dict, name: str = "x") -> dict:
    return content["tensors"][name]["shards"][0]


def told(content: dict, path: str, value: object) -> None:
    """Sets a value deep inside."""
    *before, last = path.split("/")
    at = content
    for key in before:
        at = at[int(key) if isinstance(at, list) else key]
    at[int(last) if isinstance(at, list) else last] = value


def renamed(content: dict, name: str) -> None:
    """Another name for the file of data."""
    (old,) = content["files"]
    content["files"] = {name: content["files"][old]}
    for entry in content["tensors"].values():
        for shard in entry["shards"]:
            shard["file"] = name


def deep(levels: int) -> dict:
    node: dict = {"value": 1}
    for _ in range(levels):
        node = {"list": [node]}
    return node


FORGERIES = {
    "a hole": (lambda c: c["tensors"]["x"]["shards"].pop(), "of 'x', the shards hold 20 of 24 elements"),
    "an overlap": (lambda c: told(c, "tensors/x/shards/0/box", [[0, 3], [0, 2]]), "overlap"),
    "a shard twice": (lambda c: c["tensors"]["x"]["shards"].append(first(c)), "overlap"),
    "a box outside": (lambda c: told(c, "tensors/x/shards/5/box", [[6, 8], [2, 4]]), "leaves a tensor of shape (6, 4)"),
    "a shifted box": (lambda c: told(c, "tensors/x/shards/0/box", [[1, 3], [0, 2]]), "overlap"),
    "an empty box": (lambda c: told(c, "tensors/x/shards/0/box", [[0, 0], [0, 2]]), "is empty or leaves"),
    "a box below 0": (lambda c: told(c, "tensors/x/shards/0/box", [[-2, 0], [0, 2]]), "what it says of a shard of 'x'"),
    "a box of one dim": (lambda c: told(c, "tensors/x/shards/0/box", [[0, 2]]), "has 1 dims, but the tensor has 2"),
    "a box of words": (lambda c: told(c, "tensors/x/shards/0/box", "box"), "what it says of a shard of 'x'"),
    "swapped boxes": (
        lambda c: [
            told(c, "tensors/x/shards/0/box", [[2, 4], [0, 2]]),
            told(c, "tensors/x/shards/2/box", [[0, 2], [0, 2]]),
        ],
        None,
    ),
    "another dtype of the same size": (lambda c: told(c, "tensors/x/dtype", "int32"), "what the file"),
    "a wider dtype": (lambda c: told(c, "tensors/x/dtype", "float64"), None),
    "no dtype": (lambda c: told(c, "tensors/x/dtype", "Tensor"), "unknown dtype 'Tensor'"),
    "a dtype that is a list": (lambda c: told(c, "tensors/x/dtype", []), "unknown dtype"),
    "another shape of the same size": (lambda c: told(c, "tensors/y.count/shape", [7, 1]), "has 1 dims, but the tensor has 2"),
    "a huge shape": (lambda c: told(c, "tensors/y.count/shape", [1 << 40]), "elements"),
    "an empty shape that cannot be": (
        lambda c: c["tensors"].update(z={"shape": [0, 1 << 61, 1 << 61], "dtype": "float32", "shards": []}),
        "what it says of 'z' is no shape",
    ),
    "a huge box too": (
        lambda c: [
            told(c, "tensors/y.count/shape", [1 << 40]),
            told(c, "tensors/y.count/shards/0/box", [[0, 1 << 40]]),
        ],
        "leaves the file",
    ),
    "a shape beyond all numbers": (lambda c: told(c, "tensors/y.count/shape", [1 << 70]), "is no shape, dtype and shards"),
    "a shape below 0": (lambda c: told(c, "tensors/x/shape", [-6, -4]), "is no shape, dtype and shards"),
    "a shape of truth": (lambda c: told(c, "tensors/x/shape", [True, 24]), "is no shape, dtype and shards"),
    "a shape of halves": (lambda c: told(c, "tensors/x/shape", [1.5]), "is no shape, dtype and shards"),
    "a file elsewhere": (lambda c: renamed(c, "../secret"), "'../secret' is no name of a file in the checkpoint's folder"),
    "an absolute path": (lambda c: renamed(c, "/etc/passwd"), "is no name of a file in the checkpoint's folder"),
    "a file of nothing": (lambda c: renamed(c, "nothing"), "is incomplete, its file 'nothing' is missing"),
    "a file that is the folder": (lambda c: renamed(c, ".."), "is no name of a file"),
    "a pipe": (lambda c: renamed(c, "pipe"), "is no plain file"),
    "an unlisted file": (lambda c: c["files"].clear(), "which is no file of the checkpoint"),
    "a size that lies": (lambda c: [f.update(bytes=f["bytes"] + 1) for f in c["files"].values()] and None, "bytes, but"),
    "a head that lies": (lambda c: [f.update(head=9) for f in c["files"].values()] and None, "its head is not the one"),
    "a place in the head": (lambda c: told(c, "tensors/y.count/shards/0/start", 0), "leaves the file"),
    "a place past the end": (lambda c: told(c, "tensors/x/shards/0/start", 1 << 50), "leaves the file"),
    "two in the same bytes": (
        lambda c: told(c, "tensors/y.count/shards/0/start", first(c)["start"]),
        "lie in the same bytes",
    ),
    "another key": (lambda c: told(c, "tensors/y.count/shards/0/key", "z"), "what the file"),
    "no checksums": (lambda c: told(c, "tensors/y.count/shards/0/checksums", ""), "has not one checksum for each of its 1 blocks"),
    "checksums of nothing": (lambda c: told(c, "tensors/y.count/shards/0/checksums", None), "what it says of a shard of 'y.count'"),
    "other checksums": (lambda c: told(c, "tensors/y.count/shards/0/checksums", "0" * 16), "have the checksum"),
    "a tensor that is not there": (lambda c: c["tensors"].pop("x") and None, "the structure names the tensor 'x', which is not there"),
    "a tensor without all": (lambda c: told(c, "tensors/x", {}), "what it says of 'x' is no shape"),
    "tensors that are a list": (lambda c: told(c, "tensors", []), "it has no structure, files and tensors"),
    "no structure": (lambda c: told(c, "structure", None), "the structure has what is no tensor"),
    "a structure of two": (lambda c: told(c, "structure", {"value": 1, "list": []}), "the structure has what is no"),
    "an unknown kind": (lambda c: told(c, "structure", {"set": []}), "the structure has what is no tensor"),
    "a key twice": (lambda c: told(c, "structure", {"dict": [["a", {"value": 1}]] * 2}), "has the key 'a' twice"),
    "a key that is a list": (lambda c: told(c, "structure", {"dict": [[[], {"value": 1}]]}), "no key and value"),
    "a dict that is none": (lambda c: told(c, "structure", {"dict": [1]}), "no key and value"),
    "a value that is a dict": (lambda c: told(c, "structure", {"value": {}}), "has a dict for a value"),
    "a deep structure": (lambda c: told(c, "structure", deep(300)), "is more than 100 levels deep"),
    "a bottomless structure": (lambda c: '"structure": ' + "[" * 100_000, "is damaged (maximum recursion depth"),
    "a name twice": (
        lambda c: json.dumps(c).removeprefix("{").replace('"y.half":', '"x":'),
        "the key 'x' is there twice",
    ),
    "a number without end": (lambda c: '"structure": ' + "1" * 10_000 + "}", "is damaged ("),
    "no JSON": (lambda c: '"structure": ?}', "is damaged ("),
    "no text": (lambda c: '"structure": \x00}', "is damaged ("),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_is_forged_is_refused(tmp_path: Path, forgery: str, memory: str) -> None:
    machine.use_separate_memory(True)  # where a tensor has shards
    saved(tmp_path)
    machine.use_separate_memory(memory == "separate")
    os.mkfifo(tmp_path / "pipe")
    change, message = FORGERIES[forgery]

    def changed(content: dict) -> object:
        result = change(content)
        return result if isinstance(result, str) else None

    forged(tmp_path, changed)
    with pytest.raises(CheckpointError, match=message and re.escape(message)):
        load(tmp_path)
    with pytest.raises(CheckpointError, match=message and re.escape(message)):
        verify(tmp_path)


HEADS = {
    "no JSON": b"{",
    "a list": b"[]",
    "a name twice": b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
    "a hole": b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
    "bytes past the end": b'{"x":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}',
    "an overlap": b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
    "a size that lies": b'{"x":{"dtype":"F64","shape":[2],"data_offsets":[0,2]}}',
    "a size below 0": b'{"x":{"dtype":"U8","shape":[-1,-2],"data_offsets":[0,2]}}',
    "a huge size": b'{"x":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,2]}}',
    "an unknown dtype": b'{"x":{"dtype":"F3","shape":[2],"data_offsets":[0,2]}}',
    "no dtype": b'{"x":{"shape":[2],"data_offsets":[0,2]}}',
    "a list for a dtype": b'{"x":{"dtype":["U8"],"shape":[2],"data_offsets":[0,2]}}',
    "depth": b"[" * 50_000,
}


@pytest.mark.parametrize("case", HEADS)
def test_a_forged_safetensors_file_is_refused(tmp_path: Path, case: str) -> None:
    head = HEADS[case]
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + b"\0\0")
    with pytest.raises(CheckpointError, match="is damaged or no safetensors file"):
        load(tmp_path / "x.safetensors")


HEADS_OF_OURS = {
    "a list for a dtype": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
    "an unknown dtype": {"dtype": "F" * 5000, "shape": [1], "data_offsets": [0, 4]},
    "depth": deep(400),
    "a deep shape": {"dtype": "F32", "shape": [deep(400)], "data_offsets": [0, 4]},
}


@pytest.mark.parametrize("case", HEADS_OF_OURS)
def test_a_forged_head_that_the_index_knows_is_refused(tmp_path: Path, case: str) -> None:
    weft.checkpoint.save({"x": torch.ones(1)}, tmp_path)
    text = json.dumps({"x": HEADS_OF_OURS[case]}).encode()
    head = struct.pack("<Q", len(text)) + text
    data_file(tmp_path).write_bytes(head + bytes(4))
    of_file = {"bytes": len(head) + 4, "head": len(head), "checksum": checksum(head)}

    def changed(content: dict) -> None:
        content["files"] = dict.fromkeys(content["files"], of_file)
        content["tensors"]["x"]["shards"][0]["start"] = len(head)

    forged(tmp_path, changed)
    for look in (load, verify):
        with pytest.raises(CheckpointError, match=r"tensors-.* is damaged") as raised:
            look(tmp_path)
        assert len(str(raised.value)) < 1000


def test_a_safetensors_file_whose_head_is_longer_than_the_file(tmp_path: Path) -> None:
    for length in (3, 1 << 30, (1 << 64) - 1):
        (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(CheckpointError, match="is damaged or no safetensors file"):
            load(tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"123")
    with pytest.raises(CheckpointError, match="is damaged or no safetensors file"):
        load(tmp_path / "x.safetensors")


@pytest.mark.parametrize("listing", ["[]", "{", '{"weight_map": 3}', '{"weight_map": {"x": "../x.safetensors"}}', '{"weight_map": {"x": 7}}', '{"weight_map": {"x": {}}}', '{"weight_map": {"y": "x.safetensors"}}'])  # fmt: skip
def test_a_forged_list_of_files_is_refused(tmp_path: Path, listing: str) -> None:
    (tmp_path / "model").mkdir()
    for folder in (tmp_path, tmp_path / "model"):
        save_file({"x": torch.ones(2)}, folder / "x.safetensors")
    (tmp_path / "model" / "model.safetensors.index.json").write_text(listing)
    with pytest.raises(CheckpointError, match=r"the index '.*model\.safetensors\.index\.json' "):
        load(tmp_path / "model")


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"x": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=r"'x' is in 'a\.safetensors' and in 'b\.safetensors'"):
        load(tmp_path)


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harm",)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning")
def test_a_pickle_of_torch_s_checkpoints_runs_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    dcp.save({"x": torch.ones(3)}, checkpoint_id=tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(CheckpointError, match=r"it names posix\.system, which is no word of a list of tensors"):
        load(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"not a pickle")
    with pytest.raises(CheckpointError, match="is damaged or not from torch"):
        load(tmp_path)
    assert not (tmp_path / "harm").exists()


def test_a_failed_load_changes_nothing_it_has_not_read(tmp_path: Path) -> None:
    """What does not fit is found before anything is read."""
    weft.checkpoint.save({"a": torch.ones(4), "b": torch.ones(3)}, tmp_path)
    model = torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.zeros(4)), "b": torch.nn.Parameter(torch.zeros(5))})
    with pytest.raises(CheckpointError, match=r"'b' has shape \(3,\) in the checkpoint, but \(5,\) here"):
        load(tmp_path, model)
    assert not model["a"].any()


def test_autograd_knows_what_a_load_has_written(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 3)
    weft.checkpoint.save(layer, tmp_path)
    x = layer(torch.ones(2, 3, requires_grad=True)).square().sum()
    load(tmp_path, layer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        x.backward()


def test_what_is_shared_until_written_to_stays_apart(tmp_path: Path) -> None:
    x = weft.shard(torch.zeros(6, 4), MESH, P("dp"))
    weft.checkpoint.save({"x": torch.ones(6, 4)}, tmp_path)
    parameter = torch.nn.Parameter(x.redistribute(weft.NamedMapping(MESH, P("dp"))))
    load(tmp_path, torch.nn.ParameterDict({"x": parameter}))
    assert parameter.sum().item() == 24
    assert x.sum().item() == 0
