"""States that nobody plans to save: odd names, lazily conjugated numbers, tensors without memory, thousands of files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import weft
from weft import NamedMapping, P
from weft.checkpoint import CheckpointError, load, reading, save, save_dcp, save_pretrained, saving_plan, verify

MESH = weft.make_mesh({"dp": 2, "tp": 3})


@pytest.mark.parametrize("bucket", [16 << 20, 64])
@pytest.mark.parametrize("wait", [True, False])
def test_numbers_that_are_conjugated_or_negated_later(
    tmp_path: Path, wait: bool, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.checkpoint.memory.BUCKET", bucket)
    z = torch.randn(6, 4, dtype=torch.complex64)
    state = {"conj": z.conj(), "neg": torch._neg_view(z.real.contiguous()), "both": z.mT.conj().imag}
    handle = save(state, tmp_path / "weft", wait=wait)
    if handle is not None:
        handle.wait()
    save_dcp(state, tmp_path / "dcp")
    save(state, tmp_path / "whole.safetensors")
    for path in tmp_path.iterdir():
        found = load(path)
        assert torch.equal(found["conj"], z.conj().resolve_conj()), path
        assert torch.equal(found["neg"], -z.real), path
        assert torch.equal(found["both"], -z.mT.imag), path


@pytest.mark.parametrize("wait", [True, False])
def test_tensors_that_begin_inside_their_memory(tmp_path: Path, wait: bool) -> None:
    x = torch.arange(24.0).reshape(8, 3)
    ours = weft.shard(x, MESH, P("dp"))
    state = {"rows": x[3:], "number": x.flatten()[5], "parts": x.split([2, 6])[1], "ours": ours[4:]}
    expected = {name: (ours[4:].full_tensor() if name == "ours" else part).clone() for name, part in state.items()}
    handle = save(state, tmp_path / "weft", wait=wait)
    if handle is not None:
        handle.wait()
    save_dcp(state, tmp_path / "dcp")
    save(state, tmp_path / "whole.safetensors")
    for path in tmp_path.iterdir():
        for name, value in load(path).items():
            assert torch.equal(value, expected[name]), (path, name)


def test_a_name_that_looks_like_a_shard_of_another(tmp_path: Path) -> None:
    x = torch.arange(6.0)
    state = {"x": weft.shard(x, MESH, P("tp")), "x[0:2]": torch.tensor([9.0, 9.0]), "x[0:2]'": torch.tensor([8.0])}
    save(state, tmp_path)
    found = load(tmp_path)
    assert torch.equal(found["x"], x)
    assert [found["x[0:2]"].tolist(), found["x[0:2]'"].tolist()] == [[9, 9], [8]]
    assert verify(tmp_path).tensors == 3


@pytest.mark.parametrize("name", ["", "__metadata__", "a/b", "../x", "a\nb", "\0", "ünï", "'\"", "a" * 3000])
def test_any_name_comes_back(tmp_path: Path, name: str) -> None:
    x = torch.arange(6.0)
    for number, state in enumerate(({name: x}, {name: weft.shard(x, MESH, P("tp"))})):
        save(state, tmp_path / str(number))
        assert torch.equal(load(tmp_path / str(number))[name], x)
        verify(tmp_path / str(number))
    if name != "__metadata__":
        save({name: x}, tmp_path / "x.safetensors")
        assert torch.equal(load(tmp_path / "x.safetensors")[name], x)


REFUSED = {
    "half of a character": (lambda: {"\ud800": torch.ones(2)}, "is no text that files can hold"),
    "nested": (lambda: {"x": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, "'x' is nested, which"),
    "fake": (
        lambda: {"x": FakeTensorMode().from_tensor(torch.ones(3))},
        "'x' has no memory, as a fake tensor has none",
    ),
    "a wrapper": (lambda: {"x": TwoTensor(torch.ones(3), torch.ones(3))}, r"'x' has no memory.*it is a TwoTensor"),
    "no storage": (lambda: {"x": freed(torch.ones(3))}, "'x' has no memory"),
}


def freed(x: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("what", REFUSED)
def test_what_no_file_can_hold_is_refused_before_anything_changes(tmp_path: Path, what: str) -> None:
    state, message = REFUSED[what]
    for path in (tmp_path / "weft", tmp_path / "x.safetensors"):
        save({"x": torch.zeros(3)}, path)
        with pytest.raises(CheckpointError, match=message):
            save(state(), path)
        assert load(path)["x"].tolist() == [0, 0, 0]


DTYPES = sorted({dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}, key=str)
FORMLESS = r"qu?int|u?int[1-7]$"


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_tensors_of_every_dtype_come_back_or_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    mesh = weft.make_mesh({"a": 2})
    for dtype in DTYPES:
        x = (torch.arange(64, dtype=torch.uint8) % 2).view(dtype).view(2, -1)
        name = str(dtype).removeprefix("torch.")
        for write in (save, save_dcp, lambda state, path: save(state, path, wait=False).wait()):
            path = tmp_path / f"{name} {write.__name__}"
            if re.match(FORMLESS, name):
                with pytest.raises(
                    CheckpointError, match=rf"'x' is torch.{name}, which .* have no form for: convert it"
                ):
                    write({"x": x}, path)
                assert not path.exists()
                continue
            write({"x": weft.shard(x, mesh, P("a"))}, path)
            found = load(path, {"x": NamedMapping(mesh, P(None, "a"))})["x"].full_tensor()
            assert (found.dtype, found.shape) == (dtype, x.shape)
            assert torch.equal(found.contiguous().view(torch.uint8), x.view(torch.uint8)), dtype
            verify(path)


def test_plain_files_say_only_the_dtypes_that_others_know(tmp_path: Path) -> None:
    x = torch.randn(4, dtype=torch.complex128)
    with pytest.raises(CheckpointError, match=r"save to a directory with .*, convert it"):
        save({"x": x}, tmp_path / "x.safetensors")
    save({"x": x}, tmp_path / "weft")
    (file,) = (tmp_path / "weft").glob("*.safetensors")
    assert torch.equal(torch.view_as_complex(load_file(file)["x"]), x)


HOLDING_NOTHING = {
    "fake": lambda x: FakeTensorMode().from_tensor(x),
    "a wrapper": lambda x: TwoTensor(x, x),
    "no storage": freed,
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("kind", HOLDING_NOTHING)
def test_what_cannot_be_loaded_into_is_refused_before_anything_changes(tmp_path: Path, kind: str) -> None:
    module = torch.nn.Linear(2, 3)
    save(module, tmp_path)
    module.bias.data.zero_()
    module.weight = torch.nn.Parameter(HOLDING_NOTHING[kind](torch.zeros(3, 2)))
    with pytest.raises(
        CheckpointError, match=r"'weight' is a .*(no memory|sparse_co|sparse_cs).* cannot be loaded into"
    ):
        load(tmp_path, module)
    assert not module.bias.any()
    with pytest.raises(CheckpointError, match="'weight' has no shape yet"):
        load(tmp_path, {"weight": torch.nn.UninitializedParameter(), "bias": None})


def test_a_plain_file_has_no_room_for_a_tensor_of_the_name_of_its_metadata(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot hold a tensor named '__metadata__': rename it"):
        save({"__metadata__": torch.ones(1)}, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_list_of_files_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    save_pretrained(torch.nn.Linear(2, 2), tmp_path)
    os.mkfifo(tmp_path / "model.safetensors.index.json")
    with pytest.raises(CheckpointError, match="it is no plain file"):
        load(tmp_path)


@pytest.mark.parametrize("held", [0, 1, 4])
def test_more_files_than_are_held_open(tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving_plan, "_FILE_BYTES", 1)
    state = {str(i): torch.full((3,), float(i)) for i in range(9)}
    save(state, tmp_path)
    monkeypatch.setattr(reading, "_OPEN", held)
    opened: set[int] = set()
    fill = reading.fill
    monkeypatch.setattr(reading, "fill", lambda part, source: (opened.add(source.file), fill(part, source))[1])
    found = load(tmp_path)
    assert all(torch.equal(found[name], x) for name, x in state.items())
    assert len(opened) <= held + reading._WORKERS + 1  # numbers of files, which are given again when a file is closed


def test_an_empty_tensor_of_a_shape_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.ones(0, 1, 1)}, path)
    content = path.read_bytes().replace(b"[0,1,1]", b"[0,%d,%d]" % (1 << 61, 1 << 61))
    head = content[8:].rstrip()
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(CheckpointError, match=r"which no tensor can have|damaged or no safetensors file"):
        load(path)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    numbers = {"whole": np.int64(3), "half": np.float32(0.5), "yes": np.bool_(True), "double": np.float64(0.1)}
    save(numbers, tmp_path)
    back = load(tmp_path)
    assert back == numbers
    assert {type(each) for each in back.values()} == {int, float, bool}
    with pytest.raises(TypeError, match="'many' is a ndarray"):
        save({"many": np.ones(3)}, tmp_path)


class Pair(NamedTuple):
    left: object
    right: object


class Colour(IntEnum):
    RED = 3


def test_kinds_of_tuples_and_numbers_are_what_like_says(tmp_path: Path) -> None:
    save({"pair": Pair(torch.ones(2), 1), "size": torch.Size([2, 3]), "colour": Colour.RED}, tmp_path)
    back = load(tmp_path)
    assert (back["pair"][1], back["size"], back["colour"]) == (1, (2, 3), 3)
    assert {type(back[name]) for name in ("pair", "size")} == {tuple}
    like = {"pair": Pair(torch.zeros(2), None), "size": torch.Size([0, 0]), "colour": None}
    found = load(tmp_path, like)
    assert isinstance(found["pair"], Pair)
    assert isinstance(found["size"], torch.Size)
    assert found["pair"].left.tolist() == [1, 1]


class Counting(torch.nn.Module):
    """Keeps beside its tensors what no tensor can hold."""

    def __init__(self, seen: Counter[int]) -> None:
        super().__init__()
        self.seen = seen

    def get_extra_state(self) -> object:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, Counter[int]]) -> None:
        self.seen = state["seen"]


@pytest.mark.parametrize("write", [save, save_dcp])
def test_what_a_module_keeps_besides_has_the_kinds_that_are_there(
    write: Callable[[object, Path], None], tmp_path: Path
) -> None:
    write({"counting": Counting(Counter({3: 2, -1: 1}))}, tmp_path)
    counting = Counting(Counter({0: 7}))
    load(tmp_path, {"counting": counting})
    counting.seen.update([3])
    assert counting.seen == Counter({3: 3, -1: 1})


def test_a_number_that_is_too_long_for_text_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    save({"n": 1}, tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot save to .*digits.*The old checkpoint stays"):
        save({"n": 10**5000}, tmp_path)
    assert load(tmp_path) == {"n": 1}


@pytest.mark.parametrize("kind", [list, tuple])
def test_what_is_empty_in_like_takes_values_of_any_number(tmp_path: Path, kind: type) -> None:
    state = {"history": [1.5, [2, None]], "best": {"loss": 0.5}, "of": [torch.ones(2)], "more": {"x": torch.ones(2)}}
    save(state, tmp_path)
    rest = {"of": None, "more": None}
    found = load(tmp_path, {**rest, "history": kind(), "best": {}})
    assert (found["history"], found["best"]) == (kind([1.5, [2, None]]), {"loss": 0.5})
    assert load(tmp_path, {"history": kind(), "best": {}}, strict=False) == {"history": kind(), "best": {}}
    for wrong in ({"of": []}, {"more": {}}, {"history": {}}, {"best": []}, {"history": [None]}):
        with pytest.raises(CheckpointError, match=r"which nothing is waiting for.* None in the place of"):
            load(tmp_path, {**state, **wrong})
