"""`weft autoshard`: layouts for the model of a program, chosen without running it on devices."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from pprint import pformat

import click
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ..devices import CPU, Accelerator
from ..errors import WeftError
from ..paper.dryrun import on_paper, recorded
from ..paper.machine import MACHINES
from ..paper.program import Enough, run_program
from ..sharding.mesh import make_mesh
from .autoshard import autoshard

__all__ = ["autoshard_command"]


@click.command("autoshard", context_settings={"ignore_unknown_options": True})
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--mesh", required=True, metavar="AXIS=SIZE,...", help="The mesh to lay out on, as dp=8,tp=8.")
@click.option(
    "--topology", type=click.Choice(["cpu", *MACHINES]), default="h100", show_default=True, help="What devices are."
)
@click.option("--memory-limit", default=None, metavar="SIZE", help="What a device may hold, as 60GB.")
def autoshard_command(
    program: Path, arguments: tuple[str, ...], mesh: str, topology: str, memory_limit: str | None
) -> None:
    """Choose layouts for the model of a training program, and print what shard_module takes.

    The program runs as it is, on tensors that have no values, until it calls its model.
    """
    try:
        sizes = _sizes(mesh)
        kind = CPU if topology == "cpu" else Accelerator
        devices = tuple(kind(i) for i in range(math.prod(sizes.values())))
        calls: list[tuple[torch.nn.Module, dict[str, object]]] = []
        with on_paper(devices):
            recorded(lambda: _until_called(program, arguments, calls), topology)
        if not calls:
            raise click.ClickException(
                f"{program} ended without calling a model: call it as model(batch) in the program"
            )
        model, batch = calls[0]
        choice = autoshard(
            model, make_mesh(sizes, devices=devices), batch, memory_limit=memory_limit, topology=topology
        )
    except (WeftError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(str(choice))
    click.echo(f"\npatterns = {pformat(dict(choice.patterns), sort_dicts=False)}")
    for side, pinned in choice.activations.items():
        if pinned:
            click.echo(f"{side} = {pformat(dict(pinned), sort_dicts=False)}")
    click.echo(f"batch = {choice.batch!r}")


def _sizes(text: str) -> dict[str, int]:
    """The sizes of mesh axes from `dp=2,tp=4`."""
    try:
        return {name.strip(): int(size) for name, _, size in (item.partition("=") for item in text.split(","))}
    except ValueError:
        raise ValueError(f"{text!r} is no mesh: write it as dp=2,tp=4") from None


def _until_called(
    program: Path, arguments: tuple[str, ...], calls: list[tuple[torch.nn.Module, dict[str, object]]]
) -> None:
    """Runs a program until it calls a module that has parameters, and keeps what it is called with."""

    def called(module: torch.nn.Module, args: tuple[object, ...]) -> None:
        if next(module.parameters(), None) is not None:
            calls.append((module, dict(inspect.signature(module.forward).bind(*args).arguments)))
            raise Enough

    hook = register_module_forward_pre_hook(called)
    try:
        run_program(program, arguments)
    finally:
        hook.remove()
