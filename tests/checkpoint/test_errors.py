"""A checkpoint that does not fit, or is damaged, says what is wrong and what to do; a failed save changes nothing."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import weft
from weft import P
from weft.checkpoint import CheckpointError, background, saving, saving_plan
from weft.checkpoint.files import writing
from weft.checkpoint.foreign import whole_files

MESH = weft.make_mesh({"tp": 2})


def linear(inputs: int = 4, outputs: int = 4, **options) -> torch.nn.Linear:
    return torch.nn.Linear(inputs, outputs, **options)


MISMATCHES = {
    "a missing name": (
        torch.nn.Sequential(linear()),
        "the state has no '0.weight', '0.bias' in the checkpoint. Close names there: 'weight'.",
    ),
    "a name too many": (
        linear(bias=False),
        "the state has 'bias' in the checkpoint, which nothing is waiting for: add them to `like`, or pass strict=False",
    ),
    "another shape": (linear(4, 3), "'weight' has shape (4, 4) in the checkpoint, but (3, 4) here"),
    "another dtype": (linear().double(), "'weight' is torch.float32 in the checkpoint, but torch.float64 here"),
    "a meta module": (linear(device="meta"), "'weight' is on the meta device and can hold nothing"),
    "a meta tensor": ({"weight": torch.ones(4, 4, device="meta"), "bias": None}, "'weight' is on the meta device and can hold nothing"),
    "another structure": ({"weight": {"w": torch.ones(1)}, "bias": None}, "'weight' is no dict in the checkpoint, but tensor 'weight'"),
    "not a tensor": ({"weight": None, "bias": None, "more": torch.ones(1)}, "the state has no 'more' in the checkpoint"),
    "an unknown pattern": (
        {"wieght": weft.NamedMapping(MESH, P("tp"))},
        "matches no tensor of the checkpoint",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISMATCHES)
def test_what_does_not_fit_is_said(case: str, tmp_path: Path) -> None:
    weft.checkpoint.save(linear(), tmp_path)
    like, message = MISMATCHES[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        weft.checkpoint.load(tmp_path, like)


def test_strict_false_leaves_the_rest_unread(tmp_path: Path) -> None:
    weft.checkpoint.save({"model": linear(), "step": 1}, tmp_path)
    assert weft.checkpoint.load(tmp_path, {"step": 0}, strict=False) == {"step": 1}


def trained(*groups: int) -> torch.optim.Optimizer:
    """An optimizer that has made a step, with so many parameters in each group."""
    parameters = [[torch.nn.Parameter(torch.ones(4, 4)) for _ in range(count)] for count in groups]
    optimizer = torch.optim.Adam([{"params": group} for group in parameters])
    for group in parameters:
        for p in group:
            p.grad = torch.ones(4, 4)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("groups", [(1, 2), (3,), (2,), (2, 1, 1)], ids=str)
def test_an_optimizer_of_other_groups_is_refused_before_anything_changes(tmp_path: Path, groups) -> None:
    weft.checkpoint.save({"model": linear(), "optimizer": trained(2, 1)}, tmp_path)
    model = linear()
    before = model.weight.detach().clone()
    said = re.escape(
        f"'optimizer' has parameter groups of [2, 1] parameters in the checkpoint, but of {list(groups)} here"
    )
    with pytest.raises(CheckpointError, match=said):
        weft.checkpoint.load(tmp_path, {"model": model, "optimizer": trained(*groups)})
    assert torch.equal(model.weight, before)


def test_state_of_a_parameter_that_no_group_has_is_refused(tmp_path: Path) -> None:
    state = trained(2, 1).state_dict()
    state["state"][3] = state["state"][2]
    weft.checkpoint.save(state, tmp_path)
    with pytest.raises(CheckpointError, match="has state for parameter 3 in the checkpoint, but this optimizer has 3"):
        weft.checkpoint.load(tmp_path, trained(2, 1))


def stepped(kind: type[torch.optim.Optimizer], *shape: int) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """A parameter, and an optimizer of a kind that has made a step with it."""
    p = torch.nn.Parameter(torch.ones(shape))
    optimizer = kind([p], lr=0.1)
    p.sum().backward()
    optimizer.step(p.sum)
    return p, optimizer


@pytest.mark.parametrize("shape", [(8, 8), (4,), (1, 1), (4, 4, 1)], ids=str)
@pytest.mark.parametrize("made", [False, True], ids=["new", "stepped"])
def test_moments_of_another_shape_are_refused_before_anything_changes(tmp_path: Path, shape, made) -> None:
    weft.checkpoint.save(stepped(torch.optim.Adam, 4, 4)[1], tmp_path)
    p, optimizer = stepped(torch.optim.Adam, *shape)
    optimizer = optimizer if made else torch.optim.Adam([p], lr=0.1)
    before = optimizer.state_dict()
    said = re.escape(f"'state.0.exp_avg' has shape (4, 4) in the checkpoint, but its parameter has {shape} here")
    with pytest.raises(CheckpointError, match=said):
        weft.checkpoint.load(tmp_path, optimizer)
    assert str(optimizer.state_dict()) == str(before)


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.ASGD, torch.optim.Rprop])
@pytest.mark.parametrize("made", [False, True], ids=["new", "stepped"])
def test_state_that_has_a_shape_of_its_own_is_taken(tmp_path: Path, kind, made) -> None:
    _, saved = stepped(kind, 4, 6)
    weft.checkpoint.save(saved, tmp_path)
    p, optimizer = stepped(kind, 4, 6)
    optimizer = optimizer if made else kind([p], lr=0.1)
    weft.checkpoint.load(tmp_path, optimizer)
    assert str(optimizer.state_dict()) == str(saved.state_dict())


@pytest.mark.parametrize("scheduled", [False, True])
def test_state_of_another_kind_of_optimizer_is_refused_before_anything_changes(tmp_path: Path, scheduled) -> None:
    p, saved = stepped(torch.optim.SGD, 4, 4)
    if scheduled:
        torch.optim.lr_scheduler.StepLR(saved, 1)
    model = linear()
    weft.checkpoint.save({"model": model, "optimizer": saved}, tmp_path)
    other, optimizer = linear(), torch.optim.Adam([p])
    before = other.weight.detach().clone()
    said = "'optimizer' is of another kind than Adam: its groups have 'dampening', 'momentum', 'nesterov' in the checkpoint, but no 'amsgrad'"
    with pytest.raises(CheckpointError, match=said):
        weft.checkpoint.load(tmp_path, {"model": other, "optimizer": optimizer})
    assert torch.equal(other.weight, before)
    weft.checkpoint.load(tmp_path, {"model": other, "optimizer": stepped(torch.optim.SGD, 4, 4)[1]})


def test_groups_of_another_version_are_taken(tmp_path: Path) -> None:
    state = stepped(torch.optim.Adam, 4, 4)[1].state_dict()
    del state["param_groups"][0]["foreach"]
    state["param_groups"][0]["initial_lr"] = 0.5
    weft.checkpoint.save(state, tmp_path)
    _, optimizer = stepped(torch.optim.Adam, 4, 4)
    weft.checkpoint.load(tmp_path, optimizer)
    assert optimizer.param_groups[0]["initial_lr"] == 0.5


def test_a_parameter_whose_elements_are_one_is_refused(tmp_path: Path) -> None:
    weft.checkpoint.save(linear(), tmp_path)
    model = linear()
    model.bias = torch.nn.Parameter(torch.zeros(1).expand(4))
    before = model.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"'bias' is expanded, .* clone\(\) it first"):
        weft.checkpoint.load(tmp_path, model)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere")], ids=["pipe", "dangling link"])
def test_what_is_no_directory_is_not_saved_to(tmp_path: Path, make) -> None:
    make(tmp_path / "x")
    with pytest.raises(CheckpointError, match="is a file or leads nowhere: a checkpoint is a directory"):
        weft.checkpoint.save(linear(), tmp_path / "x")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        weft.checkpoint.load(tmp_path)


@pytest.mark.parametrize("look", [weft.checkpoint.load, weft.checkpoint.verify])
def test_a_path_that_cannot_be_looked_at(look) -> None:
    with pytest.raises(CheckpointError, match=r"cannot look for a checkpoint at .*: .*File name too long"):
        look("x" * 5000)


def test_a_folder_of_others_is_said_by_a_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(CheckpointError, match=r"cannot look for checkpoints in .*: .*Permission denied"):
        weft.checkpoint.Keeper(tmp_path).steps()


@pytest.mark.parametrize("what", ["planned_save", "copied_plan", "_shown"])
def test_a_save_that_does_not_begin_leaves_the_folder_to_others(tmp_path: Path, what: str, monkeypatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(saving, what, stopped)
        with pytest.raises(KeyboardInterrupt):
            weft.checkpoint.save({"n": 1}, tmp_path, wait=what != "copied_plan")
    weft.checkpoint.save({"n": 2}, tmp_path)
    assert weft.checkpoint.load(tmp_path) == {"n": 2}


def test_a_missing_file(tmp_path: Path) -> None:
    weft.checkpoint.save(linear(), tmp_path)
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"is incomplete, its file 'tensors-.*' is missing"):
        weft.checkpoint.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 60])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    weft.checkpoint.save(linear(), tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=f"is damaged, it has {keep} bytes, but"):
        weft.checkpoint.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "weft checkpoint 2"}'])
def test_a_damaged_index(tmp_path: Path, text: str) -> None:
    weft.checkpoint.save(linear(), tmp_path)
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(CheckpointError, match="is damaged"):
        weft.checkpoint.load(tmp_path)


def test_a_newer_format(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"format": "weft checkpoint 9"}')
    with pytest.raises(CheckpointError, match="is of the format 'weft checkpoint 9'"):
        weft.checkpoint.load(tmp_path)


def test_an_unfinished_checkpoint(tmp_path: Path) -> None:
    weft.checkpoint.save(linear(), tmp_path)
    (tmp_path / "index.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no index.json: it was not completed"):
        weft.checkpoint.load(tmp_path)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"but 'a\.0' is a set"):
        weft.checkpoint.save({"a": [{1, 2}]}, tmp_path)
    with pytest.raises(TypeError, match=r"but the state has \(1, 2\)"):
        weft.checkpoint.save({(1, 2): 3}, tmp_path)
    with pytest.raises(CheckpointError, match="holds a module or a dict of tensors by name"):
        weft.checkpoint.save({"step": 3}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="'weight' is on the meta device and has no value to save"):
        weft.checkpoint.save(linear(device="meta"), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        weft.checkpoint.save(linear(), tmp_path / "file")


class Broken:
    """Stands for the system's calls; one of them says that the disk is full, from some call on."""

    def __init__(self, call: str, after: int) -> None:
        self.call, self.after = call, after

    def __getattr__(self, name: str):
        found = getattr(os, name)
        if name != self.call:
            return found

        def broken(*arguments, **options):
            self.after -= 1
            if self.after < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return found(*arguments, **options)

        return broken


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("breaks", ["write", "pwrite", "fsync"])
@pytest.mark.parametrize("path", ["folder", "model.safetensors"])
def test_a_failed_save_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch, breaks: str, path: str, after: int
) -> None:
    old, new = {"x": torch.zeros(3)}, {"x": torch.ones(3)}
    weft.checkpoint.save(old, tmp_path / path)
    before = sorted(file.name for file in tmp_path.rglob("*"))
    with monkeypatch.context() as patched:
        system = Broken(breaks, after)
        patched.setattr(writing, "os", system)
        patched.setattr(whole_files, "os", system)
        failed = False
        try:
            weft.checkpoint.save(new, tmp_path / path)
        except CheckpointError as error:
            assert "No space left on device" in str(error)
            failed = True
    there = weft.checkpoint.load(tmp_path / path)["x"]
    assert failed or system.after >= 0
    assert torch.equal(there, new["x"]) or failed
    if not torch.equal(there, new["x"]):  # else it was in place, and only the last sync failed
        assert torch.equal(there, old["x"])
        assert sorted(file.name for file in tmp_path.rglob("*")) == before
    weft.checkpoint.save(new, tmp_path / path)
    assert torch.equal(weft.checkpoint.load(tmp_path / path)["x"], new["x"])


