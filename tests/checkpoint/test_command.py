"""`weft checkpoint verify|ls|convert|diff`: what they print, and their status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from safetensors.torch import load_file

import weft
from tests.checkpoint.damage import data_file, flipped
from weft import P
from weft.checkpoint import comparing, load, save
from weft.checkpoint import memory as memory_
from weft.checkpoint.reading import Reader
from weft.cli import main

MESH = weft.make_mesh({"dp": 2, "tp": 3})
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning"),
]


def ran(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = {"weight": weft.shard(torch.arange(24.0).view(6, 4), MESH, P("tp", "dp")), "bias": torch.zeros(6)}
    save({"model": model, "step": 3}, tmp_path / "a")
    return tmp_path


def test_verify(folder: Path) -> None:
    status, said = ran("verify", folder / "a")
    assert (status, said) == (0, f"{folder / 'a'}: 2 tensors, 120 B in 1 files: checksums agree\n")
    assert ran("verify", folder / "a", "--quiet") == (0, "")
    file = data_file(folder / "a")
    flipped(file, 8 * file.stat().st_size - 1)
    status, said = ran("verify", folder / "a")
    assert status == 1
    assert "is damaged in the file" in said
    assert ran("verify", folder / "nowhere")[0] == 1


def test_ls(folder: Path, memory: str) -> None:
    status, said = ran("ls", folder / "a")
    shards = "1 shard" if memory == "unified" else "6 shards"
    assert status == 0
    assert said.splitlines() == [
        f"model.weight  float32 [6, 4]                     96 B  {shards}",
        "model.bias    float32 [6]                        24 B  1 shard",
        "step          3",
    ]
    listed = json.loads(ran("ls", folder / "a", "--json")[1])
    assert listed["tensors"]["model.bias"]["shape"] == [6]
    assert listed["values"] == {"step": 3}


def test_names_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    for folder, value in (("a", 0), ("b", 1)):
        save({"x\x1b[2J\n": torch.full((2,), value), "y\r": value}, tmp_path / folder)
    status, said = ran("ls", tmp_path / "a")
    assert status == 0
    assert said.isascii()
    assert [line.split("  ")[0] for line in said.splitlines()] == [repr("x\x1b[2J\n"), repr("y\r")]
    assert ran("diff", tmp_path / "a", tmp_path / "b") == (
        1,
        "'y\\r': 0 and 1\n'x\\x1b[2J\\n': 2 of 2 elements differ, by 1 at most\n",
    )


def test_diff(folder: Path) -> None:
    state = load(folder / "a")
    save(state, folder / "b")
    assert ran("diff", folder / "a", folder / "b") == (0, "")
    state["model"]["weight"][2, 1:] += 0.5
    state["model"]["bias"] = torch.zeros(7)
    state["step"] = 4
    state["more"] = torch.ones(1)
    save(state, folder / "b")
    status, said = ran("diff", folder / "a", folder / "b")
    assert status == 1
    assert said.splitlines() == [
        "step: 3 and 4",
        "model.bias: float32 [6] and float32 [7]",
        f"more: only in '{folder / 'b'}'",
        "model.weight: 3 of 24 elements differ, by 0.5 at most",
    ]
    status, said = ran("diff", folder / "a", folder / "nowhere")
    assert status == 2
    assert "nowhere" in said


@pytest.mark.parametrize("bucket", [8, 40, 1 << 20])
def test_diff_takes_a_bucket_at_a_time(folder: Path, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"a": torch.zeros(3, 5, 2), "b": torch.arange(7), "c": torch.tensor(1.5), "d": torch.zeros(0, 4)}
    other = {name: x.clone() for name, x in one.items()}
    other["a"][0, 1, 1], other["a"][2, 4, 0] = 0.25, float("inf")
    other["b"][6] = 9
    save(one, folder / "one")
    other["a"] = weft.shard(other["a"], weft.make_mesh({"tp": 3}), P(None, "tp"))
    save(other, folder / "other")
    read: list[int] = []
    want = Reader.want
    monkeypatch.setattr(
        Reader, "want", lambda self, name, x, box: (read.append(x.numel() * x.itemsize), want(self, name, x, box))
    )
    monkeypatch.setattr(comparing, "BUCKET", bucket)
    assert list(comparing.differences(folder / "one", folder / "other")) == [
        "a: 2 of 30 elements differ, by inf at most",
        "b: 1 of 7 elements differ, by 3 at most",
    ]
    assert max(read) <= bucket
    assert sum(read) == 2 * sum(x.numel() * x.itemsize for x in one.values())


NEIGHBOURS = {
    "large whole numbers": (
        torch.tensor([2**62, 5]),
        torch.tensor([2**62 + 1, 5]),
        "1 of 2 elements differ, by 1 at most",
    ),
    "the ends": (torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]), "1 of 1 elements differ, by 1.84467e+19 at most"),
    "not a number": (torch.tensor([float("nan"), 1]), torch.tensor([2.0, 1]), "1 of 2 elements differ, by nan at most"),
    "infinities": (
        torch.tensor([float("inf")]),
        torch.tensor([float("-inf")]),
        "1 of 1 elements differ, by inf at most",
    ),
    "two zeros": (torch.tensor([0.0]), torch.tensor([-0.0]), "equal numbers in other bits"),
}


@pytest.mark.parametrize("case", NEIGHBOURS)
def test_diff_of_numbers_that_are_hard_to_tell_apart(folder: Path, case: str) -> None:
    one, other, said = NEIGHBOURS[case]
    save({"x": one}, folder / "one")
    save({"x": other}, folder / "other")
    assert list(comparing.differences(folder / "one", folder / "other")) == [f"x: {said}"]


def test_convert(folder: Path) -> None:
    weight = torch.arange(24.0).view(6, 4)
    assert ran("convert", folder / "a", folder / "dcp", "--to", "dcp")[0] == 0
    there = {"model": {"weight": torch.zeros(6, 4), "bias": torch.ones(6)}, "step": 0}
    dcp.load(there, checkpoint_id=folder / "dcp")
    assert torch.equal(there["model"]["weight"], weight)
    assert there["step"] == 3
    assert ran("convert", folder / "dcp", folder / "again")[0] == 0
    assert ran("diff", folder / "a", folder / "again") == (0, "")
    assert ran("convert", folder / "again", folder / "m.safetensors", "--only", "model")[0] == 0
    assert torch.equal(load_file(folder / "m.safetensors")["weight"], weight)
    assert ran("convert", folder / "dcp", folder / "hf", "--to", "pretrained", "--only", "model")[0] == 0
    assert torch.equal(load_file(folder / "hf" / "model.safetensors")["weight"], weight)


FORMS = [("weft", "w"), ("dcp", "d"), ("safetensors", "m.safetensors"), ("pretrained", "p")]


@pytest.mark.parametrize(("form", "target"), FORMS, ids=str)
def test_convert_takes_a_bucket_at_a_time(tmp_path: Path, form: str, target: str, monkeypatch) -> None:
    monkeypatch.setattr(memory_, "BUCKET", 256)
    x = torch.arange(3 * 5 * 7.0).view(3, 5, 7)
    tied = torch.arange(40.0).bfloat16()
    empty, number = torch.empty(0, 3), torch.tensor(3)
    state = {"x": weft.shard(x, MESH, P("tp", None, "dp")), "a": tied, "b": tied, "empty": empty, "number": number}
    save(state, tmp_path / "source")
    read, box = [], Reader.read_box
    monkeypatch.setattr(
        Reader, "read_box", lambda self, name, b: (read.append((name, box(self, name, b))), read[-1][1])[1]
    )
    assert ran("convert", tmp_path / "source", tmp_path / target, "--to", form)[0] == 0
    found = load(tmp_path / target)
    names = ["x", "a", "number", "empty"] if form == "pretrained" else ["x", "a", "b", "number", "empty"]
    assert sorted(found) == sorted(names)
    assert all(torch.equal(found[name], load(tmp_path / "source")[name]) for name in names)
    assert {name for name, _ in read} >= {"x", "a", "number"}
    assert not any(name == "b" for name, _ in read)  # it is the same as a
    if form != "dcp":  # of which torch.save writes each tensor whole
        assert max(part.nbytes for _, part in read) <= 256


def test_convert_refuses_what_is_damaged_and_leaves_what_is_there(folder: Path) -> None:
    assert ran("convert", folder / "a", folder / "b")[0] == 0
    file = data_file(folder / "a")
    flipped(file, 8 * file.stat().st_size - 1)
    status, said = ran("convert", folder / "a", folder / "b")
    assert status == 1
    assert "is damaged in the file" in said
    assert ran("verify", folder / "b", "--quiet") == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["m.safetensors"], "name the part to write, such as --only model"),
        (["x", "--to", "pretrained"], "name the part to write, such as --only model"),
        (["x", "--to", "safetensors"], "let it end in .safetensors"),
        (["x", "--only", "nothing"], "has no 'nothing': weft checkpoint ls shows what it has"),
    ],
)
def test_what_cannot_be_converted(folder: Path, arguments: list[str], said: str) -> None:
    status, output = ran("convert", folder / "a", folder / arguments[0], *arguments[1:])
    assert status == 1
    assert said in output
    assert [path.name for path in folder.iterdir()] == ["a"]
