"""`weft.nn.autoshard`: layouts that are the best, stay as users say, fit, and compute what plain torch computes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import weft
from tests.autoshard.models import language_loss
from tests.paper.llama import VOCABULARY, Llama
from weft import P
from weft.autoshard.alike_layers import repeats_of
from weft.autoshard.limits import solve_within
from weft.autoshard.modelling import LayoutModel
from weft.autoshard.prices import Prices
from weft.autoshard.recording import record
from weft.cli import main
from weft.errors import PlanError
from weft.paper.machine import Machine
from weft.planning import Link
from weft.runtime import machine


def mesh_of(**sizes: int) -> weft.DeviceMesh:
    """A mesh of devices that nobody need have."""
    count = int(np.prod(list(sizes.values())))
    return weft.make_mesh(sizes, devices=[weft.Accelerator(i) for i in range(count)])


def mlp(width: int = 4096, hidden: int = 16384) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def test_a_small_program_is_solved_like_by_brute_force() -> None:
    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False)).to("meta")
    program, _ = record(model, torch.empty(128, 64, device="meta"))
    chooser = LayoutModel(program, mesh_of(dp=2, tp=2), Prices(program, Machine.preset("h100"), 2), {})
    problem = chooser.problem
    found = solve_within(problem, 80e9)
    assert found is not None
    # Each pair is near the other, so that one table after another can be tried out in full.
    sizes = [len(unary) for unary in problem.unary]
    total = np.zeros(sizes)
    for variable, unary in enumerate(problem.unary):
        total += unary.reshape([-1 if v == variable else 1 for v in range(len(sizes))])
    for (i, j), table in problem.pairs.items():
        total += table.reshape([sizes[v] if v in (i, j) else 1 for v in range(len(sizes))])
    assert found.seconds == pytest.approx(float(total.min()))
    assert found.bound == pytest.approx(found.seconds)


def test_large_batches_are_split_and_large_weights_are() -> None:
    split_batch = weft.nn.autoshard(mlp(256, 256), mesh_of(dp=8), torch.empty(1 << 20, 256), topology="h100")
    assert split_batch.batch == P("dp", None)
    assert not split_batch.patterns
    split_weights = weft.nn.autoshard(mlp(), mesh_of(dp=8), torch.empty(64, 4096), topology="h100")
    assert split_weights.patterns["0.weight"] == P("dp", None)
    assert split_weights.patterns["2.weight"] == P(None, "dp")


def test_what_is_fixed_stays() -> None:
    fixed = {"0.weight": P(None, "tp"), "2.*": P()}
    choice = weft.nn.autoshard(mlp(), mesh_of(dp=2, tp=4), torch.empty(256, 4096), fixed=fixed, topology="h100")
    assert choice.patterns["0.weight"] == P(None, "tp")
    assert "2.weight" not in choice.patterns
    free = weft.nn.autoshard(mlp(), mesh_of(dp=2, tp=4), torch.empty(256, 4096), topology="h100")
    assert free.seconds < choice.seconds


def test_a_limit_is_kept_or_refused() -> None:
    mesh, batch = mesh_of(dp=8), torch.empty(1 << 16, 1024)
    free = weft.nn.autoshard(mlp(1024, 1024), mesh, batch, topology="h100")
    assert free.binding is None
    limit = free.memory - (10 << 20)
    bound = weft.nn.autoshard(mlp(1024, 1024), mesh, batch, topology="h100", memory_limit=limit)
    assert bound.memory <= limit
    assert bound.binding == "memory"
    assert bound.seconds >= free.seconds
    assert bound.gap <= 0.05
    with pytest.raises(PlanError, match=r"no layout on dp=8 fits into 1 MiB a device.*at least. Give it"):
        weft.nn.autoshard(mlp(1024, 1024), mesh, batch, topology="h100", memory_limit="1MiB")


def test_layers_that_repeat_are_solved_once() -> None:
    with torch.device("meta"):
        model, ids = Llama(5), torch.empty(8, 32, dtype=torch.long)
    program, _ = record(model, ids)
    repeats = repeats_of(program)
    inside = [op for op in program.ops if op.path.startswith("blocks.")]
    assert len({repeats.ops[op.number] for op in inside}) == len(inside) // 5
    choice = weft.nn.autoshard(model, mesh_of(dp=2, tp=2), ids, topology="h100")
    assert all(not any(part.isdigit() for part in name.split(".")) for name in choice.patterns)


def test_the_same_is_chosen_again() -> None:
    mesh, batch = mesh_of(dp=2, tp=4), torch.empty(256, 4096)
    first, second = (weft.nn.autoshard(mlp(), mesh, batch, topology="h100") for _ in range(2))
    assert first.patterns == second.patterns
    assert list(first.patterns) == list(second.patterns)
    assert str(first) == str(second)
    assert "next best" in str(first)


def test_a_modelled_layout_is_at_most_as_good() -> None:
    mesh, batch = mesh_of(dp=2, tp=4), torch.empty(512, 4096)
    best = weft.nn.autoshard(mlp(), mesh, batch, topology="h100")
    for rows, columns in product(("tp", "dp", None), repeat=2):
        fixed = {"0.weight": P(rows), "2.weight": P(None, columns)}
        assert weft.nn.autoshard(mlp(), mesh, batch, fixed=fixed, topology="h100").seconds >= best.seconds - 1e-12


def test_wrong_calls_are_told() -> None:
    mesh, batch = mesh_of(dp=2), torch.empty(8, 4096)
    with pytest.raises(ValueError, match="memory_limit is a number of bytes or a text such as '60GB'"):
        weft.nn.autoshard(mlp(), mesh, batch, memory_limit="much")
    with pytest.raises(ValueError, match=r"the pattern '3.weight' matches no parameter of this module"):
        weft.nn.autoshard(mlp(), mesh, batch, fixed={"3.weight": P("dp")})
    with pytest.raises(ValueError, match=r"does not fit '0\.bias' of shape"):
        weft.nn.autoshard(mlp(), mesh, batch, fixed={"0.*": P(None, "dp")})
    with pytest.raises(TypeError, match=r"autoshard takes a torch\.nn\.Module"):
        weft.nn.autoshard(torch.nn.functional.relu, mesh, batch)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="optimizer_states is a whole number"):
        weft.nn.autoshard(mlp(), mesh, batch, optimizer_states=-1)


def test_limits_are_numbers_or_texts() -> None:
    mesh, batch = mesh_of(dp=2), torch.empty(8, 4096)
    for limit in (6e10, 60_000_000_000, "60GB", "60 GB", "60000.0MB"):
        assert weft.nn.autoshard(mlp(), mesh, batch, memory_limit=limit, topology="h100").memory_limit == 60 * 10**9
    for limit in ("1.2.3GB", "GB", True, float("nan")):
        with pytest.raises(ValueError, match="memory_limit is a number of bytes or a text such as '60GB'"):
            weft.nn.autoshard(mlp(), mesh, batch, memory_limit=limit)
    with pytest.raises(ValueError, match="memory_limit is more than 0 bytes, but got 0"):
        weft.nn.autoshard(mlp(), mesh, batch, memory_limit=0)


class Branching(nn.Module):
    """A model that goes on as a value says."""

    def __init__(self, said: bool | None = None) -> None:
        super().__init__()
        self.layer, self.said = nn.Linear(8, 8), said

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = x.sum() > 0
        if self.said is not None:
            weft.assume(large, self.said)
        return self.layer(x) if large else x


def test_models_that_read_values_are_told_what_to_say() -> None:
    mesh, batch = mesh_of(dp=2), torch.empty(8, 8, device="meta")
    with pytest.raises(weft.PaperError, match=r"test_autoshard.py:\d+ reads the value of a tensor, but on paper"):
        weft.nn.autoshard(Branching(), mesh, batch, topology="h100")
    for model, given, ops in (
        (Branching(True), batch, 1),
        (Branching(False), batch, 0),
        (Branching(), torch.ones(8, 8), 1),  # a small batch that has values says it itself
        (Branching(), -torch.ones(8, 8), 0),
    ):
        program, _ = record(model, given)
        assert sum("linear" in str(op.func) for op in program.ops) == ops


def test_a_batch_that_does_not_go_with_the_model_is_told_with_the_module() -> None:
    with pytest.raises(RuntimeError, match="same reduction dim") as told:
        weft.nn.autoshard(mlp(), mesh_of(dp=2), torch.empty(8, 4095), topology="h100")
    assert told.value.__notes__ == [
        "The module '0' was called on tensors without values, shaped as the example batch says."
    ]
    choice = weft.nn.autoshard(nn.Linear(4, 4), weft.make_mesh({"dp": 2}), {"input": torch.ones(8, 4)}, topology="h100")
    with pytest.raises(ValueError, match=r"has a tensor 'inputs', which the example had not: it had \['input'\]"):
        choice.shard_batch({"inputs": torch.ones(8, 4)})


def test_tied_and_frozen_parameters_and_buffers() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.frozen = nn.Embedding(64, 16), nn.Linear(16, 16).requires_grad_(False)
            self.head = nn.Linear(16, 64, bias=False)
            self.head.weight = self.table.weight
            self.register_buffer("mask", torch.ones(16))

        def forward(self, ids: torch.Tensor, scale: float = 1.0, *, mask: torch.Tensor | None = None) -> torch.Tensor:
            assert mask is None
            return self.head(self.frozen(self.table(ids)) * self.mask * scale)

    model, ids = Tied().double(), torch.arange(32).reshape(8, 4)
    plain = copy.deepcopy(model)
    mesh, batch = weft.make_mesh({"dp": 2, "one": 1}), {"ids": ids, "scale": 2.0, "mask": None}
    fixed = {"table.weight": P("dp"), "frozen.*": P("dp")}
    choice = weft.nn.autoshard(model, mesh, batch, topology="h100", fixed=fixed)
    assert choice.patterns["table.weight"] == choice.patterns["head.weight"] == P("dp", None)
    choice.apply()
    assert model.head.weight is model.table.weight
    found, expected = model(**choice.shard_batch(batch)), plain(**batch)  # type: ignore[arg-type]
    for loss in (found.square().sum(), expected.square().sum()):
        loss.backward()
    torch.testing.assert_close(found.full_tensor(), expected)
    torch.testing.assert_close(model.table.weight.grad.full_tensor(), plain.table.weight.grad)  # type: ignore[union-attr]
    assert model.frozen.weight.grad is None
    with pytest.raises(ValueError, match=r"'head.weight' is tied to another name that is laid out as"):
        weft.nn.autoshard(plain, mesh, batch, fixed={"table.weight": P("dp"), "head.weight": P(None, "dp")})


@pytest.fixture(params=["separate", "unified"])
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("bandwidth", [1e9, 1e12])
def test_what_is_chosen_computes_what_plain_torch_computes(bandwidth: float) -> None:
    torch.manual_seed(0)
    plain = Llama(2).double()
    ids = torch.randint(0, VOCABULARY, (8, 32))
    model = copy.deepcopy(plain)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    # On machines without latency, everything that can be split is worth it even for a small model.
    link = Link(0.0, bandwidth)
    slow = replace(Machine.preset("h100"), topology=weft.Topology(link, link, link, link), launch=0.0, bandwidth=1e9)
    choice = weft.nn.autoshard(model, mesh, ids, topology=slow, loss=lambda logits: language_loss(logits, ids))
    assert choice.patterns or choice.batch != P(None, None)
    choice.apply()
    batch = choice.shard_batch(ids)
    language_loss(plain(ids), ids).backward()
    found = language_loss(model(batch), batch)  # type: ignore[arg-type]
    found.backward()
    torch.testing.assert_close(found.full_tensor(), language_loss(plain(ids), ids))  # type: ignore[attr-defined]
    for (name, mine), its in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), its.grad, msg=name)  # type: ignore[union-attr]


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4096, 16384), torch.nn.GELU(), torch.nn.Linear(16384, 4096))\n"
        "loss = model(torch.randn(512, 4096)).square().mean()\n"
        "raise RuntimeError('the program was to end before')\n"
    )
    done = CliRunner().invoke(main, ["autoshard", str(tmp_path / "train.py"), "--mesh", "dp=2,tp=4"])
    assert done.exit_code == 0, done.output
    assert "Layouts on dp=2 × tp=4" in done.output
    assert "patterns = {'0.weight': P(" in done.output
    done = CliRunner().invoke(main, ["autoshard", str(tmp_path / "train.py"), "--mesh", "dp"])
    assert "'dp' is no mesh: write it as dp=2,tp=4" in done.output


def test_a_batch_is_not_left_whole_on_every_device() -> None:
    """With weights split over both axes and ids that every device has, one layer moves terabytes: it is not chosen."""
    mesh, split = mesh_of(dp=64, tp=8), {"1.weight": P("tp", "dp")}

    def layer() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(nn.Embedding(128, 8192), nn.Linear(8192, 8192, bias=False)).bfloat16()

    def received(model: nn.Module, batch: object) -> int:
        def step(model: nn.Module, batch: object) -> None:
            model(batch).square().mean().backward()

        return weft.dryrun(step, model, batch, topology="h100").bytes_received

    ids = torch.empty(64, 4096, dtype=torch.int64, device="meta")
    by_hand = weft.nn.shard_module(layer(), mesh, {"0.weight": P("tp", "dp"), **split})
    whole = received(by_hand, weft.shard(ids, mesh, P()))
    for fixed in ({}, split):
        choice = weft.nn.autoshard(layer(), mesh, ids, topology="h100", fixed=fixed, loss=lambda y: y.square().mean())
        assert isinstance(choice.batch, P)
        assert choice.batch != P(None, None)
        assert received(choice.apply(), choice.shard_batch(ids)) < whole / 5, choice
