"""Ways to damage a checkpoint, by accident and on purpose, and small checkpoints to damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

import weft
from weft import P
from weft.checkpoint.files.checksums import checksum


def saved(folder: Path, value: int = 0) -> dict[str, object]:
    """A small checkpoint of several dtypes and layouts; the state that it holds."""
    mesh = weft.make_mesh({"dp": 2, "tp": 3})
    torch.manual_seed(value)
    state = {
        "x": weft.shard(torch.randn(6, 4), mesh, P("tp", "dp")),
        "y": {"half": torch.randn(5).bfloat16(), "count": torch.arange(7) + value},
        "step": value,
        "names": ["a", ("b", None, 1.5)],
    }
    weft.checkpoint.save(state, folder)
    return state


def data_file(folder: Path) -> Path:
    (found,) = folder.glob("tensors-*")
    return found


def flipped(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def bits(folder: Path) -> list[tuple[Path, int]]:
    """Every bit of a checkpoint."""
    return [(file, bit) for file in sorted(folder.iterdir()) for bit in range(8 * file.stat().st_size)]


def forged(folder: Path, change: Callable[[dict], object]) -> None:
    """Changes what the index says, as somebody does who also gives it the right checksum."""
    path = folder / "index.json"
    content = json.loads(path.read_text())
    format_, _ = content.pop("format"), content.pop("checksum")
    content = change(content) or content
    text = content if isinstance(content, str) else json.dumps(content).removeprefix("{")
    path.write_text(f'{{"format": "{format_}", "checksum": "{checksum(text.encode())}",\n{text}')
