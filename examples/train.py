"""A small trainer in one file: data, tensor and pipeline parallel, sharded weights, metrics, checkpoints, all from flags.

    python examples/train.py                                          8 devices of this process: 2 × 2 × 2
    torchrun --nproc-per-node 4 examples/train.py --pp 4 --schedule zb-h1
    torchrun --nproc-per-node 4 --max-restarts 3 examples/train.py --folder run --fail-at 7

It trains a small language model on made-up text. `--fsdp` splits the blocks' weights over the data-parallel devices too, and
gathers them block by block, once a step. With
`--folder` it saves as it goes, and goes on where it was when it is started again: `--fail-at` fails once, to see that.
`--check` (on by default) trains the same model on one device, and compares every loss. `--dryrun h100` trains nothing, and
says what a step would hold, move and take on that machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import nn
from torch.utils.data import DataLoader, Dataset

import weft
from weft import P

Flag = argparse.BooleanOptionalAction


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on; each field is a flag."""

    dp: int = 2
    tp: int = 2
    pp: int = 2
    fsdp: bool = False
    schedule: str = "1f1b"
    microbatches: int = 4
    layers: int = 4
    width: int = 32
    heads: int = 4
    words: int = 64
    length: int = 16
    batch: int = 16
    steps: int = 10
    rate: float = 3e-3
    norm: float = 1.0
    seed: int = 0
    dtype: str = "float32"
    folder: str = ""
    every: int = 2
    fail_at: int = -1
    check: bool = True
    dryrun: str = ""

    @classmethod
    def from_flags(cls) -> Config:
        """What the command line says."""
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        for field in fields(cls):
            name = f"--{field.name.replace('_', '-')}"
            kind = type(field.default)
            if kind is bool:
                parser.add_argument(name, action=Flag, default=field.default)
            else:
                parser.add_argument(name, type=kind, default=field.default)
        return cls(**vars(parser.parse_args()))

    @property
    def stages(self) -> int:
        """Schedules that go down the places and up again, or round, have two stages in each."""
        return self.pp if self.schedule in ("gpipe", "1f1b", "zb-h1") else 2 * self.pp


class Text(Dataset[dict[str, torch.Tensor]]):
    """Made-up text: each word is the one before plus a step that is drawn for the line."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __len__(self) -> int:
        return 40 * self.config.batch

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        first, step = torch.randint(1, self.config.words, (2,), generator=draw)
        line = (first + step * torch.arange(self.config.length + 1)) % self.config.words
        return {"words": line[:-1], "wanted": line[1:]}


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside the residual stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.norms = nn.ModuleList([nn.LayerNorm(config.width) for _ in range(2)])
        self.query, self.key, self.value, self.out = (nn.Linear(config.width, config.width) for _ in range(4))
        self.up, self.down = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x)
        q, k, v = (p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Stage(nn.Module):
    """Some blocks; the first stage begins with the embedding, the last ends with the logits, by the same weight."""

    def __init__(self, blocks: list[Block], embedding: nn.Embedding | None, head: nn.Embedding | None) -> None:
        super().__init__()
        self.embedding, self.blocks = embedding, nn.Sequential(*blocks)
        self.head = None
        if head is not None:
            self.head = nn.Linear(head.embedding_dim, head.num_embeddings, bias=False)
            self.head.weight = head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(x if self.embedding is None else self.embedding(x))
        return x if self.head is None else self.head(x)


def model_of(config: Config) -> list[Stage]:
    """The model in stages, the same on every device and in every process."""
    torch.manual_seed(config.seed)
    embedding = nn.Embedding(config.words, config.width)
    nn.init.normal_(embedding.weight, std=0.1)
    blocks = [Block(config) for _ in range(config.layers)]
    each = -(-config.layers // config.stages)
    parts = [blocks[each * stage : each * (stage + 1)] for stage in range(config.stages)]
    return [
        Stage(part, embedding if stage == 0 else None, embedding if stage == config.stages - 1 else None).to(
            getattr(torch, config.dtype)
        )
        for stage, part in enumerate(parts)
    ]


LAYOUTS = {
    "*.query.*": P("tp"),
    "*.key.*": P("tp"),
    "*.value.*": P("tp"),
    "*.out.weight": P(None, "tp"),
    "*.up.*": P("tp"),
    "*.down.weight": P(None, "tp"),
}
"""How the weights of a block lie: by `tp`, as in Megatron."""


def lay_out(stage: Stage, mesh: weft.DeviceMesh, config: Config) -> None:
    """Brings a stage to its devices; what `tp` leaves whole, `--fsdp` splits over `dp`."""
    weft.nn.shard_module(stage, mesh, LAYOUTS if len(stage.blocks) else {})
    if config.fsdp and len(stage.blocks):
        weft.nn.fully_shard(stage.blocks, mesh, "dp", blocks="*")


def loss_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How far the words that come are from those that are said to come."""
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def on_one_device(config: Config, order: list[list[int]]) -> list[float]:
    """The losses of the same training on one device, without any of it."""
    stages = model_of(config)
    parameters = list({id(x): x for stage in stages for x in stage.parameters()}.values())
    optimizer = torch.optim.AdamW(parameters, lr=config.rate, foreach=False)
    text, losses = Text(config), []
    for rows in order[: config.steps]:
        batch = [text[row] for row in rows]
        x = torch.stack([row["words"] for row in batch])
        for stage in stages:
            x = stage(x)
        loss = loss_of(x, torch.stack([row["wanted"] for row in batch]))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, config.norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


