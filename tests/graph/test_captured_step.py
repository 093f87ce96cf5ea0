"""A captured training step does what the same step does when it is written out, in either memory, recorded or not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from examples.models import gpt2
from tests.graph.simulated_gpu import simulated_gpu  # noqa: F401 - a fixture
from tests.multiprocess.launching import Processes
from weft import CPU, Accelerator, P
from weft.graph import CapturedStep, capture_step
from weft.runtime import machine

STEPS = 5
LAYOUTS = {"0.weight": P("tp", None), "0.bias": P("tp"), "3.weight": P(None, "tp")}


@pytest.fixture(params=["separate", "unified"], scope="module")
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


@pytest.fixture(params=["eager", "simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest, memory: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where steps run: on the host as they are, on the host in the place of a GPU, and on a GPU where there is one."""
    monkeypatch.setenv("WEFT_VIRTUAL_ACCELERATORS", "8")
    if request.param == "simulated":
        request.getfixturevalue("simulated_gpu")
    return request.param


def mesh_on(place: str) -> weft.DeviceMesh:
    device = Accelerator if place == "cuda" else CPU
    return weft.make_mesh({"dp": 2, "tp": 4}, devices=[device(i) for i in range(8)])


def torch_place(place: str) -> str:
    return "cuda" if place == "cuda" else "cpu"


