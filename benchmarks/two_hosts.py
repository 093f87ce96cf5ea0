"""Two hosts with a slow cable between them: what steps take straight and staged, and what the cost model says they take.

    python benchmarks/two_hosts.py                       2 × 2 Gloo processes, a cable of 1 Gbit/s
    python benchmarks/two_hosts.py --rate 300mbit --write docs/planning.md
    python benchmarks/two_hosts.py --rate here --write docs/planning.md     4 processes of this host, without a cable

The hosts are network namespaces of this machine, the cable a veth pair whose ends `tc` slows down; both need root. First the
links are measured, as `weft bench --links` does it. Then all movements have their turn in each round, straight and staged, and
beside them those of 256 KiB, 1, 4 and 32 MiB inside the hosts that figures of processors come from: so whatever else the machine does,
it does to all alike. A movement stands beside its price by these figures; none of its size is among those. A turn takes as
long as its slowest process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from pages import write_between

import weft
from weft.inspect.links import measured_links
from weft.inspect.processors import Calibration
from weft.inspect.turns import in_turns
from weft.planning import Step, Tier, Topology, plan_layouts
from weft.planning.costs.cost import step_time
from weft.sharding import ReduceOp, make_mesh
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

ROOT = Path(__file__).parents[1]


def ip(*words: str) -> None:
    """Runs `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@contextmanager
def two_hosts(rate: str) -> Iterator[list[tuple[str, str, str]]]:
    """For each host the name of its network, its address, and the name of its end of the cable."""
    if rate == "here":
        yield [("", "127.0.0.1", "lo")]
        return
    hosts = [(f"weftb{os.getpid()}{n}", f"10.213.8.{n}", f"wb{os.getpid()}{n}") for n in (1, 2)]
    try:
        for network, _, _ in hosts:
            ip("netns", "add", network)
        ip("link", "add", hosts[0][2], "type", "veth", "peer", "name", hosts[1][2])
        for network, address, cable in hosts:
            ip("link", "set", cable, "netns", network)
            ip("-n", network, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", network, "link", "set", cable, "up")
            ip("-n", network, "link", "set", "lo", "up")
            if rate == "full":
                continue
            slow = ["tc", "-n", network, "qdisc", "add", "dev", cable, "root", "tbf"]
            limits = ["rate", rate, "burst", "64kb", "latency", "200ms"]
            subprocess.run([*slow, *limits], check=True, capture_output=True, text=True, timeout=20)
        yield hosts
    finally:
        for network, _, _ in hosts:  # the cable goes with them
            subprocess.run(["ip", "netns", "delete", network], check=False, capture_output=True, timeout=20)


def launch(rate: str, each: int, repetitions: int) -> dict[str, object]:
    """What the processes have measured."""
    with two_hosts(rate) as hosts, tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "figures.json"
        running = []
        for process in range(2 * each):
            host = process * len(hosts) // (2 * each)
            network, _, cable = hosts[host]
            variables = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "WEFT_TOPOLOGY": "cpu",
                "RANK": str(process),
                "WORLD_SIZE": str(2 * each),
                "LOCAL_RANK": str(process % (2 * each // len(hosts))),
                "GROUP_RANK": str(host),
                "MASTER_ADDR": hosts[0][1],
                "MASTER_PORT": "29533",
                "GLOO_SOCKET_IFNAME": cable,
            }
            command = [*(["ip", "netns", "exec", network] if network else []), sys.executable, __file__]
            words = ["--measure", str(written), "--repetitions", str(repetitions)]
            running.append(subprocess.Popen([*command, *words], env=variables))
        try:
            statuses = [process.wait(500) for process in running]
        finally:
            for process in running:
                process.kill()
        if any(statuses):
            raise RuntimeError(f"processes ended with {statuses}")
        found: dict[str, object] = json.loads(written.read_text())
        return found


def cases() -> Iterator[tuple[str, Layout, Layout, tuple[int, ...]]]:
    """Movements of 16 MiB, or of 2 MiB, on all devices."""
    mesh = make_mesh({"host": 2, "device": len(weft.devices()) // 2})
    every = ("host", "device")
    whole, rows, columns = Layout(mesh, ((), ())), Layout(mesh, (every, ())), Layout(mesh, ((), every))
    summed = Layout(mesh, ((), ()), dict.fromkeys(every, ReduceOp.SUM))
    grid, turned = Layout(mesh, (("host",), ("device",))), Layout(mesh, (("device",), ("host",)))
    by_host = Layout(mesh, (("host",), ()))
    for name, size in (("16 MiB", 2048), ("2 MiB", 724)):
        yield f"all-reduce, {name}", summed, whole, (size, size)
        yield f"reduce-scatter, {name}", summed, rows, (size, size)
        yield f"all-gather, {name}", rows, whole, (size, size)
        yield f"all-to-all, {name}", rows, columns, (size, size)
        yield f"from host to host, {name}", by_host, Layout(mesh, ((), ("host",))), (size, size)
        yield f"all-gather of columns, {name}", columns, whole, (size, size)
        yield f"reduce-scatter to columns, {name}", summed, columns, (size, size)
        yield f"all-gather inside the hosts, {name}", rows, by_host, (size, size)
        yield f"rows and columns swapped, {name}", grid, turned, (size, size)


def measure(written: Path, repetitions: int) -> None:
    """Times every case straight and staged, in turns with the movements that figures come from."""
    weft.distributed.init(timeout=120)
    found = measured_links(rounds=5)
    mesh = make_mesh({"d": len(weft.devices())})
    calibration = Calibration(mesh, replace(found, processor=None), 1 << 25)
    ways = {"straight": replace(found, devices_per_host=None, hosts=None), "staged": found}
    calls, plans = dict(calibration.calls()), {}
    for name, source, target, shape in cases():
        x = weft.zeros(shape, mapping=named_mapping(source))
        for way, topology in ways.items():
            calls[f"{name} {way}"] = partial(moved, x, target, topology)
            plans[name, way] = plan_layouts(source, target, shape, 4, topology=topology)
    took = in_turns(calls, repetitions, torch.device("cpu"))
    links = calibration.topology(took)
    rows = [
        {
            "case": name,
            **{way: took[f"{name} {way}"] for way in ways},
            "steps": [step.described for step in plans[name, "staged"].steps if step.phases],
            "price": priced(plans[name, "staged"].steps, links),
            "straight price": priced(plans[name, "straight"].steps, links),
        }
        for name, *_ in cases()
    ]
    if weft.local_devices()[0].id == 0:
        written.write_text(json.dumps({"links": links.to_dict(), "rows": rows}))


def moved(x: weft.Tensor, target: Layout, topology: Topology) -> None:
    """Moves a tensor as it is planned for a topology."""
    with weft.use_topology(topology):
        x.redistribute(named_mapping(target))


def priced(steps: Sequence[Step], links: Topology) -> float:
    """The seconds of steps, as they are, by measured links."""
    return sum(step_time(step, links) for step in steps)


def table(found: dict[str, object], rate: str) -> str:
    """The figures as the page shows them."""
    links = Topology.from_dict(found["links"])  # type: ignore[arg-type]
    near, far = (
        f"{links.link(tier).bandwidth / 1e9:.3g} GB/s and {links.latency(tier) * 1e3:.2f} ms"
        for tier in (Tier.HOST, Tier.RACK)
    )
    where = f"2 hosts × 2 processes, {rate} between the hosts; measured {near} within a host, {far} between"
    if rate == "here":
        where = f"4 processes of one host; measured {near}"
    work = ""
    if links.processor is not None:
        each = links.processor
        speeds = [f"{speed / 1e9:.3g} GB/s" for speed in (each.taking, each.adding, each.copying)]
        work = f"; a processor starts in {each.starting * 1e3:.2f} ms, takes {speeds[0]}, adds {speeds[1]}, copies {speeds[2]}, and is {each.alone:.1f} × as fast alone"
    lines = [
        f"{where}{work}.",
        "",
        "| movement | straight | its price | as planned | its price | gain | steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:  # type: ignore[attr-defined]
        straight, staged = row["straight"], row["staged"]
        figures = [
            f"{1e3 * straight:.1f} ms",
            f"{row['straight price'] / straight:.2f} ×",
            f"{1e3 * staged:.1f} ms",
            f"{row['price'] / staged:.2f} ×",
            f"{straight / staged:.2f} ×",
        ]
        lines.append(f"| {row['case']} | {' | '.join(figures)} | {'; '.join(row['steps'])} |")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--rate",
        default="1gbit",
        help="what the cable carries, as tc says it; full: all it can; here: one host, no cable",
    )
    options.add_argument("--each", type=int, default=2, help="processes on each host")
    options.add_argument("--repetitions", type=int, default=25)
    options.add_argument("--write", type=Path, default=None, help="a page to write the table to, between its marks")
    options.add_argument("--measure", type=Path, default=None, help=argparse.SUPPRESS)
    said = options.parse_args()
    if said.measure is not None:
        measure(said.measure, said.repetitions)
        return
    shown = table(launch(said.rate, said.each, said.repetitions), said.rate)
    print(shown)
    if said.write is not None:
        write_between(said.write, "one host" if said.rate == "here" else "two hosts", shown)


if __name__ == "__main__":
    main()
