"""Bytes of shards: whatever parts a system hands them out in, what is read is what was saved, or damage is found and named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import weft
from weft import P
from weft.checkpoint import CheckpointError, load, save
from weft.checkpoint.files import access
from weft.checkpoint.files.access import read_into
from weft.checkpoint.files.checksums import BLOCK

ROWS, COLUMNS = 1024 * 3 + 512, 256  # three blocks and a half of float32
MESH = weft.make_mesh({"x": 3})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that gives at most 100,000 bytes at a time."""
    read = os.preadv
    monkeypatch.setattr(access.os, "preadv", lambda file, into, at: read(file, [into[0][:100_000]], at))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
def test_what_comes_in_parts_is_put_together(tmp_path: Path, spec: P) -> None:
    x = torch.randn(ROWS, COLUMNS)
    save({"x": x}, tmp_path)
    found = load(tmp_path, {"x": weft.NamedMapping(MESH, spec)})["x"]
    assert torch.equal(found.full_tensor(), x)


@pytest.mark.parametrize("size", [1, 10, 11])
def test_a_file_that_ends_too_early_is_said(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    file = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="ends too early"):
            read_into(file, 11 - size, memoryview(bytearray(size)))
        read_into(file, 10 - min(size, 10), memoryview(bytearray(min(size, 10))))
        read_into(file, 10, memoryview(b""))
    finally:
        os.close(file)


INTO: dict[str, Callable[[], object]] = {
    "whole": lambda: None,
    "rows": lambda: {"x": weft.NamedMapping(MESH, P("x"))},
    "columns": lambda: {"x": weft.NamedMapping(MESH, P(None, "x"))},
    "a parameter": lambda: {"x": torch.zeros(ROWS, COLUMNS)},
}


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("at", ["first", "last"])
def test_a_flip_in_any_block_is_found_and_named(tmp_path: Path, into: str, block: int, at: str) -> None:
    save({"x": torch.randn(ROWS, COLUMNS)}, tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    nbytes = ROWS * COLUMNS * 4
    low, high = block * BLOCK, min((block + 1) * BLOCK, nbytes)
    content[len(content) - nbytes + (low if at == "first" else high - 1)] ^= 4
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"'x' is damaged in the file .*bytes {low} to {high} of it"):
        load(tmp_path, INTO[into]())
    load(tmp_path, INTO[into](), verify=False)


def test_blocks_that_have_changed_places_are_found(tmp_path: Path) -> None:
    save({"x": torch.randn(ROWS, COLUMNS)}, tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    content, nbytes = file.read_bytes(), ROWS * COLUMNS * 4
    begin = len(content) - nbytes
    head, one, other, rest = (
        content[a:z]
        for a, z in ((0, begin), (begin, begin + BLOCK), (begin + BLOCK, begin + 2 * BLOCK), (begin + 2 * BLOCK, None))
    )
    file.write_bytes(head + other + one + rest)
    with pytest.raises(CheckpointError, match=f"bytes 0 to {BLOCK} of it"):
        load(tmp_path)
