"""The same movements and collectives by MAX, in a process of its own; nothing where MAX is not installed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from contest import Elsewhere
from environment import MAX_ENVIRONMENT, max_version

from weft import DeviceMesh
from weft.inspect.transitions import MatrixTransition

PYTHON = MAX_ENVIRONMENT / "bin" / "python"
NAME = "MAX compiled"

Splits = Sequence[Sequence[str]]
ROWS, COLUMNS, WHOLE = (("d",), ()), ((), ("d",)), ((), ())
COLLECTIVES: dict[str, tuple[Splits, Splits | None, bool]] = {
    "all_gather": (ROWS, WHOLE, False),
    "all_reduce sum": (WHOLE, WHOLE, True),
    "reduce_scatter": (WHOLE, ROWS, True),
    "all_to_all": (ROWS, COLUMNS, False),
    "distributed_broadcast": (ROWS, WHOLE, False),
    "to_device": (ROWS, None, False),
}
"""From where to where (None: one device), and whether what the devices hold is summed; MAX has no others."""


@cache
def server() -> subprocess.Popen[str]:
    """The process that has MAX; it ends with this one."""
    script = Path(__file__).with_name("max_server.py")
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen([PYTHON, script], stdin=pipe, stdout=pipe, stderr=nowhere, text=True, env=variables)


def answer(job: dict[str, object]) -> dict[str, float | str]:
    """What the other process says to a line."""
    running = server()
    asks, says = running.stdin, running.stdout
    assert asks is not None
    assert says is not None
    print(json.dumps(job), file=asks, flush=True)
    said = says.readline()
    return json.loads(said) if said else {"cannot": "it has ended"}


def contender(
    axes: dict[str, int], source: Splits, target: Splits | None, pending: Sequence[str], shape: Sequence[int]
) -> dict[str, Elsewhere]:
    """A contender that is timed over there: what it takes to ask is no part of the work."""
    job = {"axes": axes, "source": source, "target": target, "pending": pending, "shape": shape}
    if not max_version() or "cannot" in answer(job):
        return {}
    return {NAME: Elsewhere(lambda: float(answer({"run": 1})["seconds"]))}


def transition(case: MatrixTransition, mesh: DeviceMesh, shape: tuple[int, int]) -> dict[str, Elsewhere]:
    """By `transfer_to`, compiled."""
    source, target = case.layouts(mesh)
    return contender(sizes(mesh), source.splits, target.splits, case.pending, shape)


def collective(name: str, mesh: DeviceMesh, shape: tuple[int, int]) -> dict[str, Elsewhere]:
    """As a movement between the layouts that the collective connects; what is summed are shards."""
    if name not in COLLECTIVES:
        return {}
    source, target, summed = COLLECTIVES[name]
    local = (shape[0] // mesh.num_devices, shape[1]) if summed else shape
    return contender(sizes(mesh), source, target, mesh.axis_names if summed else (), local)


def sizes(mesh: DeviceMesh) -> dict[str, int]:
    """The mesh's axes and their sizes."""
    return dict(zip(mesh.axis_names, mesh.mesh_shape, strict=True))
