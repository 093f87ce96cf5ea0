"""Runs the contract's programs with several processes, and compares what they yield with one process.

    python tests/multiprocess/run_contract.py --processes 4 --backend nccl

Started by a launcher, it is one of these processes: it runs the programs and writes what they yield.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import weft
from tests.multiprocess.launching import Processes
from tests.multiprocess.programs import PROGRAMS, ROUNDED
from tests.multiprocess.record import Record, differences, run_program
from weft.devices import Device

Found = dict[str, dict[str, Record] | str]
"""For each program what it yields, or how it failed."""


def work(names: Sequence[str], out: Path, backend: str | None, devices_per_process: int, timeout: float) -> None:
    """What each process does."""
    weft.distributed.init(backend=backend, timeout=timeout, devices_per_process=devices_per_process)
    count = weft.distributed.process_count() * devices_per_process
    devices = weft.devices()[:count]
    for name in names:
        start = time.perf_counter()
        found: dict[str, Record] | str
        try:
            found = run_program(name, devices)
        except Exception:  # noqa: BLE001 - whatever it is, it is written down
            # Where all processes fail alike, the programs that follow still run.
            found = traceback.format_exc()
        print(f"{name}: {time.perf_counter() - start:.2f} s", file=sys.stderr)
        _file(out, weft.distributed.process_index(), name).write_text(json.dumps(found))


def _file(folder: Path, process: int, program: str) -> Path:
    return folder / f"{process} {program}.json"


def run(
    names: Sequence[str],
    processes: int,
    devices_per_process: int = 1,
    backend: str | None = "gloo",
    timeout: float = 120,
    patience: float = 600,
) -> list[Found]:
    """What the programs yield in each process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            __file__,
            "--out",
            folder,
            "--devices-per-process",
            str(devices_per_process),
            "--timeout",
            str(timeout),
        ]
        command += ["--backend", backend] if backend else []
        extra = {"NCCL_SOCKET_IFNAME": "lo"} if backend and "nccl" in backend else {}
        with Processes([*command, *names], processes, extra, fresh=backend != "gloo") as started:
            ended = started.wait(patience)
        found: list[Found] = []
        for process, how in enumerate(ended):
            files = {name: _file(Path(folder), process, name) for name in names}
            found.append({name: json.loads(file.read_text()) for name, file in files.items() if file.exists()})
            missing = [name for name in names if name not in found[-1]]
            if missing:
                found[-1][missing[0]] = f"it ended with {how.status}:\n{how.out[-2000:]}\n{how.err[-6000:]}"
        if os.environ.get("CONTRACT_TIMES"):
            print(ended[0].err, file=sys.stderr)
    return found


def wrong(name: str, found: Sequence[Found], expected: dict[str, Record]) -> list[str]:
    """What is different in any process from what one process yields."""
    said = []
    for process, each in enumerate(found):
        yielded = each.get(name, "it did not run")
        if isinstance(yielded, str):
            said.append(f"process {process}: {yielded}")
            continue
        if yielded.keys() != expected.keys():
            said.append(f"process {process}: yields other labels: {sorted(yielded.keys() ^ expected.keys())}")
        for label in yielded.keys() & expected.keys():
            more = differences(label, yielded[label], expected[label], rounded=name in ROUNDED)
            said.extend(f"process {process}: {one}" for one in more)
    return said


def expected_of(name: str, devices: Sequence[Device]) -> dict[str, Record]:
    """What a program yields in this process, in the words of JSON."""
    expected: dict[str, Record] = json.loads(json.dumps(run_program(name, devices)))
    return expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--devices-per-process", type=int, default=1)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--lines", type=int, default=10, help="how many differences to show of each program")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names = asked.programs or list(PROGRAMS)
    if asked.out is not None:
        work(names, asked.out, asked.backend, asked.devices_per_process, asked.timeout)
        return 0
    found = run(names, asked.processes, asked.devices_per_process, asked.backend, asked.timeout, patience=600)
    count = asked.processes * asked.devices_per_process
    kind: type[Device] = weft.CPU
    if asked.backend is not None and "nccl" in asked.backend:
        # One process compares with as many devices on the one GPU: the same names, the same random numbers.
        kind = weft.Accelerator
        os.environ["WEFT_VIRTUAL_ACCELERATORS"] = str(count)
    failures = 0
    for name in names:
        devices = [kind(i) for i in range(count)]
        try:
            said = wrong(name, found, expected_of(name, devices))
        except Exception:  # noqa: BLE001 - whatever it is, it is shown
            said = [f"one process: {traceback.format_exc()}"]
        failures += bool(said)
        print(f"{'FAILED' if said else 'passed'} {name}")
        for line in said[: asked.lines]:
            print(textwrap.indent(line if len(line) < 900 else f"{line[:60]} […] {line[-800:]}", "    "))
    print(
        f"{len(names) - failures} of {len(names)} programs passed on {kind.__name__} devices of {asked.processes} processes"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
