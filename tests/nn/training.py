"""Training one model twice, on one device and on a mesh, with the same data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

import weft
from examples.models import gpt2, llama, mlp, resnet
from weft import P

MESH = weft.make_mesh({"dp": 2, "tp": 2})
STEPS = 20


@dataclass(frozen=True)
class Case:
    """A model, its layouts over "tp", its data, and which dim of the data is a sequence."""

    make: Callable[[], torch.nn.Module]
    tensor_parallel: Mapping[str, object]
    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    tokens: bool


CASES = {
    "mlp": Case(lambda: mlp.MLP(8, 12, 2, 5), mlp.LAYOUTS["tp"], (4, 8), (4,), False),
    "gpt2": Case(lambda: gpt2.GPT2(11, 6, 8, 2, 1), gpt2.LAYOUTS["tp"], (4, 6), (4, 6), True),
    "llama": Case(lambda: llama.Llama(11, 6, 8, 2, 2, 12, 1), llama.LAYOUTS["tp"], (4, 6), (4, 6), True),
    "resnet": Case(lambda: resnet.ResNet(4, 6, 1, 5), resnet.LAYOUTS["tp"], (4, 3, 6, 6), (4,), False),
}


def layouts(case: Case) -> dict[str, tuple[Mapping[str, object], P]]:
    """The layouts to train in: patterns for the parameters, and a spec for the data."""
    found: dict[str, tuple[Mapping[str, object], P]] = {
        "dp": ({}, P("dp")),
        "tp": (case.tensor_parallel, P()),
        "dp x tp": (case.tensor_parallel, P("dp")),
    }
    if not case.tokens:
        found["fully sharded"] = ({"*": P("dp")}, P("dp"))
    else:
        found["sequence parallel"] = (case.tensor_parallel, P("dp", "tp"))
    return found


def data(case: Case, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step % 4)
    if case.tokens:
        return tuple(torch.randint(0, 11, shape, generator=generator) for shape in (case.inputs, case.targets))
    inputs = torch.randn(case.inputs, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 5, case.targets, generator=generator)


def model_of(case: Case) -> torch.nn.Module:
    torch.manual_seed(0)
    return case.make().double()


def losses(case: Case, model: torch.nn.Module, spec: P | None, steps: int = STEPS) -> list[float]:
    """The loss of each step; `spec` lays the data out, None leaves it plain."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = []
    for step in range(steps):
        inputs, targets = data(case, step)
        if spec is not None:
            inputs = weft.shard(inputs, MESH, spec)
            targets = weft.shard(targets, MESH, P(*spec[: targets.dim()]))
        optimizer.zero_grad()
        logits = model(inputs)
        loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen.append(loss.item())
    return seen
