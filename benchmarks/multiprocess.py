"""Weft, DTensor and plain torch.distributed over processes on one machine: the same movements, the same training step.

    python benchmarks/multiprocess.py                     4 Gloo processes, 16 MiB
    python benchmarks/multiprocess.py --json out.json     the table as JSON, too

Every case is timed in turns, one repetition of each after the other, and the median of each counts. A repetition takes
as long as its slowest process.
"""
# ruff: noqa: B008, E402 - defaults bind what a timed call works on; what is imported lies beside this folder

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import socket

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.filterwarnings("ignore")

import weft
from weft import P
from weft.inspect.timing import Timing as Quartiles
from weft.sharding import NamedMapping, ReduceOp
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

SIZE = 2048  # rows and columns of f32: 16 MiB
Action = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One thing to do, by each of those that can."""

    name: str
    ways: dict[str, Action]
    limit: tuple[str, float] | None = None
    """Against whom, and how long Weft may take compared with it."""


@dataclass(frozen=True)
class Timing:
    """How long one way takes: the median of the repetitions, each as long as its slowest process, and the quartiles."""

    median: float
    low: float
    high: float
    cpu: float
    """The processors' seconds of all processes together, which other work on the machine hardly changes."""


def timed(case: Case, repetitions: int, meeting: dist.ProcessGroup) -> dict[str, Timing]:
    """The ways in turns, so that all meet the same moods of the machine, and in another order each time.

    Between turns the processes meet in a group that no way uses: connections and threads that have just been at work
    save whoever uses them next up to a quarter of the time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in case.ways}
    cpu = dict.fromkeys(case.ways, 0.0)
    for action in (*case.ways.values(), *case.ways.values()):
        action()
    for turn in range(repetitions):
        for name in random.Random(turn).sample(sorted(case.ways), len(case.ways)):
            dist.barrier(meeting)
            start, busy = time.perf_counter(), time.process_time()
            case.ways[name]()
            taken, worked = torch.tensor([time.perf_counter() - start]), torch.tensor([time.process_time() - busy])
            dist.all_reduce(taken, dist.ReduceOp.MAX, meeting)
            dist.all_reduce(worked, group=meeting)
            seconds[name].append(taken.item())
            cpu[name] += worked.item()
    found = {name: Quartiles.of(each) for name, each in seconds.items()}
    return {name: Timing(each.median, each.low, each.high, cpu[name] / repetitions) for name, each in found.items()}


def collectives(mesh: weft.DeviceMesh, torch_mesh: TorchMesh) -> list[Case]:
    """Movements and reductions along the whole line, against the raw call."""
    n = mesh.num_devices
    whole = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    rows, mine = SIZE // n, weft.distributed.process_index()
    local = whole[mine * rows : (mine + 1) * rows].contiguous()
    x = weft.shard(whole, mesh, P("a", None))
    d = DTensor.from_local(local, torch_mesh, [Shard(0)], run_check=False)
    pending = weft.from_local([whole], named_mapping(Layout(mesh, ((), ()), {"a": ReduceOp.SUM})), shape=whole.shape)
    d_pending = DTensor.from_local(whole, torch_mesh, [Partial()], run_check=False)
    columns = NamedMapping(mesh, P(None, "a"))
    gathered, exchanged = torch.empty(SIZE, SIZE), torch.empty_like(local)
    ring = [(i, (i + 1) % n) for i in range(n)]

    def raw_permute() -> None:
        send = dist.P2POp(dist.isend, local, (mine + 1) % n)
        receive = dist.P2POp(dist.irecv, exchanged, (mine - 1) % n)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    part = whole[:, mine * rows : (mine + 1) * rows].contiguous()

    arrived, packed = torch.empty_like(part), torch.empty(n, rows, rows)

    def raw_rows_to_columns() -> None:
        packed.copy_(local.unflatten(1, (n, rows)).transpose(0, 1))
        dist.all_to_all_single(arrived.view(n, rows, rows), packed)

    def raw_all_to_all() -> None:
        dist.all_to_all_single(arrived, part)
        torch.cat(arrived.chunk(n), 1, out=exchanged)

    return [
        Case(
            "S(0) -> S(1)",  # the raw call takes its parts one after another; they lie beside each other
            {
                "weft": lambda: weft.shard(x, mesh, columns),
                "dtensor": lambda: d.redistribute(placements=[Shard(1)]),
                "raw": raw_rows_to_columns,
            },
            ("dtensor", 1 / 3),
        ),
        Case(
            "all_to_all",  # the raw call gives its parts one after another; beside each other takes one more pass
            {
                "weft": lambda y=weft.shard(whole, mesh, columns): weft.all_to_all(y, 0, 1),
                "raw": raw_all_to_all,
            },
            ("raw", 1.1),
        ),
        Case(
            "all_gather",
            {
                "weft": lambda: weft.all_gather(x),
                "dtensor": lambda: d.redistribute(placements=[Replicate()]),
                "raw": lambda: dist.all_gather_into_tensor(gathered, local),
            },
            ("raw", 1.1),
        ),
        Case(
            "all_reduce",
            {
                "weft": lambda: weft.all_reduce(pending),
                "dtensor": lambda: d_pending.redistribute(placements=[Replicate()]),
                "raw": lambda: dist.all_reduce(gathered.copy_(whole)),
            },
            ("raw", 1.1),
        ),
        Case(
            "reduce_scatter",
            {
                "weft": lambda: weft.reduce_scatter(pending, 0),
                "dtensor": lambda: d_pending.redistribute(placements=[Shard(0)]),
                "raw": lambda: dist.reduce_scatter_tensor(exchanged, whole),
            },
            ("raw", 1.1),
        ),
        Case("ppermute", {"weft": lambda: weft.ppermute(x, ring), "raw": raw_permute}, ("raw", 1.1)),
        Case(
            "broadcast of one device's tensor",
            {
                "weft": lambda y=weft.to_device(whole, weft.CPU(0)): weft.distributed_broadcast(y, mesh),
                "raw": lambda: dist.broadcast(whole if mine == 0 else gathered, 0),
            },
            ("raw", 1.1),
        ),
    ]


# Ten transitions on a 2 × 2 mesh that change more than one axis.
TRANSITIONS: list[tuple[tuple[Placement, Placement], tuple[Placement, Placement]]] = [
    ((Shard(0), Shard(1)), (Shard(1), Shard(0))),
    ((Shard(0), Shard(0)), (Shard(1), Shard(1))),
    ((Shard(0), Shard(0)), (Replicate(), Replicate())),
    ((Shard(0), Shard(1)), (Replicate(), Replicate())),
    ((Shard(0), Replicate()), (Replicate(), Shard(0))),
    ((Shard(0), Shard(0)), (Replicate(), Shard(0))),
    ((Shard(0), Replicate()), (Shard(1), Shard(0))),
    ((Partial(), Shard(0)), (Shard(0), Replicate())),
    ((Partial(), Partial()), (Shard(0), Shard(1))),
    ((Partial(), Replicate()), (Replicate(), Replicate())),
]


def transitions(mesh: weft.DeviceMesh, torch_mesh: TorchMesh) -> list[Case]:
    """The same transition by Weft and by DTensor."""
    whole = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    cases = []
    for source, target in TRANSITIONS:
        layout, goal = laid_out(mesh, source), laid_out(mesh, target)
        shards = [_cut(whole, mesh, source)]
        x = weft.from_local(shards, named_mapping(layout), shape=whole.shape)
        d = DTensor.from_local(shards[0], torch_mesh, source, run_check=False, shape=whole.shape, stride=whole.stride())
        mapping = named_mapping(goal)
        cases.append(
            Case(
                f"{layout} -> {goal}",
                {
                    "weft": lambda x=x, mapping=mapping: x.redistribute(mapping),
                    "dtensor": lambda d=d, target=target: d.redistribute(placements=target),
                },
                ("dtensor", 1.0),
            )
        )
    return cases


def laid_out(mesh: weft.DeviceMesh, placements: tuple[Placement, ...]) -> Layout:
    """DTensor's placements as a layout."""
    splits: list[list[str]] = [[], []]
    pending = {}
    for axis, placement in zip(mesh.axis_names, placements, strict=True):
        if isinstance(placement, Shard):
            splits[placement.dim].append(axis)
        elif isinstance(placement, Partial):
            pending[axis] = ReduceOp.SUM
    return Layout(mesh, splits, pending)