@pytest.mark.parametrize(("number", "accepted"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_file_system_may_not_know_how_to_sync_a_folder(tmp_path: Path, monkeypatch, number: int, accepted) -> None:
    weft.checkpoint.save({"n": 1}, tmp_path)

    def fsync(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writing.os, "fsync", fsync)
    with nullcontext() if accepted else pytest.raises(CheckpointError, match="Input/output error"):
        weft.checkpoint.save({"n": 2, "x": torch.ones(3)}, tmp_path)
    monkeypatch.undo()
    assert weft.checkpoint.load(tmp_path)["n"] == (2 if accepted else 1)


def test_what_cannot_be_removed_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = weft.checkpoint.Keeper(tmp_path / "run", keep=1, wait=True)
    keeper.save(1, {"x": torch.zeros(3)})
    weft.checkpoint.save({"x": torch.zeros(3)}, tmp_path / "x")
    with monkeypatch.context() as patched:
        unlink = Path.unlink
        others = lambda path, **options: unlink(path if path.name[0] == "." else Path("/dev/null/x"), **options)  # noqa: E731
        patched.setattr(Path, "unlink", others)
        keeper.save(2, {"x": torch.ones(3)})
        weft.checkpoint.save({"x": torch.ones(3)}, tmp_path / "x")
    assert weft.checkpoint.load(tmp_path / "x")["x"].all()
    assert keeper.steps() == [1, 2]


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_AHEAD", 60)  # nothing is written before somebody waits
    saving = weft.checkpoint.save({"x": torch.ones(3)}, tmp_path / "x", wait=False)
    (tmp_path / "x").rmdir()
    (tmp_path / "x").write_text("mine")
    with pytest.raises(CheckpointError, match="process 0 could not write its files"):
        saving.wait()
    assert (tmp_path / "x").read_text() == "mine"


def test_a_new_checkpoint_leaves_no_files_of_the_old(tmp_path: Path) -> None:
    for value in range(3):
        weft.checkpoint.save({"x": torch.full((3,), value)}, tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]


def test_others_may_read_what_they_may_read_around_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    weft.checkpoint.save({"x": torch.ones(3)}, tmp_path)
    weft.checkpoint.save({"x": torch.ones(3)}, tmp_path / "x.safetensors")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.safetensors")} == {0o644}


def test_large_states_go_to_several_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(saving_plan, "_FILE_BYTES", 100)
    state = {str(i): torch.full((15,), i) for i in range(5)}
    weft.checkpoint.save(state, tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 5
    assert all(torch.equal(weft.checkpoint.load(tmp_path)[name], x) for name, x in state.items())


@pytest.mark.parametrize("like", [{"a": {}}, {"a": []}, {"a": {"b": None}}])
@pytest.mark.parametrize("strict", [True, False])
def test_a_value_is_no_dict_and_no_list(tmp_path: Path, like: dict[str, object], strict: bool) -> None:
    weft.checkpoint.save({"a": 3}, tmp_path)
    with pytest.raises(CheckpointError, match=r"'a' is no (dict|list) in the checkpoint, but value 3"):
        weft.checkpoint.load(tmp_path, like, strict=strict)


def test_nothing_in_a_dict_is_said(tmp_path: Path) -> None:
    weft.checkpoint.save({"a": {}}, tmp_path)
    with pytest.raises(CheckpointError, match=r"'a' has no 'b' in the checkpoint. It has nothing."):
        weft.checkpoint.load(tmp_path, {"a": {"b": None}})


def test_a_module_without_shapes_yet(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'weight' has no shape and no value yet: call the module once"):
        weft.checkpoint.save(torch.nn.LazyLinear(3), tmp_path)
    weft.checkpoint.save(torch.nn.Linear(2, 3), tmp_path)
    with pytest.raises(CheckpointError, match="'weight' has no shape yet and can hold nothing: call the module once"):
        weft.checkpoint.load(tmp_path, torch.nn.LazyLinear(3))
