"""`weft dryrun`: a program that was written for real devices, on paper."""

from __future__ import annotations

from pathlib import Path

import click
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..devices import CPU, Accelerator
from ..errors import PaperError
from .dryrun import on_paper, recorded
from .machine import MACHINES
from .program import Enough, run_program

__all__ = ["dryrun_command"]


@click.command("dryrun", context_settings={"ignore_unknown_options": True})
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--devices", type=click.IntRange(min=1), default=8, show_default=True, help="How many devices to think of."
)
@click.option(
    "--topology", type=click.Choice(["cpu", *MACHINES]), default="h100", show_default=True, help="What they are."
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=1, show_default=True, help="End after so many optimizer steps."
)
@click.option("--html", type=click.Path(dir_okay=False), default=None, help="Write the report as a page.")
@click.option("--perfetto", type=click.Path(dir_okay=False), default=None, help="Write the step in time as a trace.")
def dryrun_command(
    program: Path,
    arguments: tuple[str, ...],
    devices: int,
    topology: str,
    steps: int,
    html: str | None,
    perfetto: str | None,
) -> None:
    """Say what a training program would hold, move and take on devices that nobody need have, without running it there.

    The program runs as it is, on tensors that have no values, until its optimizer has taken a step.
    """
    kind = CPU if topology == "cpu" else Accelerator
    try:
        with on_paper(tuple(kind(i) for i in range(devices))):
            report = recorded(lambda: _run(program, arguments, steps), topology)
    except PaperError as error:
        raise click.ClickException(str(error)) from error
    click.echo(str(report))
    if html is not None:
        report.save(html)
    if perfetto is not None:
        report.perfetto(perfetto)


def _run(program: Path, arguments: tuple[str, ...], steps: int) -> None:
    left = steps

    def stepped(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Enough

    hook = register_optimizer_step_post_hook(stepped)
    try:
        run_program(program, arguments)
    finally:
        hook.remove()
