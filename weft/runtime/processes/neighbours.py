"""Neighbours: which processes of a group may read each other's memory. They try, once for each group.

Processes of one host may, unless a container or a hardened system forbids it. Where they may not, messages go.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import torch

from ...errors import WeftError
from .group import Group
from .hosts import host_name
from .transport.exchange import swap
from .transport.reading import NOBODY, Neighbours, read_memory

__all__ = ["neighbours_of"]

SECRET = 0x5EED0FC0FFEE
"""What a process has, beside its id, at the address that it tells the others: whoever finds it there can read it."""


def neighbours_of(group: Group, wire: torch.device) -> Neighbours:
    """The neighbours in a group, found when all its processes first ask for them; on a wire of accelerators there are none."""
    if wire.type != "cpu":
        return NOBODY
    if group.neighbours is None:
        group.neighbours = NOBODY if group.is_fake else _found(group)
    return group.neighbours


def _found(group: Group) -> Neighbours:
    secret = torch.tensor([SECRET ^ os.getpid()])
    others = [index for index in range(group.size) if index != group.index]
    said = _told(group, dict.fromkeys(others, torch.tensor([_host(), os.getpid(), secret.data_ptr()])))
    readable = {}
    for index, numbers in said.items():
        host, process, address = numbers.tolist()
        if host == _host() and _reads(process, address):
            readable[index] = process
    answers = _told(group, {index: torch.tensor([int(index in readable)] * 3) for index in others})
    return Neighbours(readable, frozenset(index for index, answer in answers.items() if int(answer[0])))


def _told(group: Group, numbers: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The three numbers that each process tells this one."""
    found = {index: torch.zeros(3, dtype=torch.int64) for index in numbers}
    swap(group, numbers, found, torch.device("cpu"), limit=3 * torch.int64.itemsize)
    return found


def _host() -> int:
    """What the processes have in common that see each other's ids: the host's start, and their name space."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:  # another system: nobody else says the same
        start, space = "", str(os.getpid())
    return zlib.crc32(f"{host_name()} {start} {space}".encode())


def _reads(process: int, address: int) -> bool:
    """Whether a process's memory can be read: tried, because many things can forbid it."""
    found = torch.zeros(1, dtype=torch.int64)
    try:
        read_memory(process, [(address, found.nbytes)], [(found.data_ptr(), found.nbytes)])
    except (WeftError, AttributeError):  # forbidden, or not there in this system
        return False
    return int(found) == SECRET ^ process
