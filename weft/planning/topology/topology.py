"""`Topology`: which devices share a host and a rack, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TypeVar, final

from ...caches import cached
from ...devices import Device
from ...sharding.mesh import DeviceMesh
from .links import Link, Processor, Tier
from .measuring import measured_memory, measured_socket

__all__ = ["PRESETS", "Topology", "axis_tier", "cells", "is_flat"]

T = TypeVar("T", Link, Processor)

MEMORY, SOCKET, CABLE, SWITCHES = Link(1e-6, 200e9), Link(10e-6, 10e9), Link(20e-6, 5e9), Link(40e-6, 2.5e9)
"""What links are taken to be like where nobody says: within a device, a host, a rack, and between racks."""


@final
@dataclass(frozen=True, slots=True)
class Topology:
    """Which devices share a host and a rack, and the links within a device, a host, a rack and between racks.

    Devices are counted off by their id: `devices_per_host` to a host, `hosts_per_rack` to a rack; `None` means all.
    Where hosts have different numbers of devices, `hosts` says for each id on which host the device is.

    >>> from weft.devices import Accelerator
    >>> topology = Topology.preset("h100")
    >>> topology.tier(Accelerator(0), Accelerator(7)), topology.tier(Accelerator(0), Accelerator(8))
    (<Tier.HOST: 1>, <Tier.RACK: 2>)
    """

    device: Link = MEMORY
    host: Link = SOCKET
    rack: Link = CABLE
    fabric: Link = SWITCHES
    devices_per_host: int | None = None
    hosts_per_rack: int | None = None
    hosts: tuple[int, ...] | None = None
    processor: Processor | None = None
    """What has to work for all links at once, where that counts; accelerators move data beside their work."""

    def __post_init__(self) -> None:
        for name in ("device", "host", "rack", "fabric"):
            if not isinstance(getattr(self, name), Link):
                raise TypeError(
                    f"{name} is a Link, but got {getattr(self, name)!r}: use Link(latency=10e-6, bandwidth=10e9)"
                )
        if self.processor is not None and not isinstance(self.processor, Processor):
            raise TypeError(f"processor is a Processor or None, but got {self.processor!r}")
        for name in ("devices_per_host", "hosts_per_rack"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise ValueError(f"{name} is 1 or more, or None for all, but got {count!r}")
        if self.hosts is not None and self.devices_per_host is not None:
            raise ValueError(
                f"hosts={self.hosts!r} and devices_per_host={self.devices_per_host} both say where devices are: give one of them"
            )
        if self.hosts is not None:
            hosts = self.hosts if isinstance(self.hosts, (tuple, list)) else ()
            if not hosts or not all(type(host) is int and host >= 0 for host in hosts):
                raise ValueError(
                    f"hosts has the number of a host, 0 or more, for each device id, but got {self.hosts!r}: use hosts=(0, 0, 1, 1)"
                )
            object.__setattr__(self, "hosts", tuple(hosts))

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
        return replace(cls(), device=measured_memory(size), host=measured_socket(size))

    @property
    def has_links_apart(self) -> bool:
        """Whether each device has links of its own, and nothing else to do with what they carry.

        >>> Topology().has_links_apart, Topology(rack=Link(0.0, 1e9, alone=2.0)).has_links_apart
        (True, False)
        """
        links = (self.host, self.rack, self.fabric)
        return self.processor is None and all(link.alone == 1 for link in links)

    def link(self, tier: Tier) -> Link:
        """The link of one tier."""
        links = (self.device, self.host, self.rack, self.fabric)
        return links[tier]

    def latency(self, tier: Tier) -> float:
        """The seconds until a message over links of one tier is under way, with what a processor does for that.

        >>> Topology(host=Link(1.0, 1e9), processor=Processor(1e9, 1e9, 1e9, starting=2.0)).latency(Tier.HOST)
        3.0
        """
        starting = 0.0 if self.processor is None or tier is Tier.DEVICE else self.processor.starting
        return self.link(tier).latency + starting

    def time(self, tier: Tier, received: float, phases: int = 1, *, added: float = 0.0) -> float:
        """The seconds that a device takes to receive so many bytes over links of one tier, some of which it adds.

        >>> Topology(host=Link(0.0, 1e9)).time(Tier.HOST, 1_000_000)
        0.001
        """
        carried, begun = received / self.link(tier).bandwidth, self.latency(tier) * phases
        if self.processor is None or tier is Tier.DEVICE:
            return begun + carried
        return begun + max(carried, received / self.processor.taking) + self.processor.after(added, 0.0)

    def host_of(self, device: Device) -> int:
        """The number of the host that a device is on.

        >>> from weft.devices import CPU
        >>> Topology(devices_per_host=4).host_of(CPU(5)), Topology(hosts=(0, 0, 1)).host_of(CPU(2))
        (1, 1)
        """
        if self.hosts is not None:
            if device.id >= len(self.hosts):
                raise ValueError(
                    f"the topology says on which host {len(self.hosts)} devices are, and {device!r} is not among them: "
                    "give `hosts` an entry for each id, or use devices_per_host"
                )
            return self.hosts[device.id]
        return 0 if self.devices_per_host is None else device.id // self.devices_per_host

    def rack_of(self, device: Device) -> int:
        """The number of the rack that a device is in.

        >>> from weft.devices import CPU
        >>> Topology(devices_per_host=2, hosts_per_rack=2).rack_of(CPU(5))
        1
        """
        return 0 if self.hosts_per_rack is None else self.host_of(device) // self.hosts_per_rack

    def tier(self, first: Device, second: Device) -> Tier:
        """How far apart two devices are."""
        if first == second:
            return Tier.DEVICE
        if self.host_of(first) == self.host_of(second):
            return Tier.HOST
        return Tier.RACK if self.rack_of(first) == self.rack_of(second) else Tier.FABRIC

    def to_dict(self) -> dict[str, object]:
        """The topology in words and numbers that JSON has.

        >>> Topology(devices_per_host=4).to_dict()["host"]
        {'latency': 1e-05, 'bandwidth': 10000000000.0, 'alone': 1.0}
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, said: Mapping[str, object]) -> Topology:
        """The topology that was written by `to_dict`.

        >>> Topology.from_dict(Topology.preset("h100").to_dict()) == Topology.preset("h100")
        True
        """
        links: dict[str, Link] = {}
        places: dict[str, object] = {}
        for name, value in said.items():
            if name in ("device", "host", "rack", "fabric") and isinstance(value, Mapping):
                links[name] = _said(Link, name, value)
            elif name == "processor" and isinstance(value, Mapping):
                places[name] = _said(Processor, name, value)
            elif name in ("devices_per_host", "hosts_per_rack", "hosts", "processor"):
                places[name] = tuple(value) if isinstance(value, list) else value
            else:
                names = ", ".join(cls.__dataclass_fields__)
                raise ValueError(f"a topology has no {name!r} that is {value!r}: it has {names}")
        return cls(**links, **places)  # type: ignore[arg-type]


