"""Pipelines: whatever the schedule and wherever the stages lie, losses and gradients are those of the whole model."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import weft
from tests.multiprocess.launching import Processes
from tests.nn.pipelining import check, check_fully_sharded, data, every, loss, made, model, places
from weft import P
from weft.errors import ScheduleError
from weft.nn.pipelines.splitting import SplitBackward
from weft.runtime import machine
from weft.schedules import Schedule

PROGRAM = Path(__file__).with_name("pipelining_processes.py")


@pytest.fixture
def apart() -> Iterator[None]:
    machine.use_separate_memory(True)
    yield
    machine.use_separate_memory(False)


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("processes", "devices", "count", "schedules"),
    [(2, 1, 2, "all"), (4, 1, 4, "all"), (4, 2, 2, "zb-v"), (2, 2, 4, "dualpipe-v")],
)
def test_several_processes_compute_what_one_device_does(
    processes: int, devices: int, count: int, schedules: str
) -> None:
    """Stages in different processes, stages that lie in several, and processes with several stages."""
    command = [str(PROGRAM), str(count), str(devices), schedules]
    with Processes(command, processes) as started:
        ended = started.wait(200)
    assert [process.status for process in ended] == [0] * processes, "\n".join(process.err for process in ended)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(("name", "stages"), every(2))
def test_memories_apart_compute_what_one_device_does(name: str, stages: int) -> None:
    check(name, stages, 2, 4)


@pytest.mark.parametrize(("name", "stages"), every(4))
def test_one_memory_computes_what_one_device_does(name: str, stages: int) -> None:
    check(name, stages, 4, 8)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(("name", "stages", "recomputes"), [("1f1b", 2, False), ("zb-v", 4, False), ("gpipe", 2, True)])
def test_what_is_fully_sharded_is_gathered_and_reduced_once_a_step(name: str, stages: int, recomputes: bool) -> None:
    pipe = check_fully_sharded(name, stages, 2, recomputes)
    weight = pipe.stages[0].layers[0].up.weight
    assert weight.mapping.spec == P("dp", None)
    assert weight.grad.mapping.spec == P("dp", None)


def test_in_one_memory_it_is_gathered_once_too() -> None:
    check_fully_sharded("dualpipe-v", 4, 2)


def test_a_step_of_what_is_fully_sharded_may_fail(apart: None) -> None:
    """What was gathered goes, what the microbatches before had computed is forgotten, and the next step is whole."""
    pipe = check_fully_sharded("1f1b", 2, 2)
    before = [x.grad.full_tensor() for x in pipe.parameters()]
    calls = iter(range(100))

    def failing(module: nn.Module, args: object) -> None:
        if next(calls) == 2:
            raise OSError("no more")

    hook = pipe.stages[1].layers[1].register_forward_pre_hook(failing)
    x = torch.randn(16, 6, dtype=torch.float64)
    with pytest.raises(OSError, match="no more"):
        pipe.step(x, x)
    hook.remove()
    for p, grad in zip(pipe.parameters(), before, strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), grad)
        p.grad = None
    pipe.step(x, x)
    once = [p.grad.full_tensor() for p in pipe.parameters()]
    with weft.nn.no_sync(pipe.stages[0]), weft.nn.no_sync(pipe.stages[1]):
        pipe.step(x, x)  # kept, on each device
    pipe.step(x, x)
    for p, grad in zip(pipe.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), 3 * grad)


def test_a_table_of_ones_own() -> None:
    rows = ["F0.0 F0.1 B0.0 B0.1 W0.0", "F1.0 B1.0 F1.1 W1.0 B1.1"]
    pipe = check(Schedule(rows, "mine"), 2, 2, 2)
    assert pipe.schedule.name == "mine"


class Token:
    """Something that lives as long as the graph that holds it."""


class Held(torch.autograd.Function):
    """The identity, whose part of the graph holds a token."""

    alive: ClassVar[weakref.WeakSet[Token]] = weakref.WeakSet()
    most = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.token = Token()
        Held.alive.add(ctx.token)
        Held.most = max(Held.most, len(Held.alive))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@pytest.mark.parametrize(("name", "stages"), [("1f1b", 2), ("zb-h1", 2), ("zb-v", 4)])
def test_no_more_is_kept_than_the_schedule_says(name: str, stages: int) -> None:
    pipe = made(name, stages, 2, 8)
    for stage, place in zip(pipe.stages, pipe.schedule.stage_places, strict=True):
        if not place:
            stage.block.norm.register_forward_hook(lambda module, args, result: Held.apply(result))
    Held.most = 0
    pipe.step(*data())
    assert Held.most == pipe.schedule.live[0]
    assert not Held.alive


def test_activations_move_once_each_way() -> None:
    pipe = made("1f1b", 2, 2, 4)
    pipe.step(*data())
    with weft.comm_log() as log:
        pipe.step(*data())
    moved = [record for record in log if record.op == "pipeline" and record.source.mesh != record.target.mesh]
    assert len(moved) == 4 * 3  # activations and tokens on, gradients back


def test_a_tied_weight_is_one_parameter() -> None:
    pipe = made("1f1b", 2, 2, 4)
    assert [name for name, _ in pipe.named_parameters() if "embedding" in name or "head" in name] == [
        "stages.0.embedding.weight"
    ]
    assert "stages.1.head.weight" not in pipe.state_dict()
    pipe.step(*data())
    with torch.no_grad():
        pipe.stages[0].embedding.weight.add_(1)
    before = pipe(data()[0]).full_tensor()
    assert torch.equal(pipe.stages[1].head.weight.full_tensor(), pipe.stages[0].embedding.weight.full_tensor())
    with torch.no_grad():
        pipe.stages[0].embedding.weight.mul_(2)
    assert not torch.equal(pipe(data()[0]).full_tensor(), before)


def test_random_numbers_do_not_depend_on_the_schedule() -> None:
    found = []
    for name in ("gpipe", "1f1b", "zb-h1"):
        torch.manual_seed(0)
        stages = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(2)]
        pipe = weft.nn.pipeline(stages, places(2), name, microbatches=4, loss=lambda x: x.square().mean())
        found.append([pipe.step(torch.ones(8, 4)).item() for _ in range(2)])
    assert found[0] == found[1] == found[2]
    assert found[0][0] != found[0][1]


def test_a_sum_of_losses() -> None:
    pipe = weft.nn.pipeline(
        [nn.Identity(), nn.Linear(1, 1, bias=False)],
        places(2),
        microbatches=4,
        loss=lambda x, y: ((x - y) ** 2).sum(),
        reduction="sum",
    )
    x, y = torch.arange(8.0).unsqueeze(1), torch.ones(8, 1)
    weight = pipe.stages[1].weight.full_tensor().detach().requires_grad_()
    expected = ((x @ weight.T - y) ** 2).sum()
    expected.backward()
    torch.testing.assert_close(pipe.step(x, y).full_tensor(), expected.detach())
    torch.testing.assert_close(pipe.stages[1].weight.grad.full_tensor(), weight.grad)


def test_a_batch_that_is_split_is_cut_where_it_lies() -> None:
    meshes = places(2)
    pipe = made("1f1b", 2, 2, 4)
    tokens, _ = data()
    expected = pipe(tokens).full_tensor()
    laid = weft.shard(tokens, meshes[0], P("dp"))
    with weft.comm_log() as log:
        found = pipe(laid).full_tensor()
    torch.testing.assert_close(found, expected)
    assert not [record for record in log if record.op not in ("pipeline", "full_tensor", "tied parameter")]


def test_the_two_parts_of_a_backward_pass_share_no_work() -> None:
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    x = torch.randn(8, 64, requires_grad=True)
    counts = []
    split = SplitBackward([layers(x)], [x])
    for part in (lambda: split.input_gradients([torch.ones(8, 64)]), split.weight_gradients):
        with FlopCounterMode(display=False) as counter:
            part()
        counts.append(counter.get_total_flops())
    assert counts == [4 * 2 * 8 * 64 * 64] * 2


class Entangled(nn.Module):
    """Weights used twice, directly and turned, with what depends on nothing else beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.randn(4))
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = self.second.weight.t()
        h = self.norm(self.first(x).relu() @ turned) + x
        h = self.second(self.norm(h @ turned) * self.scale) * self.scale.exp() + self.scale
        return h, self.scale * 2, h[:, :2].sin(), x


