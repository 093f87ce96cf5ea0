"""A fully sharded module trains as the plain one does; a block takes one gather and one reduce-scatter."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.func import functional_call, jacrev, vmap
from torch.nn.utils.parametrizations import weight_norm

import weft
from examples.models import mlp
from tests.multiprocess.launching import Processes
from tests.nn.fully_sharding import (
    DEPTH,
    Deep,
    Recomputed,
    batch,
    check_compiled,
    check_from_inside,
    check_half_precision,
    check_replaced,
    check_same,
    check_skipped,
    gathered_bytes,
    laid,
    loss,
    perceptron,
    trained,
    transformer,
    twins,
)
from weft import P
from weft.nn.fully_sharded.held import siblings_of
from weft.runtime import machine

DEVICES = [(weft.Accelerator if weft.accelerator_count() else weft.CPU)(i) for i in range(8)]


@pytest.fixture(params=["separate", "unified"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


@pytest.mark.parametrize("make", [perceptron, transformer], ids=["perceptron", "transformer"])
def test_training_is_that_of_the_plain_module(make: object) -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(make, mesh, None)
    log = trained(models, mesh)
    kinds = log.counts()
    assert (kinds["all_gather"], kinds["reduce_scatter"]) == (2 * DEPTH, DEPTH + 1)
    received = sum(record.total_bytes for record in log if record.kind == "all_gather")
    assert received < 2 * gathered_bytes(models[0], 4), "more than FSDP2, which gathers everything twice"
    assert {record.op for record in log if record.kind == "all_gather"} == {"fully_shard"}
    for p in models[1].parameters():
        assert "dp" in p._layout.dim_of
        assert p.grad._layout is p._layout


@pytest.mark.parametrize("options", [{"keep_bytes": 256 << 20}, {"reshard_after_forward": False}], ids=str)
def test_parameters_that_stay_are_gathered_once(options: dict[str, object]) -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(perceptron, mesh, None, **options)
    log = trained(models, mesh)
    assert log.counts() == {"all_gather": DEPTH + 1, "reduce_scatter": DEPTH + 1}
    gathers = sum(record.total_bytes for record in log if record.kind == "all_gather")
    assert gathers == gathered_bytes(models[0], 4)


@pytest.mark.parametrize("kept", [1, 2, DEPTH])
def test_as_many_of_the_last_blocks_stay_as_fit(memory: str, kept: int) -> None:
    """Counted in what they take on a device that has them whole, split over further axes though they may be."""
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    block = 8 * (2 * 12 * 8 // 2 + 12 // 2 + 8)
    models = twins(perceptron, mesh, mlp.LAYOUTS["tp"], keep_bytes=kept * block)
    seen: list[list[weft.Tensor]] = [[] for _ in range(DEPTH)]
    for listed, layer in zip(seen, models[1].layers, strict=True):
        layer.register_forward_pre_hook(lambda module, _, listed=listed: listed.append(module.up.weight))
    log = trained(models, mesh, 1)
    gathers = [record for record in log if record.op == "fully_shard"]
    assert len(gathers) == 2 * DEPTH + 1 - kept
    output = models[1](laid(batch(models[0], 0), mesh))
    if memory == "separate":
        assert [0 not in held(listed[-1:]) for listed in seen] == [False] * (DEPTH - kept) + [True] * kept
    output.sum().backward()
    assert memory == "unified" or held([x for listed in seen for x in listed]) == {0}


def test_with_tensor_parallel_and_replicated_axes() -> None:
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    models = twins(perceptron, mesh, mlp.LAYOUTS["tp"])
    assert models[1].layers[0].up.weight.mapping.spec == P(("tp", "dp"), None)
    trained(models, mesh)
    mesh = weft.make_mesh({"rep": 2, "dp": 2})
    models = twins(perceptron, mesh, None, replicate="rep")
    trained(models, mesh)
    assert models[1].head.weight._layout.split_axes == ("dp",)


def test_what_is_computed_anew_is_gathered_as_often() -> None:
    mesh = weft.make_mesh({"dp": 4})
    log = trained(twins(lambda: Recomputed(mlp.MLP(8, 12, DEPTH, 5)), mesh, None), mesh)
    assert log.counts() == {"all_gather": 2 * DEPTH, "reduce_scatter": DEPTH + 1}


def test_what_is_computed_anew_inside_of_a_block_finds_it_whole() -> None:
    mesh = weft.make_mesh({"dp": 4})
    log = trained(twins(lambda: Deep(recomputes=True), mesh, None), mesh)
    assert log.counts() == {"all_gather": 2 * DEPTH - 1, "reduce_scatter": DEPTH}
    half = twins(lambda: Deep(recomputes=True), mesh, None, param_dtype=torch.float32)
    loss(half[1], laid(batch(half[1], 0), mesh)).backward()


def held(whole: list[weft.Tensor]) -> set[int]:
    return {piece.untyped_storage().nbytes() for x in whole for piece in pieces_of(x)}


def pieces_of(x: weft.Tensor) -> tuple[torch.Tensor, ...]:
    """Without asking for them: who asks fills them."""
    value = x._value
    return value.pieces if value.is_made else value.source._pieces


@pytest.mark.parametrize("recomputes", [False, True], ids=["saved", "recomputed"])
def test_gradients_may_come_from_inside_of_a_block(memory: str, recomputes: bool) -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(lambda: Deep(recomputes), mesh, None)
    seen: list[weft.Tensor] = []
    for layer in models[1].layers:
        layer.register_forward_pre_hook(lambda module, _: seen.extend((module.up.weight, module.scale)))
    log = check_from_inside(models, mesh)
    gathered = [record for record in log if record.op == "fully_shard"]
    assert len(gathered) == DEPTH - 1 or memory == "unified"
    assert memory == "unified" or held(seen) == {0}


def test_gradients_go_through_blocks_that_are_frozen(memory: str) -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(lambda: Deep().requires_grad_(False), mesh, None)
    seen: list[weft.Tensor] = []
    models[1].layers[1].register_forward_pre_hook(lambda module, _: seen.extend((module.up.weight, module.scale)))
    given = batch(models[0], 0).requires_grad_(), laid(batch(models[0], 0), mesh).requires_grad_()
    for model, x in zip(models, given, strict=True):
        loss(model, x).backward()
    torch.testing.assert_close(given[1].grad.full_tensor(), given[0].grad)
    assert memory == "unified" or held(seen) == {0}


class Adapted(torch.nn.Module):
    """Frozen parameters around layers, and in them, of which only small ones are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2, bias=False), torch.nn.Linear(2, 8))
            for _ in range(3)
        )
        self.requires_grad_(False)
        for layer in self.layers:
            layer[1].requires_grad_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(x)


