"""Two hosts: by the commands of the docs, on one address of this machine or in two network namespaces with a cable."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch.distributed.run

from tests.multiprocess.launching import ROOT, Child, environment, free_port
from tests.multiprocess.test_torchrun import EXAMPLE, LOSSES

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

TORCHRUN = torch.distributed.run.__file__
PAGE = ROOT / "docs" / "distributed.md"


def documented() -> dict[str, list[str]]:
    """The commands of both hosts, as the page says them: the same on both, or one for each."""
    commands = [line[2:] for line in PAGE.read_text().splitlines() if line.startswith("$ torchrun --nnodes 2 ")]
    same = [command for command in commands if "--rdzv-endpoint trainer0:29400" in command]
    ranked = [command for command in commands if "--master-addr trainer0" in command]
    return {"a rendezvous": same * 2, "ranks": ranked}


def launched(command: str, here: str, first: str, port: int, folder: Path, extra: Mapping[str, str]) -> Child:
    """A command of the page on the host that has the address `here`; the first one has the address `first`."""
    folder.mkdir()
    said = {"trainer0": first, "trainer0:29400": f"{first}:{port}", "29400": str(port), "train.py": str(EXAMPLE)}
    torchrun, *words = command.split()
    assert torchrun == "torchrun"
    words[words.index("--nproc-per-node") + 1] = "1"  # what starts quickly
    words = ["--local-addr", here, *[said.get(word, word) for word in words]]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **extra}
    return Child([TORCHRUN, *words], variables, folder, "torchrun", fresh=False)


def trained(one: Child, other: Child) -> None:
    """Both have ended, with the losses of one process."""
    try:
        assert (one.wait(200), other.wait(200)) == (0, 0), one.err + other.err
        assert sorted((one.out, other.out)) == ["", f"{LOSSES}2 processes, 2 devices\n"]
    finally:
        for each in (one, other):
            each.send_signal(signal.SIGTERM)  # torchrun ends what it has started
        for each in (one, other):
            if each.wait(30) is None:
                each.send_signal(signal.SIGKILL)
                each.wait(10)


@pytest.mark.parametrize("way", ["a rendezvous", "ranks"])
def test_the_commands_of_the_page_join_two_launches_of_torchrun(way: str, tmp_path: Path) -> None:
    port = free_port()
    commands = documented()[way]
    one, other = [
        launched(each, "127.0.0.1", "127.0.0.1", port, tmp_path / str(k), {"GLOO_SOCKET_IFNAME": "lo"})
        for k, each in enumerate(commands)
    ]
    trained(one, other)


Hosts = dict[str, tuple[str, str]]
"""For each host its address, and the name of its end of the cable."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("needs `ip` of iproute2, which is not installed here")
    names = [f"weft{os.getpid()}{letter}" for letter in "ab"]
    found = {name: (f"10.213.7.{number}", f"w{os.getpid()}{name[-1]}") for number, name in enumerate(names, start=1)}
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            (_, one), (_, other) = found.values()
            ip("link", "add", one, "type", "veth", "peer", "name", other)
            for name, (address, cable) in found.items():
                ip("link", "set", cable, "netns", name)
                ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
                ip("-n", name, "link", "set", cable, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")
        yield found
    finally:
        for name in names:  # the cable goes with them
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=20)


@pytest.fixture
def started(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[[Path], list[Child]]]:
    """Starts a program on both hosts, as a launcher would on each."""
    running: list[Child] = []

    def start(program: Path) -> list[Child]:
        first, _ = next(iter(hosts.values()))
        for rank, (name, (_, cable)) in enumerate(hosts.items()):
            where = {"MASTER_ADDR": first, "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": cable, "NETWORK": name}
            variables = environment(rank, 2, 29511, where)
            running.append(Child([str(program)], variables, tmp_path, str(rank), fresh=False))
        return running

    yield start
    for each in running:
        each.send_signal(signal.SIGKILL)
        each.wait(10)


