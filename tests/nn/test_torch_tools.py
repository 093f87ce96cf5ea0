"""What torch offers for training works on sharded parameters as on plain ones."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import weft
from weft import P

MESH = weft.make_mesh({"dp": 2, "tp": 3})
LAYOUT = {"0.*": P("tp"), "2.weight": P(None, "tp")}


def pair() -> tuple[nn.Module, nn.Module]:
    """A plain module and the same one, sharded; both with gradients."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)).double()
    sharded = weft.nn.shard_module(copy.deepcopy(plain), MESH, LAYOUT)
    x = torch.randn(6, 5, dtype=torch.float64)
    for module in (plain, sharded):
        module(x).square().sum().backward()
    return plain, sharded


def whole(x: object) -> object:
    return x.full_tensor() if isinstance(x, weft.Tensor) else x


def assert_alike(plain: nn.Module, sharded: nn.Module) -> None:
    for one, other in zip(plain.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(whole(other.detach()), one.detach(), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(whole(other.grad), one.grad, rtol=1e-9, atol=1e-12)


TOOLS: dict[str, Callable[[nn.Module], object]] = {
    "clip_grad_norm_": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.5),
    "clip_grad_norm_ foreach": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.5, foreach=True),
    "clip_grad_norm_ inf": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.5, norm_type=float("inf")),
    "clip_grad_value_": lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.1),
    "get_total_norm": lambda m: nn.utils.get_total_norm([p.grad for p in m.parameters()]),
    "parameters_to_vector": lambda m: nn.utils.parameters_to_vector(m.parameters()).detach(),
    "vector_to_parameters": lambda m: nn.utils.vector_to_parameters(torch.arange(74.0).double(), m.parameters()),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_utilities(tool: str) -> None:
    plain, sharded = pair()
    expected, found = TOOLS[tool](plain), TOOLS[tool](sharded)
    if expected is not None:
        torch.testing.assert_close(whole(found), expected, rtol=1e-9, atol=1e-12)
    assert_alike(plain, sharded)


OPTIMIZERS: dict[str, Callable[[object], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_alike_with_state_in_the_parameters_layout(name: str) -> None:
    plain, sharded = pair()
    optimizers = [OPTIMIZERS[name](module.parameters()) for module in (plain, sharded)]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.step()
    assert_alike(plain, sharded)
    for parameter, state in optimizers[1].state.items():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                assert value.mapping.layout(value.dim()) is parameter.mapping.layout(value.dim())


def test_averaged_models_and_schedulers() -> None:
    plain, sharded = pair()
    averages = [torch.optim.swa_utils.AveragedModel(module) for module in (plain, sharded)]
    for module, average in zip((plain, sharded), averages, strict=True):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        for _ in range(3):
            optimizer.step()
            schedule.step()
            average.update_parameters(module)
    for one, other in zip(averages[0].parameters(), averages[1].parameters(), strict=True):
        torch.testing.assert_close(whole(other.detach()), one.detach(), rtol=1e-9, atol=1e-12)


def test_activation_checkpointing_and_hooks() -> None:
    plain, sharded = pair()
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    seen = []
    sharded[0].register_full_backward_hook(lambda module, gin, gout: seen.append(gout[0].shape))
    for module in (plain, sharded):
        module.zero_grad()
        torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).square().sum().backward()
    assert_alike(plain, sharded)
    assert seen == [torch.Size([6, 7])]


def test_state_dicts_go_both_ways() -> None:
    plain, sharded = pair()
    sharded.load_state_dict({name: 2 * x for name, x in plain.state_dict().items()})
    plain.load_state_dict({name: whole(x) for name, x in sharded.state_dict().items()})
    assert_alike(plain, sharded)
    assert sharded[0].weight.mapping.spec == P("tp")


def test_functional_calls() -> None:
    plain, sharded = pair()
    x = torch.randn(6, 5, dtype=torch.float64)
    results = []
    for module in (plain, sharded):
        values = {name: p.detach() for name, p in module.named_parameters()}

        def loss(values: dict[str, torch.Tensor], module: nn.Module = module) -> torch.Tensor:
            return torch.func.functional_call(module, values, (x,)).square().sum()

        results.append(torch.func.grad(loss)(values))
    for name, expected in results[0].items():
        torch.testing.assert_close(whole(results[1][name]), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("broken", [False, True], ids=["finite", "not finite"])
def test_loss_scaling(broken: bool) -> None:
    modules = pair()
    scales = []
    for module in modules:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        module.zero_grad()
        scaler.scale(module(torch.ones(6, 5, dtype=torch.float64)).square().sum()).backward()
        if broken:
            with torch.no_grad():
                module[2].weight.grad[3, 6] = float("inf")
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4.0, 4.0] if broken else [8.0, 8.0]
    if not broken:
        assert_alike(*modules)


def test_lower_precision() -> None:
    plain, sharded = pair()
    x = torch.randn(6, 5, dtype=torch.float64)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        expected, found = plain.float()(x.float()), sharded.float()(weft.shard(x.float(), MESH, P("dp")))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.full_tensor(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("wrap", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrizations(wrap: str) -> None:
    torch.manual_seed(0)
    plain = getattr(nn.utils.parametrizations, wrap)(nn.Linear(5, 7).double())
    sharded = weft.nn.shard_module(copy.deepcopy(plain), MESH, {"*.original*": P("tp")})
    x = torch.randn(6, 5, dtype=torch.float64)
    for module in (plain, sharded):
        module(x).square().sum().backward()
    assert_alike(plain, sharded)