def test_frozen_parameters_around_trained_ones_are_gathered_once(memory: str) -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(Adapted, mesh, None)
    seen: list[weft.Tensor] = []
    models[1].head.register_forward_pre_hook(lambda module, _: seen.append(module.weight))
    loss(models[0], batch(models[0], 0)).backward()
    with weft.comm_log() as log:
        loss(models[1], laid(batch(models[0], 0), mesh)).backward()
    # The last layer stays whole from forward to backward, and so does what is in none.
    assert log.counts()["all_gather"] == 1 + 3 + 2
    for plain, x in zip(models[0].parameters(), models[1].parameters(), strict=True):
        if plain.grad is not None:
            torch.testing.assert_close(x.grad.full_tensor(), plain.grad)
    assert memory == "unified" or held(seen) == {0}


def test_what_is_gathered_ahead_and_not_used_is_logged() -> None:
    check_skipped(weft.make_mesh({"dp": 4}))


def test_what_nobody_differentiates_is_let_go(memory: str) -> None:
    mesh = weft.make_mesh({"dp": 4})
    _, model = twins(Deep, mesh, None)
    seen: list[weakref.ref[torch.Tensor]] = []
    model.layers[0].register_forward_pre_hook(lambda module, _: seen.append(weakref.ref(module.up.weight)))
    for _ in range(2):
        model(laid(batch(model, 0), mesh))
    for layer in model.layers:
        layer.left = None
    gc.collect()
    assert seen[0]() is None
    assert seen[1]() is not None, "the last run may still be differentiated"


def test_memory_is_given_back(memory: str) -> None:
    mesh = weft.make_mesh({"dp": 4})
    _, model = twins(perceptron, mesh, None)
    seen: list[weft.Tensor] = []
    model.layers[0].up.register_forward_pre_hook(lambda module, _: seen.append(module.weight))
    output = model(laid(batch(model, 0), mesh))
    (whole,) = seen
    assert whole.mapping.is_fully_replicated
    assert model.layers[0].up.weight._layout.split_axes == ("dp",)
    assert held(seen) == ({0} if memory == "separate" else {12 * 8 * 8})
    output.sum().backward()
    assert memory == "unified" or held(seen) == {0}


