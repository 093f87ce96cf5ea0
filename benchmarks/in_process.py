"""Layout transitions and collectives on 8 CPU devices in one process: Weft, the physical limit, JAX and MAX.

    python benchmarks/section.py transitions        or: collectives

The limit is the same reads and writes done by plain torch into memory that exists: `copy_` of the bytes that must be
written, or for pending sums the chunked adds. Weft runs twice: in one memory (the default, in which most movements copy
nothing), and with a separate memory for each device, as between GPUs, where each device's shard is written for real;
that has a limit of its own. JAX always writes each device's shard. MAX has a process of its own, and is timed there.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import torch
from contest import contest
from figure import LIMIT, SEPARATE, SEPARATE_LIMIT, WEFT, Figure
from peers import jax_movements, max_movements

import weft
from weft import CPU, P
from weft.inspect.bench import COLLECTIVES, square
from weft.inspect.limits import written_everywhere, written_once
from weft.inspect.transitions import TRANSITIONS, MatrixTransition, line_of
from weft.runtime import machine
from weft.runtime.memory.host_memory import empty_cache
from weft.sharding.layout import Layout

DEVICES = [CPU(i) for i in range(8)]
APART = [CPU(8 + i) for i in range(8)]
"""Devices that are taken to have a memory each. Where a mesh lies is found out once, so both kinds can take turns."""
LINE = line_of(DEVICES)
KIB, MIB = 1 << 10, 1 << 20
MEMORY = Path("/proc/meminfo")
SIZES = (64 * KIB, 16 * MIB, 64 * MIB, 256 * MIB)


def pace(nbytes: int, quick: bool) -> dict[str, float | int]:
    """How long a contest may take."""
    if nbytes <= MIB:
        return {"seconds": 0.04 if quick else 0.3, "most": 400}
    if nbytes <= 64 * MIB:
        return {"seconds": 0.1 if quick else 0.8, "least": 5 if quick else 7, "warm": 1}
    return {"seconds": 0.1 if quick else 1.0, "least": 3 if quick else 5, "warm": 1}


def apart(make: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    """A call on a mesh of devices that have a memory each; `make` may only name devices in `APART`."""
    machine.ownership.separate_memory = True
    try:
        call = make()
        call()
    finally:
        machine.ownership.separate_memory = False
    return call


def transitions(quick: bool) -> Iterator[int | Figure]:
    """Twelve transitions at four sizes, or the two smaller ones."""
    sizes = SIZES[:2] if quick else SIZES
    yield len(TRANSITIONS) * len(sizes)
    for nbytes in sizes:
        for transition in TRANSITIONS:
            gc.collect()
            empty_cache()
            if needed(transition, nbytes) > available():
                yield Figure("transitions", transition.name, {}, nbytes)
                continue
            yield transition_figure(transition, nbytes, quick)


def needed(transition: MatrixTransition, nbytes: int) -> int:
    """Bytes of memory that all contenders hold at once: what each starts from, and a whole result on every device."""
    return nbytes * (5 * transition.contributions(transition.mesh(DEVICES)) + 3 * len(DEVICES))


def available() -> int:
    """Bytes of memory that may be taken without taking them from others; what only caches files may be."""
    for line in MEMORY.read_text().splitlines() if MEMORY.exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    return 1 << 40


def transition_figure(transition: MatrixTransition, nbytes: int, quick: bool) -> Figure:
    """One transition: all contenders."""
    mesh = transition.mesh(DEVICES)
    source, target = transition.layouts(mesh)
    parts = [torch.ones(square(nbytes, 64)) for _ in range(transition.contributions(mesh))]

    def moving(devices: Sequence[CPU]) -> Callable[[], object]:
        mesh = transition.mesh(devices)
        x = transition.tensor(mesh, parts)
        return lambda: weft.shard(x, mesh, transition.target)

    contenders = {
        WEFT: moving(DEVICES),
        SEPARATE: apart(lambda: moving(APART)),
        **limits(source, target, parts),
        **jax_movements.transition(transition, mesh, tuple(parts[0].shape)),
        **({} if quick else max_movements.transition(transition, mesh, tuple(parts[0].shape))),
    }
    return Figure("transitions", transition.name, contest(contenders, **pace(nbytes, quick)), parts[0].nbytes)


def limits(source: Layout, target: Layout, parts: Sequence[torch.Tensor]) -> dict[str, Callable[[], object]]:
    """The reads and writes that must be: none where every device holds already what it should."""
    everywhere = written_everywhere(source, target, parts)
    if not everywhere():
        return {}
    return {LIMIT: written_once(parts), SEPARATE_LIMIT: everywhere}


def collectives(quick: bool) -> Iterator[int | Figure]:
    """Every collective at two sizes."""
    sizes = SIZES[:2]
    yield len(COLLECTIVES) * len(sizes)
    for nbytes in sizes:
        for name in COLLECTIVES:
            yield collective_figure(name, nbytes, quick)
            gc.collect()


def collective_figure(name: str, nbytes: int, quick: bool) -> Figure:
    """One collective: all contenders."""
    whole = torch.ones(square(nbytes, 64))

    def collecting(devices: Sequence[CPU]) -> Callable[[], object]:
        mesh = line_of(devices)
        x = weft.shard(whole, mesh, P("d"))
        return lambda: COLLECTIVES[name](x, mesh)

    contenders = {
        WEFT: collecting(DEVICES),
        SEPARATE: apart(lambda: collecting(APART)),
        **collective_limits(name, whole),
        **jax_movements.collective(name, LINE, tuple(whole.shape)),
        **({} if quick else max_movements.collective(name, LINE, tuple(whole.shape))),
    }
    return Figure("collectives", name, contest(contenders, **pace(nbytes, quick)), whole.nbytes)


def collective_limits(name: str, whole: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The layouts between which a collective moves, and what it sums or compares on the way."""
    rows, columns, nowhere = Layout(LINE, (("d",), ())), Layout(LINE, ((), ("d",))), Layout(LINE, ((), ()))
    pending = Layout(LINE, ((), ()), {"d": weft.ReduceOp.SUM})
    if name in ("ppermute", "to_device"):
        return {LIMIT: written_once([whole]), SEPARATE_LIMIT: written_once([whole])}
    if name.startswith(("all_reduce", "reduce_scatter")):
        target = nowhere if name.startswith("all_reduce") else rows
        return limits(pending, target, list(whole.chunk(8)))
    return limits(rows, columns if name == "all_to_all" else nowhere, [whole])