def test_a_split_backward_pass_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    module = Entangled().double()
    x = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    outputs = module(x)
    seeds = [torch.randn_like(each) for each in outputs]
    torch.autograd.backward(outputs, seeds)
    assert x.grad is not None
    expected = [x.grad, *(each.grad for each in module.parameters())]
    module.zero_grad()
    split = SplitBackward(module(x), [x])
    (found,) = split.input_gradients(seeds)
    assert all(each.grad is None for each in module.parameters())
    split.weight_gradients()
    for one, other in zip([found, *(each.grad for each in module.parameters())], expected, strict=True):
        torch.testing.assert_close(one, other)


REFUSED = {
    "schedule": (lambda m: weft.nn.pipeline(model(2), m, "zb"), ValueError, "there is no schedule 'zb'"),
    "stages": (lambda m: weft.nn.pipeline(model(3), m), ValueError, "one stage in each place, but got 3 stages and 2"),
    "table": (
        lambda m: weft.nn.pipeline(model(3), m, weft.schedules.gpipe(2, 2)),
        ValueError,
        "the schedule 'gpipe' is for 2 stages in 2 places, but there are 3 stages and 2 meshes",
    ),
    "microbatches": (
        lambda m: weft.nn.pipeline(model(2), m, weft.schedules.gpipe(2, 2), 4),
        ValueError,
        "is for 2 microbatches, but microbatches=4: leave it out",
    ),
    "memory": (
        lambda m: weft.nn.pipeline(model(2), m, "gpipe", 4, most_live=3),
        ScheduleError,
        "F0.3 in row 0 would be number 4 .*, but most_live is 3",
    ),
    "no module": (lambda m: weft.nn.pipeline([nn.Tanh(), torch.tanh], m), TypeError, "stage 1 is a builtin"),
    "no mesh": (lambda m: weft.nn.pipeline(model(2), ["a", "b"]), TypeError, "number 0 is 'a'"),
    "reduction": (lambda m: weft.nn.pipeline(model(2), m, reduction="max"), ValueError, "but got 'max'"),
    "elsewhere": (
        lambda m: weft.nn.pipeline([nn.Tanh(), weft.nn.shard_module(nn.Linear(2, 2), m[0], {})], m),
        ValueError,
        r"'weight' of stage 1 lies on .* \(cpu:0, .*\), but the schedule has its stage on .* \(cpu:4, .*\)",
    ),
    "no loss": (lambda m: weft.nn.pipeline(model(2), m).step(data()[0]), ValueError, "has no loss to train by"),
    "rows": (
        lambda m: weft.nn.pipeline(model(2), m, "gpipe", 3, loss=loss).step(*data()),
        ValueError,
        "a batch of 16 rows cannot be cut into 3 equal microbatches: pad it to 18",
    ),
    "targets": (
        lambda m: weft.nn.pipeline(model(2), m, "gpipe", 2, loss=loss).step(data()[0], data()[1][:4]),
        ValueError,
        r"one row for each sample, but their shapes are \(16, 3\), \(4, 3\)",
    ),
    "no tensor": (
        lambda m: weft.nn.pipeline(model(2), m, "gpipe", 2, loss=loss).step([3]),
        TypeError,
        "takes tensors whose first dim is the batch, but got a int",
    ),
    "loss": (
        lambda m: weft.nn.pipeline(model(2), m, "gpipe", 2, loss=lambda x, y: x).step(*data()),
        TypeError,
        r"one number for each microbatch, but it gave a tensor of shape \(8, 3, 8\)",
    ),
    "stage": (
        lambda m: weft.nn.pipeline([nn.LSTM(3, 3), nn.Tanh()], m, "gpipe", 2)(torch.ones(4, 3)),
        TypeError,
        r"stage 0 \(LSTM\) gave a tuple: a stage gives a tensor, or a tuple of tensors",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str) -> None:
    call, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        call(places(2))


@pytest.mark.usefixtures("apart")
def test_gradients_are_reduced_once_a_step() -> None:
    """Not once for each microbatch: over dp, each device adds up its own first."""
    mesh = weft.make_mesh({"dp": 2})
    pipe = weft.nn.pipeline(
        [nn.Linear(4, 4, bias=False), nn.Tanh()],
        [mesh, mesh],
        "zb-h1",
        microbatches=4,
        loss=lambda x: x.sum(),
        batch=P("dp"),
    )
    x = torch.randn(8, 4)
    pipe.step(x)
    first = pipe.stages[0].weight.grad.full_tensor()
    with weft.comm_log() as log:
        pipe.step(x)
    assert [record.shape for record in log if record.kind == "all_reduce"].count((4, 4)) == 1
    torch.testing.assert_close(pipe.stages[0].weight.grad.full_tensor(), 2 * first)


def test_a_step_that_fails_leaves_gradients_as_they_were() -> None:
    pipe = made("1f1b", 2, 2, 4)
    pipe.step(*data())
    before = {name: x.grad for name, x in pipe.named_parameters()}
    calls = iter(range(100))

    def failing(module: nn.Module, args: object) -> None:
        if next(calls) == 2:
            raise OSError("no more")

    hook = pipe.stages[1].register_forward_pre_hook(failing)
    with pytest.raises(OSError, match="no more"):
        pipe.step(*data())
    hook.remove()
    assert all(x.grad is before[name] for name, x in pipe.named_parameters())
    pipe.step(*data())
