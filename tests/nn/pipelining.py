"""What is compared of pipelines, in one process and in several: losses and gradients of a model in stages and of the whole."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft
from weft import P
from weft.runtime.processes.mesh_processes import is_elsewhere
from weft.schedules import NAMES, Schedule

WIDTH, ROWS = 6, 16


class Block(nn.Module):
    """A residual block with a norm: weights of several kinds on and beside the way back to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class First(nn.Module):
    """Embeds tokens, and says how many there were: a tuple goes on, of which one part has no gradient."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding, self.block = embedding, Block()

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.block(self.embedding(tokens)), tokens


class Middle(nn.Module):
    """Passes the tokens on, and lets them count."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.block(x) + 0.1 * tokens.unsqueeze(-1), tokens


class Last(nn.Module):
    """Gives logits by the embedding's own weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(WIDTH, weight.shape[0], bias=False)
        self.head.weight = weight

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(x)) + 0.01 * tokens.unsqueeze(-1)


class Blocks(nn.Module):
    """Two blocks, which may be computed anew on the way back."""

    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.layers, self.recomputes = nn.ModuleList([Block(), Block()]), recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputes else layer(x)
        return x


def model(stages: int) -> nn.ModuleList:
    """A small language model in stages, the first and the last of which share a weight."""
    torch.manual_seed(3)
    with torch.device("cpu"):
        embedding = nn.Embedding(8, WIDTH)
        parts = [First(embedding), *(Middle() for _ in range(stages - 2)), Last(embedding.weight)]
        return nn.ModuleList(parts).double()


def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(4)
    tokens = torch.randint(8, (ROWS, 3), device="cpu")
    return tokens, tokens.roll(1, 1)


def unpipelined(parts: nn.ModuleList) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss and the gradients of the whole model on one device, after two steps that add up."""
    tokens, wanted = data()
    for _ in range(2):
        x = parts[0](tokens)
        for part in parts[1:]:
            x = part(*x)
        found = loss(x, wanted)
        found.backward()
    return found.detach(), {name: p.grad for name, p in parts.named_parameters() if p.grad is not None}


def places(count: int) -> list[weft.DeviceMesh]:
    """Meshes that have all devices, equally many each: a line of them, or a square where there are four."""
    devices = weft.make_mesh({"all": len(weft.devices())}).devices
    each = len(devices) // count
    shape, axes = ((2, each // 2), ("dp", "tp")) if each >= 4 else ((each,), ("tp",))
    return [weft.DeviceMesh(devices[each * place : each * (place + 1)], shape, axes) for place in range(count)]


def sharded(parts: nn.ModuleList, meshes: Sequence[weft.DeviceMesh]) -> nn.ModuleList:
    """Stages laid out over their meshes in different ways; every other one is left to the pipeline to replicate."""
    for number, (part, mesh) in enumerate(zip(parts, meshes, strict=True)):
        if 0 < number < len(parts) - 1 and number % 2:
            weft.nn.shard_module(part, mesh, {"*up.*": P("tp"), "*down.weight": P(None, "tp")})
    return parts


def made(name: str | Schedule, stages: int, count: int, microbatches: int) -> weft.nn.Pipeline:
    """A pipeline of the model with this schedule."""
    meshes = places(count)
    table = weft.schedules.schedule(name, stages, count, microbatches) if isinstance(name, str) else name
    parts = sharded(model(stages), [meshes[place] for place in table.stage_places])
    batch = P("dp") if "dp" in meshes[0].axis_names else P()
    return weft.nn.pipeline(list(parts), meshes, table, loss=loss, batch=batch)


def check_fully_sharded(name: str, stages: int, count: int, recomputes: bool = False) -> weft.nn.Pipeline:
    """Blocks that are fully sharded have the unpipelined gradients, gathered once and reduced once a step and block."""
    meshes = places(count)
    table = weft.schedules.schedule(name, stages, count, 4)
    torch.manual_seed(5)
    with torch.device("cpu"):
        parts = [Blocks(recomputes).double() for _ in range(stages)]
        x, wanted = torch.randn(2, ROWS, WIDTH, dtype=torch.float64)
    plain = nn.Sequential(*copy.deepcopy(parts))
    for part, place in zip(parts, table.stage_places, strict=True):
        weft.nn.fully_shard(part, meshes[place], "dp", blocks="layers.*")
    mean = nn.functional.mse_loss
    pipe = weft.nn.pipeline(parts, meshes, table, loss=mean, batch=P("dp"))
    pipe.step(x, wanted)
    with weft.comm_log() as log:
        pipe.step(x, wanted)
    here = sum(not is_elsewhere(meshes[place]) for place in table.stage_places)
    own = [record.kind for record in log if "fully_shard" in record.op]
    assert (own.count("all_gather"), own.count("reduce_scatter")) == (2 * here, 2 * here), own
    with weft.comm_log() as log:
        close(pipe(x).full_tensor(), plain(x).detach())
    assert [record.op for record in log].count("fully_shard") == 2 * here
    for _ in range(2):
        mean(plain(x), wanted).backward()
    for p, q in zip(pipe.parameters(), plain.parameters(), strict=True):
        assert isinstance(p.grad, weft.Tensor)
        assert q.grad is not None
        close(p.grad.full_tensor(), q.grad)
    return pipe


def check(name: str | Schedule, stages: int, count: int, microbatches: int) -> weft.nn.Pipeline:
    """Two steps of a pipeline have the loss, the gradients and the outputs of the unpipelined model."""
    plain = model(stages)
    expected, gradients = unpipelined(copy.deepcopy(plain))
    pipe = made(name, stages, count, microbatches)
    tokens, wanted = data()
    pipe.step(tokens, wanted)
    found = pipe.step(tokens, wanted)
    close(found.full_tensor(), expected)
    named = {key.removeprefix("stages."): p for key, p in pipe.named_parameters()}
    assert named.keys() == gradients.keys()
    for key, gradient in gradients.items():
        grad = named[key].grad
        assert isinstance(grad, weft.Tensor)
        assert grad.mapping.layout(grad.dim()) is named[key].mapping.layout(grad.dim())
        close(grad.full_tensor(), gradient)
    x = plain[0](tokens)
    for part in plain[1:]:
        x = part(*x)
    close(pipe(tokens).full_tensor(), x.detach())
    return pipe


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-12)


def every(count: int) -> list[tuple[str, int]]:
    """The schedules of so many places, each with its number of stages."""
    one = ("gpipe", "1f1b", "zb-h1")
    return [(name, count if name in one else 2 * count) for name in NAMES]
