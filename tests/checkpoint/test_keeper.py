"""`Keeper`: the newest checkpoints stay, the last complete one is found, and a training goes on from it exactly."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

import weft
from tests.checkpoint.damage import data_file, flipped
from weft import P
from weft.checkpoint import CheckpointError, Keeper, load, save

MESH = weft.make_mesh({"dp": 2, "tp": 3})


class Rows:
    """Data that knows its place."""

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> torch.Tensor:
        self.at += 1
        return torch.randn(4, 6, generator=torch.Generator().manual_seed(self.at))

    def state_dict(self) -> dict[str, object]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.at = int(state["at"])


def made(spec: P) -> dict[str, object]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 3))
    weft.nn.shard_module(model, MESH, {"0.weight": spec})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "data": Rows()}


def trained(parts: dict[str, object], keeper: Keeper | None, start: int, end: int) -> list[float]:
    losses = []
    for step in range(start, end):
        parts["optimizer"].zero_grad()
        loss = (parts["model"](next(parts["data"])) + random.random()).square().mean()
        loss.backward()
        parts["optimizer"].step()
        parts["schedule"].step()
        losses.append(loss.item())
        if keeper is not None:
            keeper.step(step + 1, parts)
    return losses


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("spec", [P("tp"), P(None, "dp")], ids=str)
def test_a_training_goes_on_exactly(tmp_path: Path, spec: P, wait: bool) -> None:
    random.seed(0)
    expected = trained(made(P("tp")), None, 0, 10)
    random.seed(0)
    keeper = Keeper(tmp_path, keep=2, every=2, wait=wait)
    parts = made(P("tp"))
    assert keeper.resume(parts) == 0
    trained(parts, keeper, 0, 7)
    keeper.wait()
    random.seed(7), torch.manual_seed(7)
    again = made(spec)
    keeper = Keeper(tmp_path, keep=2, every=2, wait=wait)
    start = keeper.resume(again)
    assert start == 6
    assert again["data"].at == 6
    assert trained(again, keeper, start, 10) == pytest.approx(expected[6:], rel=1e-5)
    keeper.wait()
    assert keeper.steps() == [8, 10]


def test_numbers_come_back_too(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    keeper.save(4, {"best": 0.5, "x": torch.ones(2)})
    assert keeper.resume({"best": None, "x": torch.zeros(2)}) == 4
    assert keeper.state["best"] == 0.5
    assert keeper.state["x"].tolist() == [1, 1]


def test_only_the_newest_stay(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, keep=3, every=5)
    for step in range(1, 31):
        keeper.step(step, {"x": torch.full((2,), step)})
    keeper.wait()
    assert keeper.steps() == [20, 25, 30]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000025", "step-00000030"]
    assert keeper.latest() == tmp_path / "step-00000030"


def test_what_other_processes_have_begun_is_not_swept(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, keep=1, wait=True)
    keeper.folder(2).mkdir()
    (keeper.folder(2) / "tensors-00000000-00001-00000.safetensors").write_text("")  # of a process that is ahead
    keeper.save(1, {})
    assert len(list(keeper.folder(2).iterdir())) == 1
    keeper.save(3, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_what_was_not_completed_is_passed_over_and_swept(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, keep=2, wait=True)
    keeper.save(1, {"x": torch.ones(2)})
    keeper.save(2, {"x": torch.ones(2)})
    (keeper.folder(2) / "index.json").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-00000009").write_text("")
    assert keeper.steps() == [1]
    assert Keeper(tmp_path).resume({"x": torch.zeros(2)}) == 1
    keeper.save(3, {"x": torch.ones(2)})
    assert keeper.steps() == [1, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes",
        "step-00000001",
        "step-00000003",
        "step-00000009",
    ]


def test_a_damaged_one_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, wait=True)
    for step in (1, 2, 3):
        keeper.save(step, {"x": torch.full((4,), step)})
    for step in (3, 2):
        file = data_file(keeper.folder(step))
        flipped(file, 8 * file.stat().st_size - 3)
    with pytest.warns(RuntimeWarning, match="is damaged in the file .* Going on with the checkpoint before it"):
        assert keeper.resume({"x": torch.zeros(4, dtype=torch.int64)}) == 1
    file = data_file(keeper.folder(1))
    flipped(file, 8 * file.stat().st_size - 3)
    with pytest.warns(RuntimeWarning), pytest.raises(CheckpointError, match=re.escape("[1, 2, 3] are all damaged")):
        keeper.resume({"x": torch.zeros(4, dtype=torch.int64)})


def test_one_that_does_not_fit_is_not_passed_over(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, wait=True)
    for step in (1, 2):
        keeper.save(step, {"x": torch.ones(step)})
    with pytest.raises(CheckpointError, match=r"'state\.x' has shape \(2,\) in the checkpoint, but \(1,\) here"):
        keeper.resume({"x": torch.ones(1)})


@pytest.mark.parametrize("option", ["keep", "every"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_wrong_numbers(option: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{option} is a whole number from 1 on, but got {value!r}"):
        Keeper(tmp_path, **{option: value})
    with pytest.raises(ValueError, match="a step is a whole number from 0 on, but got -1"):
        Keeper(tmp_path).save(-1, {})


class Average:
    """Averages of parameters, as trainers keep them beside the model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.values = {name: x.detach().clone() for name, x in model.state_dict().items()}
        self.pair = [self.values["0.weight"], torch.zeros(2), 3]

    def state_dict(self) -> dict[str, object]:
        return {"values": self.values, "pair": self.pair}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.values, self.pair = state["values"], state["pair"]


