"""The demonstration: a small GPT learns this project's own pages, on eight devices in one process.

    make demo          or: python examples/demo.py --steps 120 --out demo.svg

The mesh is 2 × 4: "dp" splits the batch, "tp" splits heads, hidden units and, between them, the sequence. Beside it the
same model learns on one device in plain torch; the losses are compared in every step. What moves is logged and held
against the fewest bytes that any program could move for the same changes of layout.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from drawing.svg import BLUE, GREY, RED, Frame, amount, bar_chart, line_chart, picture
from models.gpt2 import GPT2, LAYOUTS
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch.nn import functional

import weft
from weft import P

LENGTH, BATCH, DIM, HEADS, DEPTH = 32, 8, 64, 4, 2
TEXT = Path(__file__).parents[1]
Kinds = dict[str, tuple[float, float]]
"""For each kind of communication, the bytes it moved and the fewest that would have done."""


@dataclass
class Run:
    """What is seen of a training run."""

    losses: list[float] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    seconds: tuple[float, float] = (0.0, 0.0)
    moved: Kinds = field(default_factory=dict)
    held: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def difference(self) -> float:
        """The largest relative difference between a loss and that of one device."""
        return max((abs(a - b) / abs(b) for a, b in zip(self.losses, self.expected, strict=True)), default=0.0)

    @property
    def total(self) -> tuple[float, float]:
        """The bytes that one step moves, and their lower bound."""
        return sum(a for a, _ in self.moved.values()), sum(b for _, b in self.moved.values())


def characters() -> tuple[torch.Tensor, int]:
    """The pages of this project as numbers, one a character, and how many different ones there are."""
    pages = [TEXT / "README.md", *sorted((TEXT / "docs").rglob("*.md"))]
    text = "\n".join(page.read_text() for page in pages)
    alphabet = {character: i for i, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


def batches(text: torch.Tensor, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random pieces of the text, and the same pieces one character on."""
    for _ in range(steps):
        starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH, 1))
        where = starts + torch.arange(LENGTH)
        yield text[where], text[where + 1]


def train(model: GPT2, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """One step; nothing here knows of devices."""
    optimizer.zero_grad()
    logits = model(inputs)
    loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def against_bounds(log: weft.watch.comm_log.CommLog) -> Kinds:
    """What each kind of communication moved, and the lower bound for the same changes of layout."""
    moved: Counter[str] = Counter()
    least: Counter[str] = Counter()
    for record in log:
        moved[record.kind] += record.total_bytes
        least[record.kind] += weft.plan(record.source, record.target, record.shape, "float64").lower_bound.total
    return {kind: (moved[kind], least[kind]) for kind, _ in moved.most_common() if moved[kind]}


def memory(model: GPT2, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    """Bytes of parameters, gradients and optimizer state: on the fullest device, and on one device alone."""
    kinds = {
        "parameters": list(model.parameters()),
        "gradients": [p.grad for p in model.parameters() if p.grad is not None],
        "optimizer state": [x for state in optimizer.state.values() for x in state.values() if x.dim()],
    }
    return {
        kind: (
            sum(max(shard.numel() for shard in x.local_shards) * x.itemsize for x in tensors),
            sum(x.numel() * x.itemsize for x in tensors),
        )
        for kind, tensors in kinds.items()
    }


def training(steps: int) -> Iterator[Run]:
    """Trains both models and yields what is seen after every step."""
    torch.manual_seed(0)
    text, alphabet = characters()
    mesh = weft.make_mesh({"dp": 2, "tp": 4})
    plain = GPT2(alphabet, LENGTH, DIM, HEADS, DEPTH).double()
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, LAYOUTS["tp"])
    parts = ("blocks.*.attention", "blocks.*.perceptron")
    weft.nn.shard_activations(
        model, mesh, inputs=dict.fromkeys(parts, P("dp")), outputs=dict.fromkeys(parts, P("dp", "tp"))
    )
    optimizers = [torch.optim.AdamW(m.parameters(), lr=3e-3) for m in (plain, model)]
    run = Run()
    for inputs, targets in batches(text, steps):
        began = time.perf_counter()
        run.expected.append(train(plain, optimizers[0], inputs, targets))
        between = time.perf_counter()
        with weft.comm_log() as log:
            split = weft.shard((inputs, targets), mesh, P("dp", "tp"))
            run.losses.append(train(model, optimizers[1], *split))
        run.seconds = between - began, time.perf_counter() - between
        run.moved, run.held = against_bounds(log), memory(model, optimizers[1])
        yield run


def table(run: Run) -> Table:
    """What is seen, as a table."""
    rows = Table("", "2 × 4 devices", "one device", box=None, pad_edge=False)
    rows.add_row("loss", f"{run.losses[-1]:.6f}", f"{run.expected[-1]:.6f}")
    rows.add_row("largest difference so far", f"{run.difference:.1e}", "")
    rows.add_row("seconds a step", f"{run.seconds[1]:.3f}", f"{run.seconds[0]:.3f}")
    for kind, (held, alone) in run.held.items():
        rows.add_row(f"{kind} on a device", amount(held), amount(alone))
    rows.add_row("", "", "")
    rows.add_row("[b]moved in a step[/b]", "[b]bytes[/b]", "[b]lower bound[/b]")
    for kind, (moved, least) in {**run.moved, "together": run.total}.items():
        rows.add_row(kind, amount(moved), amount(least))
    return rows


def watched(steps: int, console: Console) -> Run:
    """Trains with live progress in a terminal, else with a line now and then."""
    if not console.is_terminal:
        for run in training(steps):
            if len(run.losses) % max(1, steps // 10) == 0:
                moved, least = map(amount, run.total)
                console.print(
                    f"step {len(run.losses)}: loss {run.losses[-1]:.6f}, on one device {run.expected[-1]:.6f}; moved {moved}, at least {least}"
                )
        return run
    progress = Progress(TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    task = progress.add_task("", total=steps)
    with Live(progress, console=console, refresh_per_second=8) as live:
        for run in training(steps):
            progress.advance(task)
            live.update(Group(progress, table(run)))
    return run


def drawn(run: Run) -> str:
    """The run as a picture."""
    losses = {"one device": run.expected, "2 × 4 devices": run.losses}
    return picture(
        960,
        560,
        f"A small GPT on 2 × 4 devices in one process: losses differ by {run.difference:.0e} at most",
        [
            line_chart(Frame(80, 90, 840, 180), "loss", losses),
            bar_chart(
                Frame(40, 350, 420, 150), "moved in a step, all devices", run.moved, {"moved": RED, "lower bound": GREY}
            ),
            bar_chart(
                Frame(500, 350, 420, 150),
                "memory of the fullest device",
                run.held,
                {"2 × 4 devices": RED, "one device": BLUE},
            ),
        ],
    )


def main(arguments: list[str] | None = None) -> None:
    """Trains, shows and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("demo.svg"))
    options = parser.parse_args(arguments)
    console = Console()
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    run = watched(options.steps, console)
    if not console.is_terminal:
        console.print(table(run))
    options.out.write_text(drawn(run))
    console.print(f"\nThe losses are those of one device, within {run.difference:.0e}. Picture: {options.out}")
    torch.testing.assert_close(run.losses, run.expected, rtol=1e-9, atol=0)


if __name__ == "__main__":
    main()
