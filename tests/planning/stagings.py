"""Every way through layouts in between, to compare plans with: steps one after another, each straight or staged."""

from __future__ import annotations

import math
from functools import cached_property

from weft.devices import CPU
from weft.errors import PlanError
from weft.planning import Link, Topology, plan_layouts, step_between
from weft.planning.costs.cost import staged, step_time
from weft.sharding import DeviceMesh
from weft.sharding.layout import Layout

from .test_bounds import all_layouts

LINKS = {"host": Link(8e-6, 400e9), "rack": Link(15e-6, 45e9), "fabric": Link(25e-6, 22e9)}
STRAIGHT = Topology()


class Stagings:
    """All layouts of a tensor on hosts of devices, and what each step between two of them takes."""

    def __init__(self, hosts: int, devices: int, shape: tuple[int, ...], *, turned: bool = False) -> None:
        self.shape = shape
        self.topology = Topology(**LINKS, devices_per_host=devices)
        ids = range(hosts * devices)
        if turned:  # neighbours along the last axis are on different hosts
            order = [host * devices + device for device in range(devices) for host in range(hosts)]
            self.mesh = DeviceMesh([CPU(i) for i in order], (devices, hosts), ("d", "h"))
        else:
            self.mesh = DeviceMesh([CPU(i) for i in ids], (hosts, devices), ("h", "d"))
        self.layouts = all_layouts(self.mesh, len(shape), pending=True)

    @cached_property
    def steps(self) -> dict[tuple[Layout, Layout], tuple[float, int]]:
        """Seconds and bytes of the one step between two layouts, where there is one."""
        found = {(layout, layout): (0.0, 0) for layout in self.layouts}
        for source in self.layouts:
            for target in self.layouts:
                try:
                    step = step_between(source, target, self.shape, 4)
                except PlanError:
                    continue
                if source is not target:
                    step = staged(step, self.topology)
                    found[source, target] = step_time(step, self.topology), step.bytes_received.total
        return found

    def best(self, source: Layout, target: Layout, most: int) -> float:
        """The least time of up to three steps that move no more than `most` bytes."""
        best = math.inf
        for one in self.layouts:
            first = self.steps.get((source, one))
            if first is None or first[1] > most or first[0] >= best:
                continue
            for other in self.layouts:
                second, third = self.steps.get((one, other)), self.steps.get((other, target))
                if second and third and first[1] + second[1] + third[1] <= most:
                    best = min(best, first[0] + second[0] + third[0])
        return best

    def ratios(self) -> list[float]:
        """The time of each plan over the best; none moves more than the plan for links that are all alike."""
        found = []
        for source in self.layouts:
            for target in self.layouts:
                plan = plan_layouts(source, target, self.shape, 4, topology=self.topology)
                straight = plan_layouts(source, target, self.shape, 4, topology=STRAIGHT).bytes_received.total
                assert plan.bytes_received.total <= straight
                best = self.best(source, target, straight)
                found.append(plan.estimated_time / best if best else 1.0 + plan.estimated_time)
        return found
