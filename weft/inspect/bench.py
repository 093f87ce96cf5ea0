"""`weft bench`: what movements, collectives, single ops and planning cost on this machine's devices."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isqrt
from pathlib import Path
from typing import final

import click
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..devices import CPU, Device, list_devices
from ..planning import Tier, plan
from ..planning.topology.keeping import keep_topology
from ..runtime.machine import torch_device
from ..runtime.processes import world
from ..sharding.mesh import DeviceMesh
from ..sharding.named import P
from ..tensor.collectives import all_gather, all_reduce, all_to_all, ppermute, reduce_scatter
from ..tensor.movements import distributed_broadcast, shard, to_device
from .limits import written_once
from .links import measured_links, tiers_here
from .timing import Timing, contest
from .transitions import TRANSITIONS, MatrixTransition, line_of

__all__ = ["COLLECTIVES", "Measurement", "bench", "measurements", "square"]

Collective = Callable[[torch.Tensor, DeviceMesh], torch.Tensor]

COLLECTIVES: dict[str, Collective] = {
    "all_gather": lambda x, _: all_gather(x),
    "all_reduce sum": lambda x, _: all_reduce(x),
    "all_reduce max": lambda x, _: all_reduce(x, "max"),
    "reduce_scatter": lambda x, _: reduce_scatter(x, 0),
    "all_to_all": lambda x, _: all_to_all(x, 1, 0),
    "ppermute": lambda x, mesh: ppermute(x, [(i, (i + 1) % mesh.num_devices) for i in range(mesh.num_devices)]),
    "distributed_broadcast": lambda x, _: distributed_broadcast(x),
    "to_device": lambda x, mesh: to_device(x, mesh.devices[0]),
}
"""Every collective, on a matrix whose rows lie over the devices of a line."""

OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x + x": lambda x: x + x,
    "relu": torch.relu,
    "x @ xᵀ": lambda x: x @ x.t(),
    "sum": torch.sum,
    "softmax": lambda x: x.softmax(-1),
}
"""Single ops, small enough that their cost is that of the call."""


@final
@dataclass(frozen=True, slots=True)
class Measurement:
    """One row: what was done, on how many bytes, how long Weft took, and how long plain torch."""

    group: str
    name: str
    nbytes: int
    weft: Timing
    plain: Timing | None = None

    @property
    def ratio(self) -> float | None:
        """Weft's time over plain torch's."""
        return None if self.plain is None else self.weft.median / self.plain.median


def square(nbytes: int, multiple: int) -> tuple[int, int]:
    """The shape of a float32 matrix of about so many bytes whose sizes are multiples of `multiple`.

    >>> square(1 << 16, 8)
    (128, 128)
    """
    side = max(1, isqrt(nbytes // 4) // multiple) * multiple
    return max(1, nbytes // 4 // side // multiple) * multiple, side


def measurements(devices: Sequence[Device], sizes: Sequence[int], seconds: float) -> Iterator[Measurement]:
    """All rows, one after another.

    >>> rows = list(measurements([CPU(0), CPU(1)], [1024], 0.0))
    >>> rows[0].group, rows[0].name, rows[0].nbytes
    ('movement', 'S0→S1', 1024)
    """
    for nbytes in sizes:
        for transition in TRANSITIONS:
            yield _moved(transition, devices, nbytes, seconds)
    for nbytes in sizes:
        for name in COLLECTIVES:
            yield _collected(name, devices, nbytes, seconds)
    for name in OPS:
        yield _computed(name, devices, seconds)
    for transition in TRANSITIONS[:1]:
        yield _planned(transition, devices, seconds)


def count(sizes: Sequence[int]) -> int:
    """How many rows `measurements` gives.

    >>> count([1024]) == len(TRANSITIONS) + len(COLLECTIVES) + len(OPS) + 1
    True
    """
    return len(sizes) * (len(TRANSITIONS) + len(COLLECTIVES)) + len(OPS) + 1


def _moved(transition: MatrixTransition, devices: Sequence[Device], nbytes: int, seconds: float) -> Measurement:
    mesh = transition.mesh(devices)
    where = torch_device(devices[0])
    shape = square(nbytes, len(devices))
    parts = [torch.ones(shape, device=where) for _ in range(transition.contributions(mesh))]
    x = transition.tensor(mesh, parts)
    timings = _times(devices, seconds, lambda: shard(x, mesh, transition.target), written_once(parts))
    return Measurement("movement", transition.name, parts[0].nbytes, *timings)


def _collected(name: str, devices: Sequence[Device], nbytes: int, seconds: float) -> Measurement:
    mesh = line_of(devices)
    shape = square(nbytes, len(devices) ** 2)
    whole = torch.ones(shape, device=torch_device(devices[0]))
    x = shard(whole, mesh, P("d"))
    reduces = name.startswith(("all_reduce", "reduce_scatter"))
    parts = list(whole.chunk(len(devices))) if reduces else [whole]
    timings = _times(devices, seconds, lambda: COLLECTIVES[name](x, mesh), written_once(parts))
    return Measurement("collective", name, whole.nbytes, *timings)


def _computed(name: str, devices: Sequence[Device], seconds: float) -> Measurement:
    whole = torch.ones(square(1024, len(devices)), device=torch_device(devices[0]))
    x, op = shard(whole, line_of(devices), P("d")), OPS[name]
    pieces = list(whole.chunk(len(devices)))
    timings = _times(devices, seconds, lambda: op(x), lambda: [op(piece) for piece in pieces])
    return Measurement("op", name, whole.nbytes, *timings)


def _planned(transition: MatrixTransition, devices: Sequence[Device], seconds: float) -> Measurement:
    mesh = transition.mesh(devices)
    source, target = transition.layouts(mesh)
    sizes = iter(range(64, 1 << 40, 64))  # each call has a shape of its own, so that no plan is known already
    timing = contest({"weft": lambda: plan(source, target, (4096, next(sizes)), "float32")}, seconds=seconds)["weft"]
    return Measurement("planning", transition.name, 0, timing)


def _times(
    devices: Sequence[Device], seconds: float, weft: Callable[[], object], plain: Callable[[], object]
) -> tuple[Timing, Timing]:
    """Both in turns; work on accelerators is waited for."""
    on_accelerators = any(not isinstance(device, CPU) for device in devices)

    def waited(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            call()
            for i in range(torch.cuda.device_count()):
                torch.cuda.synchronize(i)

        return run if on_accelerators else call

    timings = contest({"weft": waited(weft), "plain": waited(plain)}, seconds=seconds)
    return timings["weft"], timings["plain"]


def duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> duration(0.0123), duration(4.2e-06), duration(2)
    ('12.3 ms', '4.2 µs', '2.00 s')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        value = seconds * factor
        if value >= 1:
            return f"{value:.2f} {unit}" if unit == "s" else f"{value:.1f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def amount(nbytes: int) -> str:
    """Bytes in a readable unit.

    >>> amount(65536), amount(0)
    ('64 KiB', '')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:g} {unit}"
    return f"{nbytes} B" if nbytes else ""