def _cut(whole: torch.Tensor, mesh: weft.DeviceMesh, placements: tuple[Placement, ...]) -> torch.Tensor:
    part = whole
    for axis, placement in zip(mesh.axis_names, placements, strict=True):
        if isinstance(placement, Shard):
            index = mesh.device_coord(weft.distributed.process_index(), axis)
            part = part.chunk(mesh.axis_size(axis), placement.dim)[index]
    return part.contiguous()


CALLS = 200
OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "x + y": lambda x, y: x + y,
    "relu(x)": lambda x, _: torch.relu(x),
    "x * 2": lambda x, _: x * 2,
    "x @ w": lambda x, y: x @ y,
    "softmax(x)": lambda x, _: x.softmax(-1),
    "x.sum()": lambda x, _: x.sum(),
}
"""Ops that communicate nothing: what they take is what each process does for them."""


def ops(mesh: weft.DeviceMesh, torch_mesh: TorchMesh) -> list[Case]:
    """Many calls of one op on 1 KiB, of which each process has its part."""
    rows = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    cases = []
    for name, op in OPS.items():
        square = name == "x @ w"
        ours = weft.shard(rows, mesh, P("a")), weft.shard(rows, mesh, P() if square else P("a"))
        placements = [Shard(0)], [Replicate() if square else Shard(0)]
        theirs = tuple(distribute_tensor(rows, torch_mesh, placement) for placement in placements)
        ways = {"weft": repeated(op, *ours), "dtensor": repeated(op, *theirs)}
        cases.append(Case(f"{CALLS} x {name}", ways, ("dtensor", 1.0)))
    return cases


