"""Files of `torch.save` load with `torch.load` as it is; those of torch's DCP too, in any layout."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import weft
from weft import NamedMapping, P, PlacementMapping

MESH = weft.make_mesh({"dp": 2, "tp": 2})
MAPPINGS = [
    NamedMapping(MESH, P()),
    NamedMapping(MESH, P("dp")),
    NamedMapping(MESH, P(("tp", "dp"), None)),
    NamedMapping(MESH, P(None, "tp"), priorities=(1, 0)),
    NamedMapping(MESH, [weft.DimSpec("dp", is_open=True), None]),
    PlacementMapping(MESH, [weft.Sharded(1), weft.Replicated()]),
]


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
@pytest.mark.parametrize("kind", [lambda x: x, torch.nn.Parameter], ids=["tensor", "parameter"])
def test_torch_load_reads_what_torch_save_wrote(mapping, kind) -> None:
    x = kind(weft.shard(torch.arange(15.0).reshape(5, 3), MESH, P()).redistribute(mapping))
    back = torch.load(saved({"x": x, "step": 3}))["x"]
    assert type(back) is type(x)
    assert isinstance(back, torch.nn.Parameter) == isinstance(x, torch.nn.Parameter)
    assert (back.mapping, back.requires_grad) == (x.mapping, x.requires_grad)
    assert torch.equal(back.full_tensor(), x.full_tensor())


def test_pending_sums_load_too() -> None:
    total = weft.shard(torch.ones(2, 6), MESH, P(None, "tp")) @ weft.shard(torch.ones(6, 2), MESH, P("tp", None))
    back = torch.load(saved(total))
    assert back.mapping == total.mapping
    assert torch.equal(back.full_tensor(), total.full_tensor())


def test_a_model_and_its_optimizer_load_with_what_is_tied() -> None:
    model = weft.nn.shard_module(torch.nn.Linear(4, 4), MESH, {"weight": P("tp", "dp")})
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    again = weft.nn.shard_module(torch.nn.Linear(4, 4), MESH, {"weight": P("tp", "dp")})
    resumed = torch.optim.AdamW(again.parameters())
    again.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    for one, other in ((model, optimizer), (again, resumed)):
        one.zero_grad()
        one(torch.ones(2, 4)).square().sum().backward()
        other.step()
    assert torch.equal(again.weight.full_tensor(), model.weight.full_tensor())


def sharded() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    weft.nn.shard_module(model, MESH, {"0.weight": P("tp"), "2.weight": P(None, ("dp", "tp"))})
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning")
def test_torch_s_own_checkpoints_resume_a_training(tmp_path: Path) -> None:
    model, optimizer = sharded()
    step(model, optimizer)
    state, moments = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": moments}, checkpoint_id=tmp_path)
    step(model, optimizer)
    again, resumed = sharded()
    state, moments = get_state_dict(again, resumed)
    dcp.load({"model": state, "optimizer": moments}, checkpoint_id=tmp_path)
    set_state_dict(again, resumed, model_state_dict=state, optim_state_dict=moments)
    step(again, resumed)
    for name, x in model.state_dict().items():
        assert torch.equal(again.state_dict()[name].full_tensor(), x.full_tensor())
        assert again.state_dict()[name].mapping == x.mapping


PATTERNS = [None, {}, {"weight": P("tp")}, {"weight": P(None, ("tp", "dp")), "bias": P("dp")}]


def linear(patterns: dict[str, P] | None) -> torch.nn.Module:
    """A layer, as plain torch where there are no patterns."""
    layer = torch.nn.Linear(5, 6)
    return layer if patterns is None else weft.nn.shard_module(layer, MESH, patterns)


def whole(module: torch.nn.Module) -> torch.Tensor:
    return weft.checkpoint.full_state_dict(module)["weight"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("after", PATTERNS, ids=str)
@pytest.mark.parametrize("before", PATTERNS, ids=str)
def test_torch_s_own_checkpoints_load_in_any_layout(before, after, tmp_path: Path) -> None:
    source, target = linear(before), linear(after)
    dcp.save({"model": source.state_dict()}, checkpoint_id=tmp_path)
    layout = target.weight.mapping if after is not None else None
    dcp.load({"model": target.state_dict()}, checkpoint_id=tmp_path)
    assert torch.equal(whole(target), whole(source))
    assert layout is None or target.weight.mapping == layout
