"""Two hosts: two network namespaces that see each other only through a cable of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.multiprocess.launching import Child, environment
from tests.multiprocess.test_torchrun import EXAMPLE, LOSSES

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]


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


def test_a_training_step_across_two_hosts(started: Callable[[Path], list[Child]]) -> None:
    """The losses are those of one process."""
    one, other = started(EXAMPLE)
    assert (one.wait(200), other.wait(200)) == (0, 0), one.err + other.err
    assert one.out == f"{LOSSES}2 processes, 2 devices\n"
    assert other.out == ""


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