def repeated(op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Action:
    """An op again and again."""

    def run() -> None:
        for _ in range(CALLS):
            op(x, y)

    return run


WIDTH, BATCH, LAYERS = 512, 256, 2


def model() -> torch.nn.Sequential:
    """A few blocks of two linear layers."""
    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(LAYERS)
    ]
    return torch.nn.Sequential(*blocks)


def training(mesh: weft.DeviceMesh, torch_mesh: TorchMesh) -> Case:
    """A step of data × tensor parallel training with SGD."""
    data = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    ours, theirs = model(), model()
    for block in ours:
        for layer, specs in ((block[0], (P("b", None), P("b"))), (block[2], (P(None, "b"), P(None)))):
            layer.weight = torch.nn.Parameter(weft.shard(layer.weight.detach(), mesh, specs[0]))
            layer.bias = torch.nn.Parameter(weft.shard(layer.bias.detach(), mesh, specs[1]))

    def laid(name: str, module: torch.nn.Module, on: TorchMesh) -> None:
        if isinstance(module, torch.nn.Linear):
            first = name.endswith("0")
            weight = [Replicate(), Shard(0 if first else 1)]
            bias = [Replicate(), Shard(0) if first else Replicate()]
            module.weight = torch.nn.Parameter(distribute_tensor(module.weight.detach(), on, weight))
            module.bias = torch.nn.Parameter(distribute_tensor(module.bias.detach(), on, bias))

    distribute_module(theirs, torch_mesh, laid)
    x = weft.shard(data, mesh, P("a", None))
    d = distribute_tensor(data, torch_mesh, [Shard(0), Replicate()])

    def step(network: torch.nn.Module, batch: torch.Tensor) -> Action:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

        def run() -> None:
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()

        return run

    return Case("DP x TP training step", {"weft": step(ours, x), "dtensor": step(theirs, d)}, ("dtensor", 1.0))


def work(out: str, repetitions: int, only: str) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    weft.distributed.init(backend="gloo", timeout=120)
    n = weft.distributed.process_count()
    line, torch_line = weft.make_mesh({"a": n}), init_device_mesh("cpu", (n,))
    cases = collectives(line, torch_line) + ops(line, torch_line)
    if n == 4:
        square, torch_square = (
            weft.make_mesh({"a": 2, "b": 2}),
            init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")),
        )
        cases += [*transitions(square, torch_square), training(square, torch_square)]
    table = []
    meeting = dist.new_group(list(range(n)))
    for case in cases:
        if only not in case.name:
            continue
        timings = timed(case, repetitions, meeting)
        table.append({"case": case.name, "ways": {n: asdict(t) for n, t in timings.items()}, "limit": case.limit})
        if weft.on_main():
            print(shown(case.name, timings, case.limit), flush=True)
    if weft.on_main():
        Path(out).write_text(json.dumps(table))


def shown(name: str, timings: dict[str, Timing], limit: tuple[str, float] | None) -> str:
    """One line of the table: median and processor time in milliseconds."""
    times = "  ".join(f"{way} {1e3 * t.median:6.1f} {1e3 * t.cpu:6.1f}" for way, t in timings.items())
    verdict = ""
    if limit is not None:
        ours, other = timings["weft"], timings[limit[0]]
        ratio = ours.median / other.median
        verdict = f"{ratio:5.2f} {ours.cpu / other.cpu:5.2f} x {limit[0]} (<= {limit[1]:.2f}){'' if ratio <= limit[1] else '  TOO SLOW'}"
    return f"{name:32s} {times:64s} {verdict}"


def main() -> int:
    """Starts the processes, and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--only", default="", help="only cases whose name has this in it")
    parser.add_argument("--json", default="/dev/null")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        work(asked.json, asked.repetitions, asked.only)
        return 0
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={
                **os.environ,
                "RANK": str(process),
                "LOCAL_RANK": str(process),
                "WORLD_SIZE": str(asked.processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
        )
        for process in range(asked.processes)
    ]
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    sys.exit(main())
