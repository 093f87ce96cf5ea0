"""Which processes share a host: found when they join, and the topology that follows, the same in all of them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch._C._distributed_c10d import Store

from ...planning import Topology
from ...planning.topology.keeping import said_topology

__all__ = ["host_name", "shared_topology", "topology_of_hosts"]


def shared_topology(store: Store, process: int, count: int, devices_per_process: int, backend: str) -> Topology:
    """The topology of all processes' devices: each says its host, and the first puts it together for all."""
    store.set(f"host of {process}", host_name())
    if process == 0:
        names = [store.get(f"host of {other}").decode() for other in range(count)]
        found = topology_of_hosts(names, devices_per_process, said_topology() or _usual(len(set(names)), backend))
        store.set("topology", json.dumps(found.to_dict()))
        return found
    return Topology.from_dict(json.loads(store.get("topology").decode()))


def topology_of_hosts(hosts: Sequence[str], devices_per_process: int, links: Topology) -> Topology:
    """The topology of processes on hosts of these names, with the links of another.

    >>> topology_of_hosts(["a", "a", "b", "b"], 2, Topology()).devices_per_host
    4
    >>> topology_of_hosts(["a", "b", "a"], 1, Topology()).hosts
    (0, 1, 0)
    """
    number = {name: index for index, name in enumerate(dict.fromkeys(hosts))}
    each = [number[name] for name in hosts for _ in range(devices_per_process)]
    if len(number) == 1:
        return replace(links, devices_per_host=None, hosts=None)
    count = len(each) // len(number)
    if each == [device // count for device in range(len(each))]:
        return replace(links, devices_per_host=count, hosts=None)
    return replace(links, devices_per_host=None, hosts=tuple(each))


def host_name() -> str:
    """What this host is called: the launcher's number for it, else its name."""
    number = os.environ.get("GROUP_RANK")
    return socket.gethostname() if number is None else f"host {number} of the launcher"


def _usual(hosts: int, backend: str) -> Topology:
    """Links as they usually are, until somebody measures them."""
    if hosts == 1:
        return Topology()
    if backend == "gloo":
        return Topology.preset("ethernet")
    name = torch.cuda.get_device_name()
    presets = {"A100": "a100", "H100": "h100", "H200": "h100", "B200": "h100"}
    return Topology.preset(next((preset for chip, preset in presets.items() if chip in name), "pcie"))
