"""Figures of processors come out of what movements took, whichever took part, and are right on average."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest

from tests.multiprocess.launching import Processes
from weft.inspect.processors import TimedMove, fitted
from weft.planning import Tier, Topology
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
    found = fitted([TimedMove((load,), taken(load, TRUE) - Topology().device.latency) for load in LOADS], 4)
    assert found.alone == TRUE.alone
    for name in ("taking", "adding", "copying", "message", "starting"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6), name


def test_prices_are_right_on_average_where_times_vary():
    chance = random.Random(5)
    timed = [TimedMove((load,), taken(load, TRUE) * math.exp(chance.gauss(0, 0.3))) for load in LOADS]
    found = fitted(timed, 4)
    assert geometric_mean(taken(hops[0], found) / seconds for hops, seconds in timed) == pytest.approx(1, rel=1e-2)
    assert min(found.message, found.starting) >= 0


def test_what_nobody_did_has_no_price():
    alone = [TimedMove((LinkLoad(host=size),), 1e-3 + size / 1e9) for size in (1e5, 1e6, 1e7)]
    found = fitted(alone, 2)
    assert (found.message, found.alone) == (0.0, 1.0)
    assert found.taking == pytest.approx(1e9)
    assert found.copying == found.adding == pytest.approx(1e12)  # too fast to be seen


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.parametrize("hosts", [1, 2], ids=["one host", "two hosts"])
def test_links_and_processors_are_measured_between_processes(hosts):
    """Of two processes, on one host or on two: a processor is told only where a host has several."""
    program = str(Path(__file__).with_name("measured_links.py"))
    with Processes([program, str(hosts)], 2) as processes:
        ended = processes.wait(100)
    assert not any(process.status for process in ended), ended[0].err + ended[1].err
    found = [Topology.from_dict(json.loads(process.out)) for process in ended]
    assert found[0].link(Tier.HOST if hosts == 1 else Tier.RACK).bandwidth > 0
    assert (found[0].processor is not None) == (hosts == 1)
    if found[0].processor is not None:
        assert found[0].latency(Tier.HOST) == found[0].processor.starting
        assert found[0].host.bandwidth >= found[0].processor.taking
        assert found[0].processor.message == 0.0  # two processes send no second message
