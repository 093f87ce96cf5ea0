"""The `weft` command."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

import click

from .devices import CPU
from .inspect.explain import explain_plan
from .planning import Topology, plan
from .planning.text import bytes_said
from .planning.topology import PRESETS
from .planning.topology.current import as_topology
from .sharding.dtype import DType
from .sharding.layout import Layout
from .sharding.mesh import DeviceMesh, make_mesh
from .sharding.placements import ReduceOp

__all__ = ["main"]

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "autoshard": "weft.nn.autoshard_command:autoshard_command",
        "bench": "weft.inspect.bench:bench",
        "checkpoint": "weft.checkpoint.command:checkpoint",
        "doctor": "weft.inspect.doctor:doctor",
        "dryrun": "weft.paper.command:dryrun_command",
    }
)
"""Commands that live elsewhere and are imported when they are asked for: name to `module:attribute`."""


class Commands(click.Group):
    """A group whose commands may live in modules that are slow to import, and are imported late."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, name = COMMANDS[cmd_name].partition(":")
            command: click.Command = getattr(import_module(module), name)
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="weft")
def main() -> None:
    """Sharded tensors for PyTorch."""


def parse_mesh(text: str) -> DeviceMesh:
    """A mesh from `dp=2,tp=4`, on devices from 0, or from `dp=2,tp=4@8`, from another on.

    >>> parse_mesh("dp=2@4").devices
    (CPU(4), CPU(5))
    """
    axes, _, first = text.partition("@")
    try:
        sizes = {name.strip(): int(size) for name, _, size in (item.partition("=") for item in axes.split(","))}
        start = int(first or 0)
    except ValueError:
        raise ValueError(f"{text!r} is no mesh: write it as dp=2,tp=4, or dp=2,tp=4@8 for devices from 8 on") from None
    return make_mesh(sizes, devices=[CPU(start + i) for i in range(math.prod(sizes.values()))])


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape from `8192,8192`; `scalar` for rank 0.

    >>> parse_shape("8192,4"), parse_shape("scalar")
    ((8192, 4), ())
    """
    try:
        return () if text == "scalar" else tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no shape: write it as 8192,8192, or scalar for rank 0") from None


def parse_layout(text: str, mesh: DeviceMesh, rank: int) -> Layout:
    """A layout from words: one entry per dim, `dp+tp` for several axes, `-` for none, `sum@tp` for a pending sum.

    >>> str(parse_layout("dp+tp,-", make_mesh({"dp": 2, "tp": 4}), 2))
    '(dp·tp, –)'
    >>> str(parse_layout("dp sum@tp", make_mesh({"dp": 2, "tp": 4}), 2))
    '(dp, –) sum@tp'
    """
    splits: list[tuple[str, ...]] = []
    pending: dict[str, ReduceOp] = {}
    for entry in text.replace(",", " ").split():
        op, at, axis = entry.partition("@")
        if at:
            mesh.axis_index(axis)
            pending[axis] = ReduceOp.of(op)
        else:
            splits.append(() if entry in ("-", "–") else tuple(entry.replace("·", "+").split("+")))
    if len(splits) > rank:
        raise ValueError(f"{text!r} says how {len(splits)} dims are split, but the shape has {rank}")
    return Layout(mesh, splits + [()] * (rank - len(splits)), pending)


def topology_named(name: str | None) -> Topology | None:
    """A preset, what is measured here, what a file says, or none.

    >>> topology_named("h100").devices_per_host
    8
    """
    return Topology.measure() if name == "measure" else as_topology(name)


@main.command("plan")
@click.option(
    "--mesh", required=True, metavar="AXIS=SIZE,...", help="The mesh, as dp=2,tp=4 (or dp=2,tp=4@8: devices from 8 on)."
)
@click.option("--shape", required=True, metavar="SIZE,...", help="The tensor's shape, as 8192,8192.")
@click.option(
    "--from", "source", required=True, metavar="LAYOUT", help='One entry per dim: "dp,tp", "dp+tp,-", "dp,- sum@tp".'
)
@click.option("--to", "target", required=True, metavar="LAYOUT", help="The same, for where it should go.")
@click.option("--to-mesh", metavar="AXIS=SIZE,...", default=None, help="The target's mesh, if it is another.")
@click.option("--dtype", default="float32", show_default=True, help="The element type.")
@click.option(
    "--topology",
    default=None,
    metavar="NAME",
    help=f"The machine, for the time: {', '.join(PRESETS)}, measure, or a file of `weft bench --links`.",
)
@click.option("--memory-limit", default=None, metavar="SIZE", help="What a device may hold at once, as 60GB, or bytes.")
@click.option("--relabel", is_flag=True, help="Let the target's devices stand in the order that moves least.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan_command(
    mesh: str,
    shape: str,
    source: str,
    target: str,
    to_mesh: str | None,
    dtype: str,
    topology: str | None,
    memory_limit: str | None,
    relabel: bool,
    as_json: bool,
) -> None:
    """Say what moves when a tensor goes from one layout to another, before it does."""
    try:
        sizes = parse_shape(shape)
        found = plan(
            parse_layout(source, parse_mesh(mesh), len(sizes)),
            parse_layout(target, parse_mesh(to_mesh or mesh), len(sizes)),
            sizes,
            DType.of(dtype),
            topology=topology_named(topology),
            memory_limit=None if memory_limit is None else bytes_said(memory_limit),
            relabel=relabel,
        )
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        click.echo(str(explain_plan(found)))


if __name__ == "__main__":
    main()
