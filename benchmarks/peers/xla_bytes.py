"""What XLA's compiled programs receive per device, in MiB, as JSON. Runs in an environment that has JAX.

    python benchmarks/peers/xla_bytes.py

Nothing is executed: programs are compiled for CPU devices, and the collectives in their HLO are counted. A pending sum
is a sum over a leading dim that is split over the mesh axes in question.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transitions import SHAPE, Case, cases

WIDTH = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1, "s8": 1, "u8": 1}
COLLECTIVE = re.compile(
    r"= (?P<type>\(?[a-z0-9]+\[.*?\]?\)?) (?P<kind>all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)


def entry(axes: str) -> tuple[str, ...] | None:
    """Mesh axes as an entry of a partition spec."""
    return tuple(axes) or None


def hlo(case: Case) -> str:
    """The compiled program of one transition."""
    count = math.prod(case.sizes)
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(case.sizes), tuple(case.axes))
    target = NamedSharding(mesh, PartitionSpec(*map(entry, case.target)))
    if not case.pending:
        source = NamedSharding(mesh, PartitionSpec(*map(entry, case.source)))
        x = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=source)
        return jax.jit(lambda x: x, in_shardings=source, out_shardings=target).lower(x).compile().as_text()
    parts = math.prod(case.axes[axis] for axis in case.pending)
    source = NamedSharding(mesh, PartitionSpec(tuple(case.pending), *map(entry, case.source)))
    x = jax.ShapeDtypeStruct((parts, *SHAPE), jnp.float32, sharding=source)
    return jax.jit(lambda x: x.sum(0), in_shardings=source, out_shardings=target).lower(x).compile().as_text()


def size(said: str) -> int:
    """The bytes of a type, or of all members of a tuple."""
    total = 0
    for kind, dims in re.findall(r"([a-z0-9]+)\[([0-9,]*)\]", said):
        total += WIDTH[kind] * math.prod(int(n) for n in dims.split(",") if n)
    return total


def group_size(line: str, count: int) -> int:
    """How many devices take part in one collective."""
    listed = re.search(r"replica_groups=\{\{([0-9,]+)\}", line)
    if listed:
        return len(listed.group(1).split(","))
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]", line)
    if iota:
        return int(iota.group(2))
    named = re.search(r"replica_groups=mesh\[(?P<sizes>.*?)\].*?\{(?P<axes>[^}]*)\}", line)
    if not named:
        return count
    sizes = {axis: int(n) for axis, n in re.findall(r"'(\w+)'=(\d+)", named["sizes"])}
    members = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named["axes"])  # an axis, or a part of one as (before)size
    return math.prod(int(part) if part else sizes[axis] for axis, part in members)


def received(case: Case) -> float:
    """MiB that a device receives in the collectives of the program."""
    total = 0.0
    for line in hlo(case).splitlines():
        found = COLLECTIVE.search(line)
        if not found:
            continue
        n, bytes_ = group_size(line, math.prod(case.sizes)), size(found["type"])
        total += {
            "all-gather": bytes_ * (n - 1) / n,
            "all-reduce": 2 * bytes_ * (n - 1) / n,
            "all-to-all": bytes_ * (n - 1) / n,
            "collective-permute": bytes_,
            "reduce-scatter": bytes_ * (n - 1),
        }[found["kind"]]
    return total / (1 << 20)


def main() -> None:
    """Print one number for each transition."""
    results = {f"{case.mesh} {case.name}": received(case) for case in cases()}
    print(json.dumps({"version": jax.__version__, "mib": results}))


if __name__ == "__main__":
    main()
