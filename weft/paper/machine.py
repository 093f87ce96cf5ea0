"""`Machine`: what a device computes, holds and reads in a second, and the links between devices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import final

import torch

from ..caches import cached
from ..planning import Topology, current_topology
from ..planning.topology import Link
from .work import OpWork

__all__ = ["MACHINES", "Machine", "machine_of"]

WARMING = {"cuda": 1.0, "cpu": 0.2}
"""Seconds after which an accelerator computes as fast as it will for hours, and in which processes that share cores take turns."""


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of device and the links between such devices.

    `flops` are dense operations a second by the bytes of a number: 1 (fp8, int8), 2 (bf16, fp16), 4 and 8. `products` and
    `streaming` are the parts of the peak figures that products of matrices and other kernels reach; `launch` is what each
    kernel takes at least.

    >>> machine = Machine.preset("h100")
    >>> machine.memory // 2**30, round(machine.seconds(OpWork(10**15, 0, torch.bfloat16)), 2)
    (80, 1.44)
    """

    name: str
    flops: Mapping[int, float]
    memory: int
    bandwidth: float
    topology: Topology
    products: float = 0.7
    streaming: float = 0.85
    launch: float = 4e-6

    def __post_init__(self) -> None:
        if not self.flops or any(not each > 0 for each in self.flops.values()):
            raise ValueError(
                f"a machine needs operations a second by bytes of a number, {{2: 989e12}}, but got {self.flops!r}"
            )
        for name in ("memory", "bandwidth", "products", "streaming"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} of a machine is more than 0, but got {getattr(self, name)!r}")

    @classmethod
    def preset(cls, name: str) -> Machine:
        """A common kind of device: 'h100', 'h200', 'a100', 'mi300x', 'tpu-v5p'; or 'cpu', the one at hand, measured.

        >>> Machine.preset("mi300x").memory // 2**30
        192
        """
        if name == "cpu":
            return _measured("cpu")
        found = MACHINES.get(name)
        if found is None:
            known = ", ".join(map(repr, ("cpu", *MACHINES)))
            raise ValueError(f"unknown machine {name!r}: use one of {known}, or weft.Machine(...)")
        return found

    @classmethod
    def measure(cls, device: str = "cpu") -> Machine:
        """The machine at hand, "cpu" or "cuda": products of matrices, copies and the smallest op, timed.

        >>> Machine.measure().bandwidth > 0
        True
        """
        return _measured(device)

    @property
    def is_host(self) -> bool:
        """Whether its devices are processors of hosts, for which torch takes other ways than for accelerators."""
        return self.name == "cpu"

    def seconds(self, work: OpWork) -> float:
        """What an op takes: as long as its arithmetic or its memory needs, whichever is longer."""
        size = min((each for each in self.flops if each >= work.dtype.itemsize), default=max(self.flops))
        arithmetic = work.flops / (self.flops[size] * self.products)
        return max(self.launch, arithmetic, work.nbytes / (self.bandwidth * self.streaming))


_H100 = Machine("h100", {1: 1979e12, 2: 989e12, 4: 67e12, 8: 67e12}, 80 << 30, 3.35e12, Topology.preset("h100"))

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "h100": _H100,
        "h200": replace(_H100, name="h200", memory=141 * 10**9, bandwidth=4.8e12),
        "a100": Machine(
            "a100", {1: 624e12, 2: 312e12, 4: 19.5e12, 8: 19.5e12}, 80 << 30, 2.04e12, Topology.preset("a100")
        ),
        "mi300x": Machine(
            "mi300x",
            {1: 2615e12, 2: 1307e12, 4: 163e12, 8: 163e12},
            192 << 30,
            5.3e12,
            Topology(Link(2e-6, 4e12), Link(10e-6, 350e9), Link(15e-6, 45e9), Link(25e-6, 22e9), 8, 4),
        ),
        "tpu-v5p": Machine("tpu-v5p", {1: 918e12, 2: 459e12, 4: 153e12}, 95 << 30, 2.77e12, Topology.preset("tpu")),
    }
)
"""Makers' figures for dense arithmetic; 32-bit numbers as torch computes them when nothing else is set."""


def machine_of(given: Machine | Topology | str | None, *, on_accelerators: bool) -> Machine:
    """The machine that a user means: by name, by its links, or by the devices that the mesh has and the links of this program.

    >>> machine_of("a100", on_accelerators=True).name, machine_of(None, on_accelerators=True).name
    ('a100', 'h100')
    """
    if isinstance(given, Machine):
        return given
    if isinstance(given, Topology):
        known = next((each for each in MACHINES.values() if each.topology == given), None)
        return known or replace(_H100, name="h100 with links as given", topology=given)
    if given is None:
        machine = Machine.preset("h100" if on_accelerators else "cpu")
        links = current_topology()
        return machine if links == Topology() else replace(machine, topology=links)
    if isinstance(given, str):
        return Machine.preset(given)
    raise TypeError(f"topology= is the name of a machine, a weft.Topology or a weft.Machine, but got {given!r}")


@cached(8)
def _measured(device: str) -> Machine:
    """What the devices of one kind reach here, of which nothing is taken off."""
    on_host = device == "cpu"
    sizes = {4: 512, 8: 256} if on_host else {2: 8192, 4: 4096, 8: 2048}
    dtypes = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
    flops = {}
    for itemsize, size in sizes.items():
        # Products of equal numbers draw less power than others, and are faster for it.
        a = torch.randn(size, size, dtype=dtypes[itemsize], device=device)
        flops[itemsize] = 2 * size**3 / _steady(partial(torch.matmul, a, a), device)
    x = torch.ones(1 << (23 if on_host else 28), device=device)
    y = torch.empty_like(x)
    on_average = _steady if on_host else _fastest
    copied = on_average(lambda: y.copy_(x), device)
    small = torch.ones(8, device=device)
    started = on_average(lambda: [small.add_(1) for _ in range(100)], device) / 100
    memory = 16 << 30 if on_host else torch.cuda.get_device_properties(device).total_memory
    topology = Topology.preset("cpu" if on_host else "h100")
    return Machine(device, flops, memory, 2 * x.nbytes / copied, topology, products=1.0, streaming=1.0, launch=started)


def _steady(call: Callable[[], object], device: str) -> float:
    """What a call takes on average that is repeated for a while.

    Accelerators that draw all the power they may slow down, and where processes share cores, each waits for its turn.
    """
    times, until = [], time.perf_counter() + WARMING[device]
    while time.perf_counter() < until:
        times.append(_fastest(lambda: [call() for _ in range(10)], device, 1) / 10)
    return statistics.fmean(times[len(times) // 2 :])


def _fastest(call: Callable[[], object], device: str, turns: int = 7) -> float:
    def timed() -> float:
        start = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return min(timed() for _ in range(turns))
