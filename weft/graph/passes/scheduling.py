"""Movements start as early as they can, so that they run beside the computation that does not need them.

Calls keep their order but for this. What touches one device's memory from outside keeps its order on that device (its
chain): since all chains are cut from one order of the whole program, no two devices can wait for each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise

from torch import fx

from ..lowering.program import Program
from ..recording.device_ref import DeviceRef
from ..recording.op import CHAINED, Kind, RecordedCall
from ..recording.values import GraphValue

__all__ = ["chains", "start_movements_early"]


def devices_of(call: RecordedCall) -> frozenset[DeviceRef]:
    """The devices that take part in a call."""
    return frozenset(kind.device for kind in call.types) | frozenset(_devices(call.args))


def _devices(argument: object) -> Iterator[DeviceRef]:
    if isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _devices(item)
    elif isinstance(argument, DeviceRef):
        yield argument
    elif isinstance(argument, GraphValue):
        yield argument.type.device  # type: ignore[attr-defined]


def chains(program: Program) -> dict[DeviceRef, list[fx.Node]]:
    """For each device, in order, what touches it from outside or writes its buffers."""
    found: dict[DeviceRef, list[fx.Node]] = {}
    for node in program.fx.nodes:
        if node.op == "call_function" and node.meta["kind"] in CHAINED:
            for device in sorted(devices_of(node.meta["call"]), key=str):
                found.setdefault(device, []).append(node)
    return found


def start_movements_early(program: Program) -> int:
    """Bring movements forward; how many calls changed their place."""
    nodes = [node for node in program.fx.nodes if node.op == "call_function"]
    if not any(node.meta["kind"] in (Kind.MOVEMENT, Kind.COLLECTIVE) for node in nodes):
        return 0
    place = {node: at for at, node in enumerate(nodes)}
    after: dict[fx.Node, set[fx.Node]] = {node: {u for u in node.all_input_nodes if u in place} for node in nodes}
    for chain in chains(program).values():
        for earlier, later in pairwise(chain):
            after[later].add(earlier)
    order = _ordered(nodes, place, after)
    moved = sum(a is not b for a, b in zip(nodes, order, strict=True))
    if moved:
        anchor = next(node for node in program.fx.nodes if node.op == "output")
        for node in order:
            anchor.prepend(node)
    return moved


def _ordered(nodes: list[fx.Node], place: dict[fx.Node, int], after: dict[fx.Node, set[fx.Node]]) -> list[fx.Node]:
    """The recorded order, but movements, and what they wait for, first among what is ready."""
    urgent: set[fx.Node] = set()
    for node in reversed(nodes):
        if node.meta["kind"] in (Kind.MOVEMENT, Kind.COLLECTIVE):
            urgent.add(node)
    waiting = {node: len(before) for node, before in after.items()}
    users: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
    for node, before in after.items():
        for earlier in before:
            users[earlier].append(node)
    ready = [(node not in urgent, place[node]) for node in nodes if not waiting[node]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, at = heapq.heappop(ready)
        order.append(nodes[at])
        for user in users[nodes[at]]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user not in urgent, place[user]))
    return order