def say(config: Config, **metrics: float) -> None:
    """One line for a reader, and one for a program."""
    if weft.on_main():
        print("  ".join(f"{name} {value:.5g}" for name, value in metrics.items()), flush=True)
        if config.folder:
            with (Path(config.folder) / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(metrics) + "\n")


def fail_once(config: Config, step: int) -> None:
    """Ends this process the hard way, the first time that it comes to the step that was asked for."""
    mark = Path(config.folder) / "failed"
    last = weft.distributed.process_count() - 1
    if step == config.fail_at and weft.distributed.process_index() == last and not mark.exists():
        mark.touch()
        os._exit(1)


def step_of(
    pipe: weft.nn.Pipeline, optimizer: torch.optim.Optimizer, words: torch.Tensor, wanted: torch.Tensor, config: Config
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step: the loss, and the norm of the gradients before they were clipped."""
    optimizer.zero_grad()
    loss = pipe.step(words, wanted)
    norm = nn.utils.clip_grad_norm_(pipe.parameters(), config.norm)
    optimizer.step()
    return loss, norm


def train(config: Config) -> dict[int, float]:
    """Trains, from the last checkpoint on if there is one; the loss of each step."""
    devices = weft.make_mesh({"pp": config.pp, "dp": config.dp, "tp": config.tp}).devices
    each = config.dp * config.tp
    meshes = [
        weft.DeviceMesh(devices[each * place : each * (place + 1)], (config.dp, config.tp), ("dp", "tp"))
        for place in range(config.pp)
    ]
    table = weft.schedules.schedule(config.schedule, config.stages, config.pp, config.microbatches)
    stages = model_of(config)
    where = [meshes[place] for place in table.stage_places]
    for stage, mesh in list(zip(stages, where, strict=True))[::-1]:  # the first last: the embedding is at home there
        lay_out(stage, mesh, config)
    pipe = weft.nn.pipeline(stages, meshes, table, loss=loss_of)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=config.rate, foreach=False)

    loader = DataLoader(Text(config), batch_size=config.batch, shuffle=True)
    specs = {"words": P("dp"), "wanted": weft.NamedMapping(where[-1], P("dp"))}
    data = weft.data.batches(loader, where[0], specs, seed=config.seed)
    state = {"model": pipe, "optimizer": optimizer, "data": data}
    keeper = weft.checkpoint.Keeper(config.folder, every=config.every, wait=True) if config.folder else None
    start = keeper.resume(state) if keeper else 0
    if weft.on_main():
        print(weft.visualize(table))
        print(f"{sum(x.numel() for x in pipe.parameters()):,} parameters; from step {start}")

    losses: dict[int, float] = {}
    batches = iter(data)
    if config.dryrun:
        batch = next(batches)
        print(weft.dryrun(step_of, pipe, optimizer, batch["words"], batch["wanted"], config, topology=config.dryrun))
        return losses
    for step in range(start, config.steps):
        fail_once(config, step)
        batch, began = next(batches), time.perf_counter()
        with weft.comm_log() as log:
            loss, norm = step_of(pipe, optimizer, batch["words"], batch["wanted"], config)
        losses[step] = loss.item()
        took = time.perf_counter() - began
        speed = config.batch * config.length / took
        say(
            config,
            step=step,
            loss=losses[step],
            norm=norm.item(),
            words_a_second=speed,
            megabytes=log.total_bytes / 1e6,
        )
        if keeper:
            keeper.step(step + 1, state)
    if keeper:
        keeper.wait()
    return losses


def main() -> None:
    """Trains as the flags say, and compares with one device."""
    config = Config.from_flags()
    count = config.dp * config.tp * config.pp
    weft.distributed.init(devices_per_process=max(1, count // weft.distributed.process_count()))
    if config.folder:
        Path(config.folder).mkdir(parents=True, exist_ok=True)
    losses = train(config)
    if config.check and losses:
        loader = DataLoader(Text(config), batch_size=config.batch, shuffle=True)
        expected = on_one_device(config, weft.data.Order(loader, config.seed).batches(0))
        exact = config.dtype == "float64"
        torch.testing.assert_close(
            torch.tensor(list(losses.values()), dtype=torch.float64),
            torch.tensor([expected[step] for step in losses], dtype=torch.float64),
            rtol=1e-7 if exact else 1e-3,
            atol=1e-9 if exact else 1e-3,
        )
        if weft.on_main():
            print(f"the losses of {len(losses)} steps are those of one device")
    weft.distributed.shutdown()


if __name__ == "__main__":
    main()
