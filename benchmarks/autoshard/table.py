"""What a training step of ten models takes on paper in hand-written layouts, beside the one that `weft.nn.autoshard` chooses.

    python benchmarks/autoshard/table.py --layers 4
    python benchmarks/autoshard/table.py --model "ResNet-50" --json rows.json
    python benchmarks/autoshard/table.py --held-out

Every layout is priced by the same dry run: a step of forward, backward and AdamW on 8 × 8 devices, by default H100s. "chosen" is
what autoshard finds; its seconds are the dry run's, not its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from catalogue import Case, cases
from held_out import held_out_cases

import weft

CHOSEN = "chosen"


@dataclass(frozen=True)
class Row:
    """One layout of one model."""

    model: str
    layout: str
    seconds: float
    computing: float
    exposed: float
    received: int
    memory: int
    took: float
    """Seconds to find it out here."""


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]) -> None:
    """Forward, backward, and a step of the optimizer."""
    model(*batch).backward()
    optimizer.step()


def priced(
    model: torch.nn.Module, batch: tuple[torch.Tensor, ...], prefer: tuple[str, ...], machine: str
) -> weft.paper.showing.report.StepReport:
    """The dry run of a step."""
    optimizer = torch.optim.AdamW(model.parameters())
    with weft.prefer(*prefer) if prefer else nullcontext():
        return weft.dryrun(step, model, optimizer, batch, topology=machine)


def rows(name: str, case: Case, mesh: weft.DeviceMesh, machine: str) -> Iterator[Row]:
    """All layouts of a model, then the chosen one."""

    def row(layout: str, lay: Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]]) -> Row:
        start = time.perf_counter()
        with torch.device("meta"):
            made = lay()
        report = priced(*made, machine)
        took = time.perf_counter() - start
        moved = report.bytes_received
        return Row(name, layout, report.seconds, report.computing, report.exposed, moved, report.memory.peak, took)

    for layout, laid in case.layouts.items():
        yield row(
            layout, lambda laid=laid: (laid.lay(case.model(), mesh), laid.lay_batch(case.batch(), mesh), laid.prefer)
        )

    def chosen() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]:
        model, batch = case.model(), case.batch()
        choice = weft.nn.autoshard(model, mesh, batch, topology=machine)
        return choice.apply(), choice.shard_batch(batch), ()

    yield row(CHOSEN, chosen)


def text(found: list[Row]) -> str:
    """The rows of one model as a table."""
    best = min(row.seconds for row in found if row.layout != CHOSEN)
    lines = [
        f"| {found[0].model} | step | computing | exposed | received | memory | of the best |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: row.seconds):
        figures = [f"{1e3 * seconds:.1f} ms" for seconds in (row.seconds, row.computing, row.exposed)]
        sizes = [f"{size / 2**30:.2f} GiB" for size in (row.received, row.memory)]
        lines.append(f"| {' | '.join([row.layout, *figures, *sizes, f'{row.seconds / best:.2f}'])} |")
    return "\n".join(lines)


def main() -> None:
    """Prices what is asked for, and prints a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="a part of its name; all by default")
    parser.add_argument("--layers", type=int, default=4, help="at most so many; 0 for all")
    parser.add_argument("--machine", default="h100")
    parser.add_argument("--held-out", action="store_true", help="the models that nothing was looked at with")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    mesh = weft.make_mesh({"dp": 8, "tp": 8}, devices=[weft.Accelerator(i) for i in range(64)])
    every: list[Row] = []
    for name, case in (held_out_cases if given.held_out else cases)(given.layers or None).items():
        if given.model and not any(each in name for each in given.model):
            continue
        found = []
        for row in rows(name, case, mesh, given.machine):
            found.append(row)
            print(f"{row.model}, {row.layout}: {1e3 * row.seconds:.1f} ms, found in {row.took:.1f} s", flush=True)
        print(text(found), end="\n\n", flush=True)
        every += found
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in every], indent=1))


if __name__ == "__main__":
    main()
