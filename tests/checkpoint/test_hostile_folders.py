"""Folders that were made to do harm: what would wait for ever, or take much time or memory, is refused at once."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.checkpoint.damage import data_file, forged
from weft.checkpoint import CheckpointError, load, save, verify

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning"),
    pytest.mark.timeout(20),
]


@pytest.fixture(params=["separate"], autouse=True)
def memory(request: pytest.FixtureRequest) -> str:
    """The tensors here are plain."""
    return request.param


def twice(value: object, times: int = 60) -> tuple[object, ...]:
    """A tuple that is short to write down and endless to go through."""
    for _ in range(times):
        value = (value, value)
    return value


def torch_s(folder: Path) -> Path:
    dcp.save({"x": torch.arange(10.0), "s": "text"}, checkpoint_id=folder)
    return folder / ".metadata"


LISTS = {
    "a number for what it does not have": b"\x80\x02K\x01r" + struct.pack("<I", 1 << 29) + b".",
    "room for 8 GiB": b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b".",
    "a word longer than the list": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "a key of tuples of tuples": b"\x80\x02}K\x01" + b"2\x86" * 60 + b"K\x01s.",
    "a set of tuples of tuples": b"\x80\x04\x8fK\x01" + b"2\x86" * 60 + b"\x85\x90.",
    "nothing": b"",
}


@pytest.mark.parametrize("case", LISTS)
def test_a_list_of_torch_s_that_is_a_trap(tmp_path: Path, case: str) -> None:
    torch_s(tmp_path).write_bytes(LISTS[case])
    with pytest.raises(CheckpointError, match=r"metadata"):
        load(tmp_path)


def elsewhere(folder: Path, name: str, content: bytes | None, length: int | None = None) -> None:
    """Lets the list of a folder say that its text lies in a file of this name."""
    listing = torch_s(folder)
    metadata = pickle.loads(listing.read_bytes())
    if content is not None:
        (folder / name).write_bytes(content)
    for index, place in metadata.storage_data.items():
        if index.fqn == "s":
            place.relative_path, place.offset = name, 0
            place.length = len(content or b"") if length is None else length
    listing.write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device"])
def test_what_is_no_file_in_a_folder_of_torch_s(tmp_path: Path, kind: str) -> None:
    make = {"a pipe": os.mkfifo, "a folder": Path.mkdir, "a device": lambda path: path.symlink_to("/dev/zero")}
    make[kind](tmp_path / "odd")
    elsewhere(tmp_path, "odd", None)
    with pytest.raises(CheckpointError, match=r"'.*odd' is no plain file"):
        load(tmp_path)


def zipped(value: object, compression: int = zipfile.ZIP_STORED, pickled: bytes | None = None) -> bytes:
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save(value, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", compression) as target:
        for name in source.namelist():
            other = pickled if name.endswith("data.pkl") else None
            target.writestr(name, other or source.read(name))
    return packed.getvalue()


def shared_lists() -> list[object]:
    value: list[object] = [1]
    for _ in range(60):
        value = [value, value]
    return value


VALUES: dict[str, tuple[Callable[[], bytes], str]] = {
    "lists of lists": (lambda: zipped(shared_lists()), "'s' is a value of too many parts"),
    "compressed": (lambda: zipped([0] * 100_000, zipfile.ZIP_DEFLATED), "holds what is compressed"),
    "an object": (lambda: zipped(pytest.approx), "none of its code is run"),
    "half a pickle": (lambda: zipped(1, pickled=b"\x80\x02]a."), "IndexError"),
    "no zip": (lambda: b"text", "BadZipFile"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_value_in_a_folder_of_torch_s_that_is_a_trap(tmp_path: Path, case: str) -> None:
    content, message = VALUES[case]
    elsewhere(tmp_path, "odd", content())
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def changed(folder: Path, change: Callable[[object], None]) -> None:
    listing = torch_s(folder)
    metadata = pickle.loads(listing.read_bytes())
    change(metadata)
    listing.write_bytes(pickle.dumps(metadata))


SAYINGS: dict[str, tuple[Callable[[object], None], str]] = {
    "a shape of tuples": (lambda m: setattr(m.state_dict_metadata["x"], "size", twice(1)), "are no sizes"),
    "a path of tuples": (lambda m: m.planner_data.update(x=(twice(1),)), "'x' has no path of keys"),
    "a long path": (lambda m: m.planner_data.update(x=("a",) * 500), "lies inside of more than 100"),
    "a file of tuples": (
        lambda m: [setattr(place, "relative_path", twice(1)) for place in m.storage_data.values()] and None,
        "a tuple is no name of a file",
    ),
}


@pytest.mark.parametrize("case", SAYINGS)
def test_a_list_of_torch_s_that_says_what_cannot_be(tmp_path: Path, case: str) -> None:
    change, message = SAYINGS[case]
    changed(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_many_names_for_one_tensor_take_no_more_memory(tmp_path: Path) -> None:
    x = torch.arange(1 << 20)
    save({"x": x}, tmp_path)

    def named(content: dict) -> None:
        for i in range(4000):  # 34 GB, if each were a tensor of its own
            content["tensors"][f"x{i}"] = content["tensors"]["x"]
            content["structure"]["dict"].append([f"x{i}", {"tensor": f"x{i}"}])

    forged(tmp_path, named)
    found = load(tmp_path)
    assert len(found) == 4001
    assert all(each is found["x"] for each in found.values())
    assert torch.equal(found["x"], x)


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device", "a socket's name", "nothing"])
def test_what_is_no_file_in_a_folder(tmp_path: Path, kind: str) -> None:
    save({"x": torch.ones(3)}, tmp_path)
    file = data_file(tmp_path)
    file.unlink()
    make = {
        "a pipe": os.mkfifo,
        "a folder": Path.mkdir,
        "a device": lambda path: path.symlink_to("/dev/zero"),
        "a socket's name": lambda path: os.mknod(path, 0o140644),
        "nothing": lambda path: path.symlink_to(path.name),
    }
    make[kind](file)
    for look in (load, verify):
        with pytest.raises(CheckpointError, match=r"is no plain file|cannot be opened"):
            look(tmp_path)


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    """The caches of other libraries are folders of links; what a link leads to is compared like everything else."""
    save({"x": torch.ones(3)}, tmp_path / "a")
    save({"x": torch.zeros(3)}, tmp_path / "b")
    file, other = data_file(tmp_path / "a"), data_file(tmp_path / "b")
    file.rename(tmp_path / "kept")
    file.symlink_to(tmp_path / "kept")
    assert load(tmp_path / "a")["x"].tolist() == [1, 1, 1]
    file.unlink()
    file.symlink_to(other)
    with pytest.raises(CheckpointError, match="is damaged"):
        load(tmp_path / "a")
