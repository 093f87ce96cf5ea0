"""Ten models in sizes that a test can afford, what they compute in the layouts that are chosen for them, and in plain torch.

By itself, what each of several processes runs: ten_models.py FILE, where the file says what was chosen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

import weft
from benchmarks.autoshard.picture_models import Perceptrons, ResNet, UNet
from benchmarks.autoshard.text_models import LanguageModel, Shape, Translator, VisionTransformer
from weft import P
from weft.paper.machine import Machine
from weft.planning import Link

STEPS = 2
TOLERANCE = 1e-9
Batch = tuple[torch.Tensor, ...]
Found = dict[str, torch.Tensor]
LLAMA = Shape(32, 48, 4, 40, 2, key_heads=2, gated=True, biased=False)


@dataclass(frozen=True)
class Small:
    """A model that gives its loss, and what it is given."""

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]

    def model(self) -> nn.Module:
        """The model, with the same weights each time."""
        torch.manual_seed(0)
        model = self.make().double()
        for parameter in model.parameters():  # some are made without values
            nn.init.normal_(parameter, std=0.2)
        return model

    def data(self) -> Batch:
        """The same batch each time."""
        torch.manual_seed(1)
        return self.batch()


def words(batch: int = 8, length: int = 8, below: int = 40) -> Callable[[], Batch]:
    return lambda: tuple(torch.randint(0, below, (batch, length)) for _ in range(2))


def pictures(size: int, classes: int, *labels: int, batch: int = 8) -> Callable[[], Batch]:
    return lambda: (torch.randn(batch, 3, size, size).double(), torch.randint(0, classes, (batch, *labels)))


MODELS: dict[str, Small] = {
    "Llama": Small(lambda: LanguageModel(LLAMA), words()),
    "GPT-2": Small(lambda: LanguageModel(Shape(32, 64, 4, 40, 2, positions=16)), words()),
    "BERT": Small(lambda: LanguageModel(Shape(32, 64, 4, 40, 2, causal=False, positions=8)), words()),
    "T5": Small(lambda: Translator(Shape(32, 64, 4, 40, 2, biased=False)), words()),
    "ViT": Small(
        lambda: VisionTransformer(Shape(32, 64, 4, 10, 2, causal=False, positions=4), patch=4), pictures(8, 10)
    ),
    "Mixtral": Small(lambda: LanguageModel(replace(LLAMA, experts=4)), words()),
    "ResNet": Small(lambda: ResNet((1, 1), 10, 8), pictures(16, 10)),
    "U-Net": Small(lambda: UNet(4, 2), pictures(8, 2, 8, 8, batch=4)),
    "MLP": Small(lambda: Perceptrons(16, 64, 3), lambda: tuple(torch.randn(8, 16).double() for _ in range(2))),
    "Llama, long": Small(lambda: LanguageModel(LLAMA), words(1, 64)),
}
"""By the name that people call them."""


@dataclass(frozen=True)
class Layouts:
    """What was chosen, in words that can be written down."""

    patterns: dict[str, P]
    inputs: dict[str, P]
    outputs: dict[str, P]
    batch: tuple[P, ...]

    def lay(self, small: Small, mesh: weft.DeviceMesh) -> tuple[nn.Module, Batch]:
        """A model and its batch, laid out."""
        model = weft.nn.shard_module(small.model(), mesh, self.patterns)
        model = weft.nn.shard_activations(model, mesh, inputs=self.inputs, outputs=self.outputs)
        return model, tuple(weft.shard(x, mesh, spec) for x, spec in zip(small.data(), self.batch, strict=True))


@cache
def chosen(name: str) -> Layouts:
    """The layouts for a machine on which movements begin at once, so that even small models are worth splitting."""
    link = Link(0.0, 1e10)
    topology = weft.Topology(link, link, link, link)
    machine = replace(Machine.preset("h100"), topology=topology, launch=0.0, bandwidth=1e9)
    model, batch = MODELS[name].model(), MODELS[name].data()
    choice = weft.nn.autoshard(model, weft.make_mesh({"dp": 2, "tp": 2}), batch, topology=machine)
    assert isinstance(choice.batch, tuple)
    return Layouts(
        dict(choice.patterns), dict(choice.activations["inputs"]), dict(choice.activations["outputs"]), choice.batch
    )


def yielded(model: nn.Module, batch: Batch) -> Found:
    """The losses and gradients of some steps, and what they make of the parameters and buffers."""
    return {name: _whole(x) for name, x in _trained(model.train(), batch)}


def _trained(model: nn.Module, batch: Batch) -> Iterator[tuple[str, torch.Tensor]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        loss = model(*batch)
        yield f"loss {step}", loss
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            yield f"gradient {step} of {name}", parameter.grad
        optimizer.step()
    for name, x in model.state_dict().items():
        yield f"{name} in the end", x


def _whole(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    return x.full_tensor() if isinstance(x, weft.Tensor) else x.clone()


def differences(found: Found, expected: Found) -> list[str]:
    """What is not as plain torch has it."""
    assert found.keys() == expected.keys()
    return [
        f"{name} is off by {(found[name] - value).abs().max().item():.2e}"
        for name, value in expected.items()
        if not torch.allclose(found[name], value, rtol=TOLERANCE, atol=TOLERANCE)
    ]


@cache
def plain(name: str) -> Found:
    """What plain torch yields."""
    return yielded(MODELS[name].model(), MODELS[name].data())


if __name__ == "__main__":
    weft.distributed.init(backend="gloo", timeout=120)
    here = weft.make_mesh({"dp": 2, "tp": 2})
    layouts = eval(Path(sys.argv[1]).read_text())
    print(
        json.dumps(
            {name: differences(yielded(*layouts[name].lay(MODELS[name], here)), plain(name)) for name in layouts}
        )
    )
    weft.distributed.shutdown()
