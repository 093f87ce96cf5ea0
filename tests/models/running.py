"""What a model does: its outputs and gradients, what three steps make of it, and what it generates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

import weft
from tests.models.catalogue import Case
from tests.models.doubling import in_float64
from tests.models.layouts import laid, sharded
from weft.sharding import DeviceMesh

STEPS = 3
TOLERANCE = 1e-9
Found = dict[str, torch.Tensor]


def run(case: Case, mesh: DeviceMesh | None) -> Found:
    """What a model yields on a mesh, or as plain torch."""
    model, inputs = case.fresh(), case.inputs()
    with in_float64():
        if mesh is not None:
            model, inputs = sharded(model, mesh), laid(inputs, mesh)
        return yielded(model, inputs, generates=case.generates)


def yielded(model: torch.nn.Module, inputs: Mapping[str, object], *, generates: bool) -> Found:
    """What a model yields as it is laid out."""
    return {name: _whole(x) for name, x in _yielded(model.train(), inputs, generates)}


def _yielded(
    model: torch.nn.Module, inputs: Mapping[str, object], generates: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(3)  # dropout draws the same in every layout
    for step in range(STEPS):
        result = model(**inputs)
        if step == 0:
            yield from _tensors("output", result.to_tuple())
        yield f"loss {step}", result.loss
        optimizer.zero_grad()
        result.loss.backward()
        if step == 0:
            yield from ((f"gradient of {n}", p.grad) for n, p in model.named_parameters() if p.grad is not None)
        optimizer.step()
    yield from ((f"{name} after {STEPS} steps", p) for name, p in model.named_parameters())
    if generates:
        prompt = {name: x for name, x in inputs.items() if name != "labels"}
        yield "generated", model.eval().generate(**prompt, max_new_tokens=5, do_sample=False)


def _tensors(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _tensors(f"{name}.{i}", item)
    elif hasattr(value, "to_tuple"):
        yield from _tensors(name, value.to_tuple())


def _whole(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    return x.full_tensor() if isinstance(x, weft.Tensor) else x.clone()


def differences(found: Found, expected: Found) -> list[str]:
    """What is not as plain torch has it."""
    said = [f"{name} is on one side only" for name in sorted(found.keys() ^ expected.keys())]
    for name, value in expected.items():
        if name not in found:
            continue
        if found[name].shape != value.shape or found[name].dtype != value.dtype:
            said.append(
                f"{name} is {tuple(found[name].shape)} {found[name].dtype}, not {tuple(value.shape)} {value.dtype}"
            )
        elif not torch.allclose(found[name], value, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=False):
            said.append(f"{name} is off by {(found[name] - value).abs().max().item():.2e}")
    return said