def test_parameters_that_rest_elsewhere_are_fetched(memory: str) -> None:
    mesh, rest = (weft.make_mesh({"dp": 2, "tp": 2}, devices=DEVICES[at : at + 4]) for at in (0, 4))
    models = twins(perceptron, mesh, mlp.LAYOUTS["tp"], offload=rest)
    counts = trained(models, mesh).counts()
    assert (counts["all_gather"], counts["reduce_scatter"]) == (2 * DEPTH, DEPTH + 1)
    optimizer = torch.optim.AdamW(models[1].parameters())
    seen: list[weft.Tensor] = []
    models[1].layers[0].up.register_forward_pre_hook(lambda module, _: seen.append(module.weight))
    loss(models[1], laid(batch(models[0], 0), mesh)).backward()
    optimizer.step()
    assert seen[0].mesh == mesh
    assert held(seen) == {0}
    for p in models[1].parameters():
        assert p.mesh == p.grad.mesh == optimizer.state[p]["exp_avg"].mesh == rest


def test_what_rests_in_host_memory_is_on_the_host() -> None:
    mesh = weft.make_mesh({"rep": 2, "dp": 2}, devices=DEVICES[:4])
    models = twins(transformer, mesh, None, replicate="rep", offload="cpu", param_dtype=torch.float64)
    trained(models, mesh)
    assert {p.device.type for p in models[1].parameters()} == {"cpu"}
    assert {p.grad.device.type for p in models[1].parameters()} == {"cpu"}


def test_compiled_code_trains_alike() -> None:
    check_compiled(weft.make_mesh({"dp": 4}))


def test_gradients_are_kept_until_they_are_reduced() -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(perceptron, mesh, None)
    with weft.comm_log() as log, weft.nn.no_sync(models[1]):
        loss(models[1], laid(batch(models[0], 0), mesh)).backward()
        loss(models[1], laid(batch(models[0], 1), mesh)).backward()
    assert "reduce_scatter" not in log.counts()
    assert all(p.grad is None for p in models[1].parameters())
    with weft.comm_log() as log:
        loss(models[1], laid(batch(models[0], 2), mesh)).backward()
    assert log.counts()["reduce_scatter"] == DEPTH + 1
    for seed in range(3):
        loss(models[0], batch(models[0], seed)).backward()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(q.grad.full_tensor(), p.grad)


DROPPED: dict[str, Callable[[torch.nn.Module, torch.optim.Optimizer], object]] = {
    "module.zero_grad()": lambda model, _: model.zero_grad(),
    "module.zero_grad(set_to_none=False)": lambda model, _: model.zero_grad(set_to_none=False),
    "optimizer.zero_grad()": lambda _, optimizer: optimizer.zero_grad(),
    "optimizer.zero_grad(set_to_none=False)": lambda _, optimizer: optimizer.zero_grad(set_to_none=False),
    "p.grad = None": lambda model, _: [setattr(p, "grad", None) for p in model.parameters()],
    "del p.grad": lambda model, _: [delattr(p, "grad") for p in model.parameters()],
}


@pytest.mark.parametrize("way", DROPPED)
def test_gradients_that_are_kept_are_dropped_with_the_others(way: str) -> None:
    mesh = weft.make_mesh({"dp": 2})
    models = twins(perceptron, mesh, None)
    optimizer = torch.optim.SGD(models[1].parameters(), lr=0.1)
    loss(models[1], laid(batch(models[0], 0), mesh)).backward()  # of which there is a gradient
    with weft.nn.no_sync(models[1]):
        loss(models[1], laid(batch(models[0], 1), mesh)).backward()
    DROPPED[way](models[1], optimizer)
    with weft.nn.no_sync(models[1]):
        loss(models[1], laid(batch(models[0], 2), mesh)).backward()
    assert all(p.grad is None or not p.grad.any() for p in models[1].parameters())
    loss(models[1], laid(batch(models[0], 3), mesh)).backward()
    for seed in (2, 3):
        loss(models[0], batch(models[0], seed)).backward()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(q.grad.full_tensor(), p.grad)


