"""`weft doctor`: what this machine has, what Weft will use for what, and what could be better."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import final

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..distributed import init, on_main
from ..drawing.panels import printed
from ..planning import Tier, Topology
from ..planning.text import bytes_text, time_text
from .facts import Facts, facts

__all__ = ["Diagnosis", "doctor"]

Judge = Callable[[Facts], str | None]


@final
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Facts about a machine, and what follows from them.

    >>> dict(Diagnosis(Facts(backends=("gloo",))).uses)["between processes"]
    'torch.distributed on Gloo'
    """

    facts: Facts

    @property
    def uses(self) -> tuple[tuple[str, str], ...]:
        """What Weft uses, for what."""
        return tuple((purpose, use(self.facts)) for purpose, use in _USES.items())

    @property
    def advice(self) -> tuple[str, ...]:
        """What could be better, and how."""
        return tuple(filter(None, (advise(self.facts) for advise in _ADVICE)))

    def to_dict(self) -> dict[str, object]:
        """Everything as plain values."""
        return {"facts": asdict(self.facts), "uses": dict(self.uses), "advice": list(self.advice)}

    def __rich__(self) -> RenderableType:
        has, uses = _table("has", _has(self.facts)), _table("uses", self.uses)
        advice = [Text(f"• {text}") for text in self.advice] or [Text("Nothing to improve.")]
        return Group(has, Text(), uses, Text(), *advice)