def test_tensors_of_other_objects_lie_as_theirs(tmp_path: Path) -> None:
    """They came whole to every process, though the object had them split."""
    average = Average(made(P("tp"))["model"])
    weft.checkpoint.save({"average": average}, tmp_path / "average")
    other = Average(made(P(None, "dp"))["model"])
    other.values["0.weight"].zero_()
    weft.checkpoint.load(tmp_path / "average", {"average": other})
    for name, x in average.values.items():
        assert torch.equal(other.values[name].full_tensor(), x.full_tensor())
    assert other.values["0.weight"].mapping.spec == P(None, "dp")
    assert other.values["2.weight"].mapping.is_fully_replicated
    assert other.pair[0] is other.values["0.weight"]
    assert type(other.pair[1]) is torch.Tensor
    assert other.pair[2] == 3


def test_a_counter_stays_one(tmp_path: Path) -> None:
    def made() -> torch.optim.lr_scheduler.LRScheduler:
        optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1.0)
        inner = [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3, 3]) for _ in range(2)]
        return torch.optim.lr_scheduler.SequentialLR(optimizer, inner, [2])

    save({"schedule": made()}, tmp_path)
    found = load(tmp_path, {"schedule": made()})["schedule"]
    assert [kept.milestones for kept in found._schedulers] == [Counter([1, 3, 3])] * 2
    assert all(isinstance(kept.milestones, Counter) for kept in found._schedulers)


def test_what_a_link_leads_to_is_not_the_keepers(tmp_path: Path) -> None:
    """Somebody keeps a checkpoint elsewhere, with a link in its place: it is resumed from, and only the link goes."""
    elsewhere = tmp_path / "best"
    keeper = weft.checkpoint.Keeper(tmp_path / "run", keep=1, wait=True)
    keeper.save(1, {"x": 1})
    keeper.folder(1).rename(elsewhere)
    keeper.folder(1).symlink_to(elsewhere)
    assert keeper.resume({"x": None}) == 1
    keeper.save(2, {"x": 2})
    assert list((tmp_path / "run").iterdir()) == [keeper.folder(2)]
    assert load(elsewhere)["state"] == {"x": 1}


@pytest.mark.parametrize("step", [-1, 1.5, True, None, "3"])
def test_what_is_no_step(tmp_path: Path, step: object) -> None:
    keeper = weft.checkpoint.Keeper(tmp_path, every=2)
    for act in (keeper.step, keeper.save):
        with pytest.raises(ValueError, match="a step is a whole number from 0 on, but got"):
            act(step, {"x": 1})