def as_table(rows: Sequence[Measurement], devices: Sequence[Device]) -> Table:
    """The rows, as they are shown in a terminal."""
    names = f"{len(devices)} × {type(devices[0]).__name__}"
    table = Table(title=f"weft on {names}", caption=EXPLAINED, box=None, padding=(0, 1), pad_edge=False)
    table.add_column("what", no_wrap=True)
    for heading in ("size", "Weft", "spread", "plain torch", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    group = ""
    for row in rows:
        if row.group != group:
            table.add_row(f"[b]{row.group}[/b]")
        table.add_row(
            row.name,
            amount(row.nbytes),
            duration(row.weft.median),
            f"±{50 * (row.weft.high - row.weft.low) / row.weft.median:.0f}%",
            "" if row.plain is None else duration(row.plain.median),
            "" if row.ratio is None else f"{row.ratio:.3g}",
        )
        group = row.group
    return table


EXPLAINED = (
    "Medians; the spread is half the distance of the quartiles. Plain torch: the bytes that must be written, copied (or, for sums, added) once into memory that exists; for ops, "
    "the same op on each device's shard. In one memory Weft stores a tensor whole, so most movements copy nothing."
)


@click.command("bench")
@click.option("--devices", "number", type=click.IntRange(min=1), default=None, help="How many devices; all by default.")
@click.option(
    "--mib",
    type=click.FloatRange(min=0.001),
    multiple=True,
    default=(0.0625, 16.0),
    show_default=True,
    help="A size of the tensor; say it again for more.",
)
@click.option("--seconds", type=click.FloatRange(min=0), default=0.1, show_default=True, help="For each contender.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--links", is_flag=True, help="Measure the links between devices instead, and keep them for later programs."
)
@click.option(
    "--keep",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="The file to keep links in, for WEFT_TOPOLOGY.",
)
def bench(
    number: int | None, mib: tuple[float, ...], seconds: float, as_json: bool, links: bool, keep: Path | None
) -> None:
    """Measure movements, collectives, ops and planning on this machine's devices; or the links between them."""
    if links:
        _measure_links(int(max(mib) * (1 << 20)), as_json, keep)
        return
    if world.current().count > 1:
        raise click.ClickException("weft bench measures the devices of one process: start it without a launcher")
    offered = list_devices()
    devices = offered[: number or len(offered)]
    if number is not None and number > len(devices):
        if not isinstance(offered[0], CPU):
            raise click.ClickException(f"--devices {number}: this machine offers {len(offered)}")
        devices = tuple(CPU(i) for i in range(number))
    sizes = [int(size * (1 << 20)) for size in mib]
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=count(sizes))
        for row in measurements(devices, sizes, seconds):
            progress.update(task, advance=1, description=f"{row.group} {row.name}")
            rows.append(row)
    if as_json:
        versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
        click.echo(json.dumps({"devices": len(devices), **versions, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        Console().print(as_table(rows, devices))


def _measure_links(size: int, as_json: bool, keep: Path | None) -> None:
    found = measured_links(size)
    if world.current().process != 0:
        return
    file = keep_topology(found, keep)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("link", "bandwidth", "latency", ""):
        table.add_column(heading)
    for tier in Tier:
        link, whence = found.link(tier), "measured" if tier in tiers_here() else "assumed"
        table.add_row(tier.name.lower(), f"{link.bandwidth / 1e9:.3g} GB/s", duration(found.latency(tier)), whence)
    Console().print(table)
    if found.processor is not None:
        each = found.processor
        taking, adding, copying = (f"{speed / 1e9:.3g} GB/s" for speed in (each.taking, each.adding, each.copying))
        click.echo(
            f"all busy, a processor takes {taking}, adds {adding} and copies {copying}, and each message more takes "
            f"{duration(each.message)}; alone it is {each.alone:.1f} × as fast"
        )
    how = "later programs of this host go by it" if keep is None else f"programs go by it with WEFT_TOPOLOGY={file}"
    click.echo(f"kept in {file}: {how}")