def _table(verb: str, rows: Iterator[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Table:
    subject = {"has": "this machine has", "uses": "Weft uses"}[verb]
    table = Table(box=None, pad_edge=False, show_header=True)
    table.add_column("for what" if verb == "uses" else "what", style="bold", no_wrap=True)
    table.add_column(subject)
    for name, value in rows:
        table.add_row(name, value)
    return table


def _has(about: Facts) -> Iterator[tuple[str, str]]:
    yield "Python", about.python
    yield "torch", f"{about.torch}, for {'CPUs' if about.cuda is None else f'CUDA {about.cuda}'}"
    yield "CPU", f"{about.cpus} cores, {about.threads} threads for torch, {_size(about.memory)} of memory"
    for i, gpu in enumerate(about.gpus):
        yield f"GPU {i}", f"{gpu.name}, {_size(gpu.memory)}, {gpu.architecture}"
    yield "accelerators", _accelerators(about)
    if len(about.gpus) > 1:
        yield "peer access", _peers(about)
    yield "Triton", about.triton or "none"
    yield "torch.distributed", ", ".join(_titled(about, name) for name in about.backends) or "none"
    if about.processes > 1:
        yield "processes", f"{about.processes}, {_hosts(about)}"
    yield "links", _links(about)
    yield "host memory pool", f"up to {_size(about.pool)} of freed memory" if about.pool else "off"
    yield "C++ compiler", about.compiler or "none"
    yield "CUDA compiler", about.nvcc or "none"


def _size(count: int | None) -> str:
    return "an unknown amount" if count is None else bytes_text(count)


def _titled(about: Facts, name: str) -> str:
    return f"NCCL {about.nccl}" if name == "nccl" else {"gloo": "Gloo", "mpi": "MPI"}[name]


def _accelerators(about: Facts) -> str:
    if not about.accelerators:
        return "none"
    extra = about.accelerators - len(about.gpus)
    return f"{about.accelerators}" + (f", {extra} of them virtual" if extra else "")


def _hosts(about: Facts) -> str:
    """On which hosts processes are, as far as these know."""
    each, hosts = about.topology.devices_per_host, about.topology.hosts
    if hosts is not None:
        return f"on {len(set(hosts))} hosts"
    return "on one host" if each is None else f"on hosts of {each} devices"


def _links(about: Facts) -> str:
    """The tiers that there are, nearest first."""
    if about.wrong_links is not None:
        return "not known"
    topology = about.topology
    said = [f"{_link(topology, Tier.HOST)} within a host"]
    if topology.devices_per_host is not None or topology.hosts is not None:
        each = topology.devices_per_host
        said += [
            f"{_link(topology, Tier.RACK)} between hosts of {'different sizes' if each is None else f'{each} devices'}"
        ]
    if topology.hosts_per_rack is not None:
        said += [f"{_link(topology, Tier.FABRIC)} between racks of {topology.hosts_per_rack} hosts"]
    if topology.processor is not None:
        said += [f"processors that take {topology.processor.taking / 1e9:.3g} GB/s each"]
    return ", ".join(said) + ("" if about.has_links else " (assumed)")


def _link(topology: Topology, tier: Tier) -> str:
    return f"{topology.link(tier).bandwidth / 1e9:.3g} GB/s and {time_text(topology.latency(tier))}"


def _peers(about: Facts) -> str:
    if not about.unreachable:
        return "every GPU reads every other's memory"
    return "not " + ", ".join(f"{i} → {j}" for i, j in about.unreachable)


def _devices(about: Facts) -> str:
    if about.processes > 1:
        return "the devices of all processes"
    return "the accelerators" if about.accelerators else "CPU devices in one memory (WEFT_CPU_DEVICES says how many)"


def _movements(about: Facts) -> str:
    if about.separate:
        return "copies between memories that are pretended to be apart (WEFT_SEPARATE_MEMORY)"
    if len(about.gpus) < 2:
        return "views of one memory: nothing is copied"
    if about.unreachable:
        return "copies from peer to peer, and through pinned host memory where GPUs cannot reach each other"
    return "copies from peer to peer"


def _reductions(about: Facts) -> str:
    if not about.gpus:
        return "torch on the CPU, in blocks that stay in the cache"
    if about.triton is None:
        return "a chain of torch's adds"
    return "weft.kernels (Triton): one launch for up to 8 devices, else a chain of torch's adds"


def _kernels(about: Facts) -> str:
    if about.triton is None:
        return "not available"
    return "compiled for the GPU" if about.gpus else "in Triton's interpreter, on the CPU, slowly"


def _processes(about: Facts) -> str:
    if about.gpus and "nccl" in about.backends:
        return "torch.distributed on NCCL for GPUs, Gloo for CPUs"
    return "torch.distributed on Gloo" if "gloo" in about.backends else "not available"


def _graphs(about: Facts) -> str:
    return "one CUDA graph where all values are on one GPU" if about.gpus else "one flat Python function"


def _inductor(about: Facts) -> str:
    if about.gpus and about.triton:
        return "torch.compile with Triton"
    return "torch.compile with C++" if about.compiler else "not available"


_USES: dict[str, Callable[[Facts], str]] = {
    "meshes without named devices": _devices,
    "movements in one process": _movements,
    "reductions in one process": _reductions,
    "weft.kernels": _kernels,
    "between processes": _processes,
    "compiled graphs": _graphs,
    'compiled graphs, backend="inductor"': _inductor,
}


def _cpu_torch(about: Facts) -> str | None:
    if about.driver and about.cuda is None:
        return (
            "There is a driver for NVIDIA GPUs, but this torch is built for CPUs: install one for CUDA (pytorch.org)."
        )
    return None


def _unseen(about: Facts) -> str | None:
    if about.cuda is not None and not about.gpus:
        return (
            "torch is built for CUDA, but sees no GPU: check nvidia-smi, CUDA_VISIBLE_DEVICES and the driver's version."
        )
    return None


def _no_triton(about: Facts) -> str | None:
    if about.gpus and about.triton is None:
        return "Without Triton, reductions on GPUs are chains of adds: pip install 'triton>=3.6'."
    return None


def _no_peers(about: Facts) -> str | None:
    if about.unreachable:
        return (
            f"{len(about.unreachable)} pairs of GPUs cannot reach each other, so their data goes through the host: "
            "use GPUs that are linked (nvidia-smi topo -p2p r)."
        )
    return None


def _no_nccl(about: Facts) -> str | None:
    if len(about.gpus) > 1 and "nccl" not in about.backends:
        return "This torch has no NCCL, so several processes cannot use several GPUs: install a torch that has it."
    return None


def _no_compiler(about: Facts) -> str | None:
    if about.compiler is None:
        return 'Without a C++ compiler, backend="inductor" has none on the CPU: install g++ or clang.'
    return None


def _no_pool(about: Facts) -> str | None:
    if not about.pool:
        return "Freed host memory goes back to the system, and large CPU results fault it in again: WEFT_HOST_POOL says how much to keep."
    return None


def _pretended(about: Facts) -> str | None:
    if about.separate:
        return "WEFT_SEPARATE_MEMORY makes devices that share memory copy: unset it, unless you test programs for several GPUs."
    return None


def _one_gpu(about: Facts) -> str | None:
    if len(about.gpus) == about.accelerators == 1:
        return "WEFT_VIRTUAL_ACCELERATORS=8 lets this GPU stand for eight, to try a program for eight on it."
    return None


def _unmeasured(about: Facts) -> str | None:
    if not about.has_links:
        return "Times of plans go by links as they usually are: weft bench --links measures these, and keeps what it finds."
    return None


def _wrong_links(about: Facts) -> str | None:
    if about.wrong_links is not None:
        return f"No program can plan here, because {about.wrong_links}."
    return None


_ADVICE: tuple[Judge, ...] = (
    _wrong_links,
    _cpu_torch,
    _unseen,
    _no_triton,
    _no_peers,
    _no_nccl,
    _no_compiler,
    _no_pool,
    _pretended,
    _one_gpu,
    _unmeasured,
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def doctor(as_json: bool) -> None:
    """Say what this machine has, what Weft will use for what, and what could be better.

    Under torchrun, also what the processes have found out of each other.
    """
    init()
    found = Diagnosis(facts())
    if on_main():
        click.echo(json.dumps(found.to_dict(), indent=2) if as_json else printed(found))