class Halved(torch.optim.Optimizer):
    """An optimizer of the simplest kind that counts its steps in a tensor: each is half of the one before."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "capturable": False})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = torch.ones((), device=p.device)
                p.sub_(p.grad * state["step"] * group["lr"])
                state["step"].mul_(0.5)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "halved": lambda p: Halved(p, lr=0.1),
}


def perceptron(place: str) -> nn.Module:
    torch.manual_seed(0)
    with torch.device("cpu"):
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)).double()
    return model.to(torch_place(place))


def squares(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).square().mean()


def batch(place: str, seed: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    made = (torch.randn(rows, width, generator=drawn, dtype=torch.float64, device="cpu") for width in (6, 4))
    x, y = (part.to(torch_place(place)) for part in made)
    return x, y


def written_out(model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn, *inputs, clip: float | None = None):
    """The step as people write it."""
    optimizer.zero_grad()
    loss = loss_fn(model, *inputs)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.item()


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        whole = a.full_tensor() if isinstance(a, weft.Tensor) else a
        torch.testing.assert_close(whole, b, rtol=1e-9, atol=1e-9)


def both(place: str, optimizer: str = "sgd", **options: object) -> tuple[CapturedStep, nn.Module, nn.Module, object]:
    """A captured step of a sharded model, that model, a plain one, and its optimizer."""
    plain = perceptron(place)
    ours = weft.nn.shard_module(copy.deepcopy(plain), mesh_on(place), LAYOUTS)
    make = OPTIMIZERS[optimizer]
    return capture_step(ours, make(ours.parameters()), squares, **options), ours, plain, make(plain.parameters())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_does_what_the_step_does_that_is_written_out(place: str, optimizer: str) -> None:
    step, ours, plain, reference = both(place, optimizer)
    for seed in range(STEPS):
        x, y = batch(place, seed)
        loss = step(*weft.shard((x, y), mesh_on(place), P("dp")))
        assert loss.item() == pytest.approx(written_out(plain, reference, squares, x, y), rel=1e-9)
    assert_same_weights(ours, plain)
    assert step.recordings == (place != "eager")
    assert bool(step.reason) == (place == "eager")


# Not simulated: under a mode, as what stands for a capture is, torch runs no compiled code.
@pytest.mark.parametrize("place", ["eager", pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_compiled_model_is_recorded_too(place: str) -> None:
    plain = perceptron(place)
    ours = weft.nn.shard_module(copy.deepcopy(plain), mesh_on(place), LAYOUTS)
    compiled = torch.compile(ours, backend="inductor" if place == "cuda" else "aot_eager", fullgraph=True)
    mine, theirs = (OPTIMIZERS["sgd"](model.parameters()) for model in (ours, plain))
    step = capture_step(compiled, mine, squares)
    for seed in range(STEPS):
        x, y = batch(place, seed)
        loss = step(*weft.shard((x, y), mesh_on(place), P("dp")))
        assert loss.item() == pytest.approx(written_out(plain, theirs, squares, x, y), rel=1e-9)
    assert_same_weights(ours, plain)
    assert step.recordings == (place != "eager"), step.reason


def test_a_transformer_with_clipped_gradients_and_extra_results(place: str) -> None:
    torch.manual_seed(0)
    with torch.device("cpu"):
        plain = gpt2.GPT2(11, 6, 8, 4, 1).double().to(torch_place(place))
    ours = weft.nn.shard_module(copy.deepcopy(plain), mesh_on(place), gpt2.LAYOUTS["tp"])
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9) for m in (ours, plain))

    def loss_fn(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        logits = model(tokens)
        loss = functional.cross_entropy(logits[:, :-1].reshape(-1, 11), tokens[:, 1:].reshape(-1))
        return loss, {"logits": logits}

    step = capture_step(ours, mine, loss_fn, before_update=lambda: nn.utils.clip_grad_norm_(ours.parameters(), 0.1))
    for seed in range(STEPS):
        tokens = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(seed), device="cpu")
        tokens = tokens.to(torch_place(place))
        with torch.no_grad():
            logits = plain(tokens)
        want = written_out(plain, theirs, lambda *given: loss_fn(*given)[0], tokens, clip=0.1)
        loss, extra = step(weft.shard(tokens, mesh_on(place), P("dp")))
        assert loss.item() == pytest.approx(want, rel=1e-9)
        torch.testing.assert_close(extra["logits"].full_tensor(), logits, rtol=1e-9, atol=1e-9)
    assert_same_weights(ours, plain)


def test_gradients_are_there_afterwards(place: str) -> None:
    step, ours, plain, reference = both(place)
    for seed in range(STEPS):
        x, y = batch(place, seed)
        step(*weft.shard((x, y), mesh_on(place), P("dp")))
        written_out(plain, reference, squares, x, y)
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
            assert a.grad.placements == a.placements
            torch.testing.assert_close(a.grad.full_tensor(), b.grad, rtol=1e-9, atol=1e-9)
        if seed % 2:
            ours.zero_grad()


def test_results_stay_when_the_step_runs_again(place: str) -> None:
    step, _, plain, reference = both(place)
    losses, want = [], []
    for seed in range(STEPS):
        x, y = batch(place, seed)
        losses.append(step(*weft.shard((x, y), mesh_on(place), P("dp"))))
        want.append(written_out(plain, reference, squares, x, y))
    assert [loss.item() for loss in losses] == pytest.approx(want, rel=1e-9)
    assert not any(loss.requires_grad for loss in losses)


def test_batches_of_other_sizes_are_recorded_for_themselves(place: str) -> None:
    step, ours, plain, reference = both(place)
    for seed in range(12):
        x, y = batch(place, seed, rows=8 + 2 * (seed % 2))
        step(*weft.shard((x, y), mesh_on(place), P("dp")))
        written_out(plain, reference, squares, x, y)
    assert_same_weights(ours, plain)
    assert step.recordings == (0 if place == "eager" else 2)


@pytest.mark.usefixtures("simulated_gpu")
def test_there_is_a_bound_to_recordings() -> None:
    step, *_ = both("simulated")
    for rows in range(2, 22):
        for seed in range(3):
            step(*weft.shard(batch("simulated", seed, rows), mesh_on("simulated"), P("dp")))
    assert step.recordings == 16


def test_a_learning_rate_may_change(place: str) -> None:
    step, ours, plain, reference = both(place)
    mine = step._optimizer
    for seed in range(9):
        for optimizer in (mine, reference):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + seed // 5)
        x, y = batch(place, seed)
        step(*weft.shard((x, y), mesh_on(place), P("dp")))
        written_out(plain, reference, squares, x, y)
    assert_same_weights(ours, plain)


def test_modules_may_change_between_training_and_evaluation(place: str) -> None:
    step, ours, plain, reference = both(place)
    for seed in range(10):
        for model in (ours, plain):
            model.train(seed < 5)
        x, y = batch(place, seed)
        step(*weft.shard((x, y), mesh_on(place), P("dp")))
        written_out(plain, reference, squares, x, y)
    assert_same_weights(ours, plain)


def test_who_shares_memory_with_parameters_does_not_see_them_change(place: str) -> None:
    step, ours, plain, reference = both(place)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for seed in range(12):
        x, y = batch(place, seed)
        step(*weft.shard((x, y), mesh_on(place), P("dp")))
        written_out(plain, reference, squares, x, y)
        if seed in (4, 8):
            kept.append((ours[0].weight.detach().full_tensor(), plain[0].weight.detach().clone()))
    for a, b in kept:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert_same_weights(ours, plain)


def test_state_may_be_loaded(place: str) -> None:
    step, ours, plain, reference = both(place)
    early: list[dict[str, object]] = []
    for seed in range(12):
        if seed == 2:
            early = [copy.deepcopy(x.state_dict()) for x in (ours, step._optimizer, plain, reference)]
        if seed == 7:
            for x, state in zip((ours, step._optimizer, plain, reference), early, strict=True):
                x.load_state_dict(state)
        x, y = batch(place, seed)
        step(*weft.shard((x, y), mesh_on(place), P("dp")))
        written_out(plain, reference, squares, x, y)
    assert_same_weights(ours, plain)


def test_logs_say_what_each_run_moves(place: str) -> None:
    step, *_ = both(place)
    seen = []
    for seed in range(STEPS):
        with weft.comm_log() as log:
            step(*weft.shard(batch(place, seed), mesh_on(place), P("dp")))
        seen.append([(record.kind, record.total_bytes) for record in log])
    assert seen[0]
    assert all(moved == seen[0] for moved in seen)


def test_numbers_in_a_batch_are_part_of_what_is_recorded(place: str) -> None:
    plain = perceptron(place)
    ours = weft.nn.shard_module(copy.deepcopy(plain), mesh_on(place), LAYOUTS)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, plain))

    def scaled(model: nn.Module, x: torch.Tensor, y: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return squares(model, x, y) * by

    step = capture_step(ours, mine, scaled)
    for seed in range(10):
        by = 1.0 + seed % 2
        x, y = batch(place, seed)
        step(*weft.shard((x, y), mesh_on(place), P("dp")), by=by)
        written_out(plain, theirs, lambda m, x, y, by=by: scaled(m, x, y, by), x, y)
    assert_same_weights(ours, plain)


@pytest.mark.gpu
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("fused", [False, True])
def test_adamw_on_a_gpu(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    monkeypatch.setenv("WEFT_VIRTUAL_ACCELERATORS", "8")
    plain = perceptron("cuda")
    ours = weft.nn.shard_module(copy.deepcopy(plain), mesh_on("cuda"), LAYOUTS)
    mine, theirs = (torch.optim.AdamW(m.parameters(), lr=0.01, fused=fused) for m in (ours, plain))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in (mine, theirs)]
    step = capture_step(ours, mine, squares, cuda_graph=True)
    for seed in range(12):
        x, y = batch("cuda", seed)
        loss = step(*weft.shard((x, y), mesh_on("cuda"), P("dp")))
        assert loss.item() == pytest.approx(written_out(plain, theirs, squares, x, y), rel=1e-5)
        for schedule in schedules:
            schedule.step()
    assert step.recordings == 1
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.full_tensor(), b, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.usefixtures("memory")
def test_dropout_draws_what_the_eager_step_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_VIRTUAL_ACCELERATORS", "8")
    losses = []
    for recorded in (True, False):
        torch.manual_seed(0)
        with torch.device("cpu"):
            model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4)).double().to("cuda")
        model = weft.nn.shard_module(model, mesh_on("cuda"), LAYOUTS)
        step = capture_step(model, torch.optim.SGD(model.parameters(), lr=0.1), squares, cuda_graph=recorded)
        torch.manual_seed(1)
        inputs = [weft.shard(batch("cuda", seed), mesh_on("cuda"), P("dp")) for seed in range(STEPS)]
        losses.append([step(*x).item() for x in inputs])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_two_processes_take_a_step_together() -> None:
    with Processes(
        [str(Path(__file__).with_name("step_in_processes.py"))], 2, {"CUDA_VISIBLE_DEVICES": ""}
    ) as processes:
        ended = processes.wait(100)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err


@pytest.mark.usefixtures("memory")
def test_what_cannot_be_recorded_is_refused_where_that_was_asked_for() -> None:
    step, *_ = both("eager", cuda_graph=True)
    with pytest.raises(ValueError, match=r"cannot be recorded as a CUDA graph: it needs everything on one GPU, .* cpu"):
        step(*weft.shard(batch("eager", 0), mesh_on("eager"), P("dp")))


@pytest.mark.usefixtures("simulated_gpu", "memory")
def test_what_makes_the_host_wait_runs_as_it_is() -> None:
    plain = perceptron("simulated")
    ours = weft.nn.shard_module(copy.deepcopy(plain), mesh_on("simulated"), LAYOUTS)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, plain))

    def counted(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        times = len(torch.ones(3).nonzero())
        return squares(model, x, y) * times

    step = capture_step(ours, mine, counted)
    for seed in range(5):
        x, y = batch("simulated", seed)
        step(*weft.shard((x, y), mesh_on("simulated"), P("dp")))
        written_out(plain, theirs, counted, x, y)
    assert_same_weights(ours, plain)
    assert (step.recordings, step.reason) == (0, "operation not permitted when stream is capturing")


@pytest.mark.usefixtures("simulated_gpu")
def test_an_optimizer_that_counts_on_the_host_is_not_recorded() -> None:
    model = weft.nn.shard_module(perceptron("simulated"), mesh_on("simulated"), LAYOUTS)
    step = capture_step(model, torch.optim.Adagrad(model.parameters()), squares)
    for seed in range(4):
        step(*weft.shard(batch("simulated", seed), mesh_on("simulated"), P("dp")))
    assert (step.recordings, step.reason.partition(":")[0]) == (0, "Adagrad counts its steps on the host")


def test_what_is_not_what_it_should_be_is_said_at_once() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module first, but got 3"):
        capture_step(3, optimizer, squares)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes a torch.optim.Optimizer after the model"):
        capture_step(model, squares, optimizer)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes a function for loss_fn, but got None"):
        capture_step(model, optimizer, None)  # type: ignore[arg-type]
    before = [p.detach().clone() for p in model.parameters()]
    for wrong, error, text in (
        (lambda model, x: 3.0, TypeError, "gives the loss, or a tuple whose first item it is, but it gave 3.0"),
        (lambda model, x: model(x), ValueError, r"has the shape \(1, 2\)"),
        (lambda model, x: x.sum(), ValueError, "needs no gradient"),
    ):
        with pytest.raises(error, match=text):
            capture_step(model, optimizer, wrong)(torch.ones(1, 2))
    assert all(map(torch.equal, before, model.parameters()))
