"""Figures of processors come out of what movements took, whichever took part, and are right on average."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import geometric_mean

import pytest

from weft.inspect.processors import Timed, fitted
from weft.planning import Topology
from weft.planning.staging.link_load import LinkLoad
from weft.planning.topology import Processor

TRUE = Processor(taking=1e9, adding=2e9, copying=4e9, message=1e-4, alone=1.5, starting=2e-3)
LOADS = [
    replace(LinkLoad(host=size, added=added * size, copied=copied * size, messages=messages), busy=busy)
    for size in (1e5, 1e6, 1e7)
    for added, copied, messages, busy in ((0, 0, 1, 1), (1, 0, 3, 1), (0, 2, 3, 1), (0, 1, 1, 0.5), (1, 0, 1, 0.5))
]


def taken(load: LinkLoad, processor: Processor) -> float:
    return load.time(Topology(host=Topology().device, processor=processor))


def test_what_movements_took_tells_the_processor():
    found = fitted([Timed((load,), taken(load, TRUE) - Topology().device.latency) for load in LOADS], 4)
    assert found.alone == TRUE.alone
    for name in ("taking", "adding", "copying", "message", "starting"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6), name


def test_prices_are_right_on_average_where_times_vary():
    chance = random.Random(5)
    timed = [Timed((load,), taken(load, TRUE) * math.exp(chance.gauss(0, 0.3))) for load in LOADS]
    found = fitted(timed, 4)
    assert geometric_mean(taken(hops[0], found) / seconds for hops, seconds in timed) == pytest.approx(1, rel=1e-2)
    assert min(found.message, found.starting) >= 0


def test_what_nobody_did_has_no_price():
    alone = [Timed((LinkLoad(host=size),), 1e-3 + size / 1e9) for size in (1e5, 1e6, 1e7)]
    found = fitted(alone, 2)
    assert (found.message, found.alone) == (0.0, 1.0)
    assert found.taking == pytest.approx(1e9)
    assert found.copying == found.adding == pytest.approx(1e12)  # too fast to be seen