def test_where_little_is_computed_activations_move_instead() -> None:
    mesh = weft.make_mesh({"dp": 4})
    received = {}
    for rows in (4, 512):
        for fewest in (False, True):
            torch.manual_seed(0)
            model = weft.nn.fully_shard(mlp.MLP(16, 64, DEPTH, 4), mesh, fewest_bytes=fewest, keep_bytes=0)
            x = weft.shard(torch.ones(rows, 16), mesh, P("dp"))
            model(x).sum().backward()
            with weft.comm_log() as log:
                model(x).square().mean().backward()
            received[rows, fewest] = log.bytes_received
            assert all(p.grad._layout is p._layout for p in model.parameters())
    assert received[4, True] < 0.8 * received[4, False]
    assert received[512, True] <= received[512, False]
    models = twins(perceptron, mesh, None, fewest_bytes=True)
    trained(models, mesh)


def test_in_half_precision_half_the_bytes_travel() -> None:
    check_half_precision(weft.make_mesh({"dp": 4}))


def test_frozen_tied_and_unused_parameters() -> None:
    mesh = weft.make_mesh({"dp": 4})

    def make() -> torch.nn.Module:
        model = mlp.MLP(8, 12, DEPTH, 5)
        model.layers[1].up.weight = model.layers[0].up.weight
        model.layers[2].down.weight.requires_grad_(False)
        model.layers[2].unused = torch.nn.Linear(2, 2)
        return model

    models = twins(make, mesh, None)
    assert models[1].layers[1].up.weight is models[1].layers[0].up.weight
    for model, x in zip(models, (batch(models[0], 0), laid(batch(models[0], 0), mesh)), strict=True):
        loss(model, x).backward()
    for (name, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(q.grad.full_tensor(), p.grad)


def test_what_is_frozen_may_be_trained_later() -> None:
    """Between steps, and between a forward pass and its backward pass."""
    mesh = weft.make_mesh({"dp": 4})
    models = twins(perceptron, mesh, None)
    for model in models:
        model.head.requires_grad_(False)
        model.layers[0].up.requires_grad_(False)
    for is_trained in (False, True):
        for model in models:
            if is_trained:
                model.requires_grad_()
            found = loss(model, batch(model, 0) if model is models[0] else laid(batch(model, 0), mesh))
            model.layers[1].down.requires_grad_(not is_trained)
            found.backward()
        for (name, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None:
                torch.testing.assert_close(q.grad.full_tensor(), p.grad)


def _twice(model: torch.nn.Module, x: torch.Tensor) -> None:
    loss(model, model.layers[0](model.layers[0](x))).backward()


def _two_losses(model: torch.nn.Module, x: torch.Tensor) -> None:
    found = model(x)
    found.square().mean().backward(retain_graph=True)
    found.mean().backward()


def _two_runs(model: torch.nn.Module, x: torch.Tensor) -> None:
    first, second = model(x), model(2 * x)
    with torch.no_grad():
        model(3 * x)
    second.square().mean().backward()
    first.mean().backward()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("program", [_twice, _two_losses, _two_runs])
def test_runs_may_overlap(program: Callable[[torch.nn.Module, torch.Tensor], None], keeps: bool) -> None:
    """A block that runs twice, a graph that is gone back through twice, runs that end in another order."""
    mesh = weft.make_mesh({"dp": 4})
    models = twins(perceptron, mesh, None, reshard_after_forward=not keeps)
    x = batch(models[0], 0)
    program(models[0], x)
    program(models[1], laid(x, mesh))
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(q.grad.full_tensor(), p.grad)


def test_evaluation_and_errors_leave_the_parameters_in_place() -> None:
    mesh = weft.make_mesh({"dp": 4})
    plain, model = twins(perceptron, mesh, None)
    x = batch(plain, 0)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(model(laid(x, mesh)).full_tensor(), plain(x))
    before = dict(model.named_parameters())
    with pytest.raises(RuntimeError):
        model(weft.shard(torch.ones(8, 3).double(), mesh, P("dp")))
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in before.items()}
    trained([plain, model], mesh, 1)
    check_same([plain, model])


def test_after_a_backward_pass_that_failed() -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(perceptron, mesh, None)
    x = laid(batch(models[0], 0), mesh).requires_grad_()
    handle = x.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss(models[1], x).backward()
    handle.remove()
    assert all("dp" in p._layout.dim_of for p in models[1].parameters())
    assert all(p.grad is None for p in models[1].parameters())
    trained(models, mesh, 1)


def test_a_failed_backward_pass_that_torch_still_keeps() -> None:
    """As where a thread for a device lets go of it only after the program has seen the error."""
    mesh = weft.make_mesh({"dp": 4})
    models = twins(perceptron, mesh, None)
    x = laid(batch(models[0], 0), mesh)
    kept = []

    def fail(_: torch.Tensor) -> None:
        kept.append(siblings_of(models[1]).current_pass())
        raise ZeroDivisionError

    def let_go(*_: object) -> None:
        kept.clear()

    def hooked(module: torch.nn.Module, _: object, output: torch.Tensor) -> None:
        output.register_hook(fail)

    inner = models[1].layers[1]
    handle = inner.up.register_forward_hook(hooked)
    with pytest.raises(ZeroDivisionError):
        loss(models[1], x).backward()
    handle.remove()
    assert kept[0].standing, "nothing was left: there is nothing to test"
    assert all("dp" in p._layout.dim_of for p in models[1].state_dict().values())
    handle = inner.down.register_forward_pre_hook(let_go)
    seen: list[weft.Tensor] = []
    inner.down.register_forward_hook(lambda module, *_: seen.append(module.weight))
    trained(models, mesh, 1)
    assert not kept
    assert seen[0].mapping.is_fully_replicated, (
        "what was let go of late has put the split parameters back while they ran"
    )


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_copies_train_by_themselves(copied: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    mesh = weft.make_mesh({"dp": 4})
    plain, model = twins(perceptron, mesh, None)
    loss(model, laid(batch(plain, 0), mesh)).backward()
    other = copied(model)
    model.zero_grad()
    other.zero_grad()
    trained([plain, other], mesh, 1)
    assert all(p.grad is None for p in model.parameters())


def test_hooks_of_parameters_are_called() -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(perceptron, mesh, None)
    seen: list[tuple[int, ...]] = []
    for p in models[1].parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.grad.shape)))
    for model, x in zip(models, (batch(models[0], 0), laid(batch(models[0], 0), mesh)), strict=True):
        model.layers[0].up.weight.register_hook(lambda grad: 2 * grad)
        model.layers[0].down.weight.register_hook(lambda grad: None)
        for _ in range(2):
            loss(model, x).backward()
    assert sorted(seen) == sorted(tuple(p.shape) for p in models[1].parameters() for _ in range(2))
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(q.grad.full_tensor(), p.grad)