def _said(kind: type[T], name: str, figures: Mapping[str, float]) -> T:
    """A part of a topology, from its figures."""
    try:
        return kind(**{key: float(each) for key, each in figures.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name!r} of a topology is no {kind.__name__}: {error}") from error


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
def cells(mesh: DeviceMesh, topology: Topology, tier: Tier) -> tuple[int, ...]:
    """For each slot, the number of the host or of the rack that it is in.

    >>> from weft.sharding.mesh import make_mesh
    >>> cells(make_mesh({"a": 4}), Topology(devices_per_host=2), Tier.HOST)
    (0, 0, 1, 1)
    """
    number = topology.rack_of if tier is Tier.RACK else topology.host_of
    return tuple(number(device) for device in mesh.devices)


@cached(1024)
def is_flat(topology: Topology, *meshes: DeviceMesh) -> bool:
    """Whether all devices of some meshes share a host: then all links between them are alike."""
    if topology.devices_per_host is None and topology.hosts is None:
        return True
    return len({cell for mesh in meshes for cell in cells(mesh, topology, Tier.HOST)}) == 1


@cached(1024)
def axis_tier(mesh: DeviceMesh, axis: str, topology: Topology) -> Tier:
    """The farthest that two neighbours along a mesh axis are apart."""
    if mesh.is_simulated or mesh.is_single:
        return Tier.DEVICE
    if is_flat(topology, mesh):
        return Tier.HOST
    hosts, racks = cells(mesh, topology, Tier.HOST), cells(mesh, topology, Tier.RACK)
    tier = Tier.HOST
    for first, *others in mesh.groups(axis):
        for slot in others:
            if racks[slot] != racks[first]:
                return Tier.FABRIC
            if hosts[slot] != hosts[first]:
                tier = Tier.RACK
    return tier