def test_the_commands_of_the_page_join_two_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """Their names lead elsewhere, so each says its address and the first that it is the first, as the page has it."""
    first, _ = next(iter(hosts.values()))
    assert "`--rdzv-conf is_host=1` on `trainer0`" in PAGE.read_text()
    one, other = [
        launched(
            command.replace(" train.py", f" --rdzv-conf is_host={int(address == first)} train.py"),
            address,
            first,
            29400,
            tmp_path / name,
            {"GLOO_SOCKET_IFNAME": cable, "NETWORK": name},
        )
        for command, (name, (address, cable)) in zip(documented()["a rendezvous"], hosts.items(), strict=True)
    ]
    trained(one, other)


def test_a_cable_that_breaks_is_an_error_on_both_hosts(
    hosts: Hosts, started: Callable[[Path], list[Child]], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, weft\n"
        "weft.distributed.init(timeout=4)\n"
        "x = weft.shard(torch.ones(4), weft.make_mesh({'a': 2}), weft.P('a'))\n"
        "x.sum().item()\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    x.sum().item()\n"
    )
    running = started(program)
    until = time.monotonic() + 100
    while not all("ready" in each.out for each in running) and time.monotonic() < until:
        time.sleep(0.05)
    name, (_, cable) = next(iter(hosts.items()))
    ip("-n", name, "link", "set", cable, "down")
    for each in running:
        assert each.wait(100) == 1, each.err
        assert "weft.errors.TimeoutError: process " in each.err
        assert "shows no sign of life: it was killed or stopped, or cannot be reached" in each.err


@pytest.mark.skipif(shutil.which("tc") is None, reason="needs `tc` of iproute2, which is not installed here")
def test_between_slow_hosts_steps_go_through_the_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """Which processes share a host is found when they join; how much faster that is, `benchmarks/two_hosts.py` measures."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, weft\n"
        "from weft import NamedMapping, P\n"
        "mesh = weft.make_mesh({'a': 4})\n"
        "here = weft.local_devices()[0].id\n"
        "pending = NamedMapping(mesh, P(None), unreduced={'a': 'sum'})\n"
        "x = weft.from_local([torch.full((1 << 20,), here + 1.0)], pending)\n"
        "plan = weft.explain(x, P(None)).plan\n"
        "assert weft.current_topology().devices_per_host == 2, weft.current_topology()\n"
        "y = x.redistribute(NamedMapping(mesh, P(None)))\n"
        "assert y.local_shards[0].eq(10).all()\n"
        "z = weft.shard(y, mesh, P('a')).redistribute(NamedMapping(mesh, P(None)))\n"
        "assert z.local_shards[0].eq(10).all()\n"
        "print([step.described for step in plan.steps])\n"
    )
    first, _ = next(iter(hosts.values()))
    running = []
    try:
        for name, (_, cable) in hosts.items():
            slow = ["tc", "-n", name, "qdisc", "add", "dev", cable, "root", "tbf"]
            limits = ["rate", "1gbit", "burst", "256kb", "latency", "200ms"]
            subprocess.run([*slow, *limits], check=True, capture_output=True, text=True, timeout=20)
        for rank in range(4):
            name, (_, cable) = list(hosts.items())[rank // 2]
            where = {"MASTER_ADDR": first, "GROUP_RANK": str(rank // 2), "GLOO_SOCKET_IFNAME": cable, "NETWORK": name}
            variables = environment(rank, 4, 29512, {**where, "WEFT_TOPOLOGY": "ethernet"})
            running.append(Child([str(program)], variables, tmp_path, str(rank), fresh=False))
        for each in running:
            assert each.wait(100) == 0, each.err
            assert each.out == "['all_reduce, host by host']\n"
    finally:
        for each in running:
            each.send_signal(signal.SIGKILL)
            each.wait(10)