def test_gradients_are_added_in_place() -> None:
    mesh = weft.make_mesh({"dp": 4})
    models = twins(perceptron, mesh, None)
    held: list[list[torch.Tensor]] = []
    for model, x in zip(models, (batch(models[0], 0), laid(batch(models[0], 0), mesh)), strict=True):
        loss(model, x).backward()
        held.append([p.grad for p in model.parameters()])
        model.zero_grad(set_to_none=False)
        for _ in range(2):
            loss(model, x).backward()
    for p, grad, expected in zip(models[1].parameters(), held[1], held[0], strict=True):
        assert p.grad is grad
        torch.testing.assert_close(grad.full_tensor(), expected)


def test_blocks_compute_with_parameters_that_replaced_theirs() -> None:
    check_replaced(weft.make_mesh({"dp": 4}))


def others(model: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: change(x.detach()) for name, x in model.named_parameters()}


def called_with(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.nn.Module, torch.Tensor], object]:
    return lambda model, x: functional_call(model, others(model, change), (x,))


def untied(model: torch.nn.Module, x: torch.Tensor) -> object:
    model.layers[0].up.weight = torch.nn.Parameter(model.layers[0].up.weight.detach() * 2)
    return model(x)


def parametrized(model: torch.nn.Module, x: torch.Tensor) -> object:
    weight_norm(model.layers[2].up)
    return model(x)


def loaded(model: torch.nn.Module, x: torch.Tensor) -> object:
    model.load_state_dict(weft.checkpoint.full_state_dict(model), assign=True)
    model.layers[1].up.weight = model.layers[0].up.weight
    return model(x)


def interleaved(model: torch.nn.Module, x: torch.Tensor) -> object:
    first = functional_call(model, others(model, lambda p: (2 * p).requires_grad_()), (x,))
    return (first + model(x)).sum().backward()


