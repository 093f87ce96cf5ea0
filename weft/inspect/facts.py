"""`Facts`: what this machine has that matters to Weft."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import final

import torch
import torch.distributed as dist

from ..distributed import process_count
from ..planning import Topology, current_topology
from ..planning.topology.keeping import said_topology
from ..runtime.machine import accelerator_count, physical_accelerators
from ..runtime.memory.accelerator import reaches
from ..runtime.memory.host_memory import pool_size

__all__ = ["GPU", "Facts", "facts"]

ASSUMED = Topology()
"""Links as they are taken to be where nobody has measured them."""


@final
@dataclass(frozen=True, slots=True)
class GPU:
    """One physical GPU.

    >>> GPU("NVIDIA H200", 139 << 30, (9, 0)).architecture
    'sm_90'
    """

    name: str
    memory: int
    capability: tuple[int, int]

    @property
    def architecture(self) -> str:
        """What compilers call its kind."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """What this machine has.

    >>> Facts(torch="2.13.0").gpus
    ()
    """

    python: str = platform.python_version()
    torch: str = ""
    cuda: str | None = None
    """The CUDA that torch was built with; None for a torch built for CPUs."""
    triton: str | None = None
    nccl: str | None = None
    backends: tuple[str, ...] = ()
    """What torch.distributed can communicate with."""
    gpus: tuple[GPU, ...] = ()
    accelerators: int = 0
    """How many accelerators Weft offers, virtual ones included."""
    unreachable: tuple[tuple[int, int], ...] = ()
    """Pairs of GPUs of which the first cannot read the second's memory."""
    driver: bool = False
    """Whether a driver for GPUs is installed, whatever torch can do with it."""
    cpus: int = 1
    threads: int = 1
    memory: int | None = None
    pool: int = 0
    """Bytes of freed host memory that Weft lets the C library keep."""
    compiler: str | None = None
    nvcc: str | None = None
    processes: int = 1
    """How many processes a launcher has started together."""
    separate: bool = False
    """Whether WEFT_SEPARATE_MEMORY pretends that every device has a memory of its own."""
    topology: Topology = ASSUMED
    """How far apart devices are taken to be, and how fast the links between them."""
    has_links: bool = False
    """Whether somebody has measured the links or said what they are."""
    wrong_links: str | None = None
    """Why what is said of the links is of no use."""


def facts() -> Facts:
    """Look at this machine.

    >>> facts().torch == torch.__version__
    True
    """
    gpus = range(physical_accelerators())
    try:
        topology, has_links, wrong_links = current_topology(), said_topology() is not None, None
    except ValueError as error:  # whoever plans is told; here it is one thing among others
        topology, has_links, wrong_links = ASSUMED, True, str(error)
    return Facts(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        triton=_version("triton") if find_spec("triton") else None,
        nccl=_nccl(),
        backends=tuple(name for name in ("gloo", "nccl", "mpi") if _has_backend(name)),
        gpus=tuple(_gpu(i) for i in gpus),
        accelerators=accelerator_count(),
        unreachable=tuple(
            (i, j) for i in gpus for j in gpus if not reaches(torch.device("cuda", i), torch.device("cuda", j))
        ),
        driver=Path("/proc/driver/nvidia/version").exists(),
        cpus=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory=_host_memory(),
        pool=pool_size(),
        compiler=next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None),
        nvcc=shutil.which("nvcc"),
        processes=process_count(),
        separate=os.environ.get("WEFT_SEPARATE_MEMORY", "0") not in ("", "0"),
        topology=topology,
        has_links=has_links,
        wrong_links=wrong_links,
    )


def _gpu(index: int) -> GPU:
    about = torch.cuda.get_device_properties(index)
    return GPU(about.name, about.total_memory, (about.major, about.minor))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _has_backend(name: str) -> bool:
    return dist.is_available() and bool(getattr(dist, f"is_{name}_available")())


def _nccl() -> str | None:
    if not _has_backend("nccl"):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def _host_memory() -> int | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
