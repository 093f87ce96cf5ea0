"""Two hosts with a slow cable between them: what steps take straight and staged, and what the cost model says they take.

    python benchmarks/two_hosts.py                       2 × 2 Gloo processes, a cable of 1 Gbit/s
    python benchmarks/two_hosts.py --rate 300mbit --write docs/planning.md
    python benchmarks/two_hosts.py --rate here --write docs/planning.md     4 processes of this host, without a cable

The hosts are network namespaces of this machine, the cable a veth pair whose ends `tc` slows down; both need root. First the
links and processors are measured, as `weft bench --links` does it, with gathers and a reduction of 16 MiB inside the hosts; then each
movement is timed in turns straight and staged, and stands beside its price by these figures. A turn takes as long as its
slowest process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import weft
from weft.inspect.links import agreed, measured_links
from weft.planning import Step, Topology, plan_layouts
from weft.planning.cost import step_time
from weft.sharding import ReduceOp, make_mesh
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

ROOT = Path(__file__).parents[1]
MARKS = {
    "here": ("<!-- one host -->", "<!-- end of one host -->"),
    "cable": ("<!-- two hosts -->", "<!-- end of two hosts -->"),
}


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
    """Times every case straight and staged, in turns."""
    weft.distributed.init(timeout=120)
    links = measured_links(rounds=15)
    one_host = replace(links, devices_per_host=None, hosts=None)
    rows = []
    for name, source, target, shape in cases():
        x = weft.zeros(shape, mapping=named_mapping(source))
        times: dict[str, list[float]] = {"straight": [], "staged": []}
        plans = {}
        for turn in range(repetitions + 1):
            for way, topology in (("straight", one_host), ("staged", links)):
                with weft.use_topology(topology):
                    if turn == 0:
                        x.redistribute(named_mapping(target))
                        plans[way] = plan_layouts(source, target, shape, 4)
                    seconds = timed(x, target)
                if turn:
                    times[way].append(seconds)
        # As the links are measured: whatever else the machine does only makes turns longer.
        quarters = {way: sorted(each)[len(each) // 4] for way, each in times.items()}
        rows.append(
            {
                "case": name,
                **quarters,
                "steps": [step.described for step in plans["staged"].steps if step.phases],
                "price": priced(plans["staged"].steps, links),
                "straight price": priced(plans["straight"].steps, links),
            }
        )
    if weft.local_devices()[0].id == 0:
        written.write_text(json.dumps({"links": links.to_dict(), "rows": rows}))


def priced(steps: Sequence[Step], links: Topology) -> float:
    """The seconds of steps, as they are, by measured links."""
    return sum(step_time(step, links) for step in steps)


def timed(x: torch.Tensor, target: Layout) -> float:
    """The seconds of one movement that all begin together, on the process that took longest."""
    agreed(0.0)
    start = time.perf_counter()
    x.redistribute(named_mapping(target))
    return max(agreed(time.perf_counter() - start))


def table(found: dict[str, object], rate: str) -> str:
    """The figures as the page shows them."""
    links = Topology.from_dict(found["links"])  # type: ignore[arg-type]
    near, far = (
        f"{link.bandwidth / 1e9:.3g} GB/s and {link.latency * 1e3:.2f} ms" for link in (links.host, links.rack)
    )
    where = f"2 hosts × 2 processes, {rate} between the hosts; measured {near} within a host, {far} between"
    if rate == "here":
        where = f"4 processes of one host; measured {near}"
    work = ""
    if links.processor is not None:
        each = links.processor
        speeds = [f"{speed / 1e9:.3g} GB/s" for speed in (each.taking, each.adding, each.copying)]
        work = f"; a processor takes {speeds[0]}, adds {speeds[1]}, copies {speeds[2]}, and is {each.alone:.1f} × as fast alone"
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
    options.add_argument("--repetitions", type=int, default=11)
    options.add_argument("--write", type=Path, default=None, help="a page to write the table to, between its marks")
    options.add_argument("--measure", type=Path, default=None, help=argparse.SUPPRESS)
    said = options.parse_args()
    if said.measure is not None:
        measure(said.measure, said.repetitions)
        return
    shown = table(launch(said.rate, said.each, said.repetitions), said.rate)
    print(shown)
    if said.write is not None:
        first, last = MARKS["here" if said.rate == "here" else "cable"]
        page = said.write.read_text()
        said.write.write_text(re.sub(f"{first}.*{last}", f"{first}\n{shown}\n{last}", page, flags=re.DOTALL))


if __name__ == "__main__":
    main()