STRANGERS = [
    (untied, ValueError, "was tied and is not any more"),
    (parametrized, ValueError, "is gone: change modules first"),
    (loaded, ValueError, "a plain tensor, but has to have shape"),
    (interleaved, RuntimeError, "call backward() before it runs with others"),
    (called_with(lambda p: p * torch.ones((), requires_grad=True)), NotImplementedError, "give a leaf"),
    (lambda model, x: vmap(model)(x), NotImplementedError, "does not run inside of torch.func transforms"),
    (lambda model, x: jacrev(model)(x), NotImplementedError, "does not run inside of torch.func transforms"),
]


@pytest.mark.parametrize(("call", "kind", "text"), STRANGERS, ids=[text[:30] for *_, text in STRANGERS])
def test_parameters_that_blocks_cannot_compute_with_are_refused(
    call: Callable[[torch.nn.Module, torch.Tensor], object], kind: type[Exception], text: str
) -> None:
    mesh = weft.make_mesh({"dp": 4})
    torch.manual_seed(0)
    model = perceptron().double()
    model.layers[1].up.weight = model.layers[0].up.weight
    weft.nn.fully_shard(model, mesh, "dp", keep_bytes=0)
    with pytest.raises(kind) as raised:
        call(model, laid(batch(model, 0), mesh))
    assert text in str(raised.value)


def scaled() -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.scale = torch.nn.Parameter(torch.tensor(1.0))
    return module


OTHERS = weft.make_mesh({"dp": 4}, devices=[weft.CPU(i) for i in range(4, 8)])
ERRORS = [
    (lambda model, mesh: weft.nn.fully_shard(torch.ones(2), mesh), TypeError, "takes a torch.nn.Module, but got Tensor"),
    (lambda model, mesh: weft.nn.fully_shard(model, "dp"), TypeError, "needs a DeviceMesh, but got 'dp'"),
    (lambda model, mesh: weft.nn.fully_shard(model, mesh, "x"), ValueError, "dp=4 has no 'x': use one of 'dp'"),
    (lambda model, mesh: weft.nn.fully_shard(model, mesh, blocks="h.*"), ValueError, "'h.*' of blocks matches no submodule"),
    (lambda model, mesh: weft.nn.fully_shard(torch.nn.Linear(2, 2), mesh), ValueError, r"matches no submodule. The names are: none at all; blocks=()"),
    (lambda model, mesh: weft.nn.fully_shard(model, mesh, prefetch=-1), ValueError, "0 or more, but got -1"),
    (lambda model, mesh: weft.nn.fully_shard(model, mesh, keep_bytes=-1), ValueError, "0 bytes or more, but got -1"),
    (lambda model, mesh: weft.nn.fully_shard(model, mesh, param_dtype=torch.half, fewest_bytes=True), ValueError, "leave param_dtype out"),
    (lambda model, mesh: weft.nn.fully_shard(model, mesh, offload="disk"), ValueError, "'cpu' or a mesh of devices to rest on, but got 'disk'"),
    (lambda model, mesh: weft.nn.fully_shard(model, mesh, offload=weft.make_mesh({"x": 4})), ValueError, "rest on a mesh of the same axes, but dp=4"),
    (lambda model, mesh: weft.nn.fully_shard(model, mesh, offload="cpu", fewest_bytes=True), ValueError, "leave one out"),
    (lambda model, mesh: weft.nn.fully_shard(scaled(), mesh, offload=OTHERS, blocks=()), ValueError, "the scalar 'scale' away"),
    (lambda model, mesh: weft.nn.no_sync(model).__enter__(), ValueError, "no_sync takes a module that fully_shard has split"),
    (lambda model, mesh: [weft.nn.fully_shard(model, mesh) for _ in range(2)], ValueError, "is fully sharded already"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), ERRORS, ids=[text[:30] for *_, text in ERRORS])
def test_mistakes_are_named(call: object, kind: type[Exception], text: str) -> None:
    assert callable(call)
    with pytest.raises(kind) as raised:
        call(perceptron(), weft.make_mesh({"dp": 4}))
    assert text in str(raised.value)


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
def test_several_processes(memory: str, tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("fully_sharding.py"))
    count = 4 if memory == "separate" else 2
    with Processes([program, str(tmp_path)], count) as processes:
        ended = processes.wait(200)
    assert [process.out for process in ended] == ["done\n"] * count, "".join(process.err for process in ended)
