"""`Topology`: how far apart devices are, and how fast the links between them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import final

from ..caches import cached
from ..devices import Device
from ..sharding.mesh import DeviceMesh

__all__ = ["Link", "Tier", "Topology", "axis_tier"]


class Tier(IntEnum):
    """What two devices have in common, nearest first.

    >>> Tier.HOST < Tier.RACK
    True
    """

    DEVICE = 0
    HOST = 1
    RACK = 2
    FABRIC = 3


@final
@dataclass(frozen=True, slots=True)
class Link:
    """The seconds that one message takes to start, and the bytes a second that one device receives.

    >>> Link(latency=10e-6, bandwidth=1e9).time(1_000_000)
    0.00101
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not self.latency >= 0:
            raise ValueError(f"the latency of a link is 0 seconds or more, but got {self.latency!r}")
        if not self.bandwidth > 0:
            raise ValueError(f"the bandwidth of a link is more than 0 bytes a second, but got {self.bandwidth!r}")

    def time(self, size: float, phases: int = 1) -> float:
        """The seconds that it takes to receive `size` bytes in a number of phases."""
        return self.latency * phases + size / self.bandwidth


@final
@dataclass(frozen=True, slots=True)
class Topology:
    """Which devices share a host and a rack, and the links within a device, a host, a rack and between racks.

    Devices are counted off by their id: `devices_per_host` to a host, `hosts_per_rack` to a rack; `None` means all.

    >>> from weft.devices import Accelerator
    >>> topology = Topology.preset("h100")
    >>> topology.tier(Accelerator(0), Accelerator(7)), topology.tier(Accelerator(0), Accelerator(8))
    (<Tier.HOST: 1>, <Tier.RACK: 2>)
    """

    device: Link = Link(1e-6, 200e9)
    host: Link = Link(10e-6, 10e9)
    rack: Link = Link(20e-6, 5e9)
    fabric: Link = Link(40e-6, 2.5e9)
    devices_per_host: int | None = None
    hosts_per_rack: int | None = None

    def __post_init__(self) -> None:
        for name in ("devices_per_host", "hosts_per_rack"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise ValueError(f"{name} is 1 or more, or None for all, but got {count!r}")

    @classmethod
    def preset(cls, name: str) -> Topology:
        """The topology of a common machine: 'cpu', 'pcie', 'a100', 'h100', 'ethernet' or 'tpu'.

        >>> Topology.preset("a100").devices_per_host
        8
        """
        topology = PRESETS.get(name)
        if topology is None:
            raise ValueError(f"unknown topology {name!r}: use one of {', '.join(map(repr, PRESETS))}, or Topology(...)")
        return topology

    @classmethod
    def measure(cls, size: int = 1 << 24) -> Topology:
        """The topology of the machine at hand: copies within its memory, and messages through its sockets.

        >>> Topology.measure(1 << 16).host.bandwidth > 0
        True
        """
        return replace(cls(), device=_measured_memory(size), host=_measured_socket(size))

    def link(self, tier: Tier) -> Link:
        """The link of one tier."""
        links = (self.device, self.host, self.rack, self.fabric)
        return links[tier]

    def tier(self, first: Device, second: Device) -> Tier:
        """How far apart two devices are."""
        if first == second:
            return Tier.DEVICE
        if self.devices_per_host is None:
            return Tier.HOST
        host, other = first.id // self.devices_per_host, second.id // self.devices_per_host
        if host == other:
            return Tier.HOST
        if self.hosts_per_rack is None or host // self.hosts_per_rack == other // self.hosts_per_rack:
            return Tier.RACK
        return Tier.FABRIC


PRESETS: Mapping[str, Topology] = MappingProxyType(
    {
        "cpu": Topology(),
        "pcie": Topology(Link(2e-6, 500e9), Link(12e-6, 20e9), Link(20e-6, 12e9), Link(40e-6, 6e9), 8),
        "a100": Topology(Link(2e-6, 1.3e12), Link(8e-6, 250e9), Link(15e-6, 22e9), Link(25e-6, 11e9), 8, 4),
        "h100": Topology(Link(2e-6, 2.5e12), Link(8e-6, 400e9), Link(15e-6, 45e9), Link(25e-6, 22e9), 8, 4),
        "ethernet": Topology(Link(1e-6, 200e9), Link(10e-6, 10e9), Link(50e-6, 1.2e9), Link(100e-6, 0.6e9), 8),
        "tpu": Topology(Link(2e-6, 800e9), Link(5e-6, 90e9), Link(5e-6, 90e9), Link(30e-6, 6e9), 4, 64),
    }
)
"""Round numbers of what one device receives, below the makers' peak figures."""


@cached(1024)
def axis_tier(mesh: DeviceMesh, axis: str, topology: Topology) -> Tier:
    """The farthest that two neighbours along a mesh axis are apart."""
    if mesh.is_simulated or mesh.is_single:
        return Tier.DEVICE
    if topology.devices_per_host is None:
        return Tier.HOST
    devices = mesh.devices
    return max(topology.tier(devices[group[0]], devices[slot]) for group in mesh.groups(axis) for slot in group)


def _measured_memory(size: int) -> Link:
    source, target = bytearray(size), bytearray(size)
    view = memoryview(target)
    seconds = min(_timed(lambda: view.__setitem__(slice(None), source)) for _ in range(5))
    start = min(_timed(lambda: view[:8].__setitem__(slice(None), source[:8])) for _ in range(50))
    return Link(start, size / max(seconds, 1e-9))


def _measured_socket(size: int) -> Link:
    payload, answer = bytes(size), bytearray(1)
    received = bytearray(size)
    near, far = socket.socketpair()

    def echo() -> None:
        for length in (1, size):
            _receive(far, memoryview(received)[:length])
            far.sendall(b"x")

    with near, far:
        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        latency = _timed(lambda: _asked(near, b"x", answer)) / 2
        seconds = _timed(lambda: _asked(near, payload, answer))
        thread.join()
    return Link(latency, size / max(seconds - latency, 1e-9))


def _asked(end: socket.socket, payload: bytes, answer: bytearray) -> None:
    end.sendall(payload)
    _receive(end, memoryview(answer)[:1])


def _receive(end: socket.socket, view: memoryview) -> None:
    while len(view):
        view = view[end.recv_into(view) :]


def _timed(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
