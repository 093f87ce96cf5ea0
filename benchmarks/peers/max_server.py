"""Moves tensors between layouts with MAX, in an environment that has only MAX, on demand of another process.

    .venv-max/bin/python benchmarks/peers/max_server.py

It reads a line of JSON and answers with one, until its input ends:

- `{"axes": {"d": 8}, "source": [["d"], []], "target": [[], ["d"]], "pending": [], "shape": [64, 64]}` compiles the
  movement, if it is new, makes a tensor of that shape and answers `{"ready": N}`, or `{"cannot": "why"}`. A `target` of
  null is one device.
- `{"run": N}` answers `{"seconds": s}`: how long movement N took, once.

MAX has one CPU device; a mesh may repeat it, and each place of the mesh then holds a shard of its own. Programs are
compiled for sizes that are names, so that one serves all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from math import prod

import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType
from max.experimental import compilation, functional
from max.experimental.sharding import DeviceMapping, DeviceMesh, Partial, Replicated, Sharded, TensorLayout
from max.experimental.tensor import Tensor

Job = dict
compiled: dict[str, Callable[[Tensor], Tensor]] = {}


def mesh_of(job: Job) -> DeviceMesh:
    """The mesh: one CPU, as often as there are places."""
    sizes = tuple(job["axes"].values())
    return DeviceMesh(tuple(CPU() for _ in range(prod(sizes))), sizes, tuple(job["axes"]))


def mapping(mesh: DeviceMesh, splits: list[list[str]], pending: list[str]) -> DeviceMapping:
    """A layout in MAX's words, or an error where it has none."""
    order = [axis for axes in splits for axis in axes if len(axes) > 1]
    if order != sorted(order, key=mesh.axis_names.index):
        raise ValueError("a dim is split by the mesh's axes in their order only")
    placements = []
    for axis in mesh.axis_names:
        dims = [dim for dim, axes in enumerate(splits) if axis in axes]
        placements.append(Sharded(dims[0]) if dims else Partial() if axis in pending else Replicated())
    return DeviceMapping(mesh, tuple(placements))


def place(mesh: DeviceMesh, layout: DeviceMapping, shape: list[int], index: int) -> tuple[slice, ...]:
    """What one place of the mesh holds; sizes divide evenly here."""
    found = []
    for dim, size in enumerate(shape):
        low, high = 0, size
        for axis, placement in enumerate(layout.placements):
            if placement == Sharded(dim):
                step = (high - low) // mesh.mesh_shape[axis]
                low += step * mesh.device_coord(index, axis)
                high = low + step
        found.append(slice(low, high))
    return tuple(found)


def tensor(mesh: DeviceMesh, source: DeviceMapping, whole: np.ndarray) -> Tensor:
    """A tensor of shards that are not each other's memory; a pending sum has the whole as its first contribution."""
    shards = []
    pending = [axis for axis, placement in enumerate(source.placements) if isinstance(placement, Partial)]
    for index in range(mesh.num_devices):
        piece = np.ascontiguousarray(whole[place(mesh, source, list(whole.shape), index)])
        first = all(mesh.device_coord(index, axis) == 0 for axis in pending)
        shards.append(Buffer.from_numpy(piece.copy() if first else np.zeros_like(piece)))
    return Tensor._from_shards(tuple(shards), source)


def program(job: Job, source: DeviceMapping, target: DeviceMapping | CPU) -> Callable[[Tensor], Tensor]:
    """The compiled movement, checked once against NumPy."""
    key = json.dumps([job["axes"], job["source"], job["target"], job["pending"]])
    if key not in compiled:
        layout = TensorLayout(DType.float32, ["rows", "columns"], source)
        run = compilation.compile(lambda x: functional.transfer_to(x, target))(layout)
        whole = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
        moved = run(tensor(source.mesh, source, whole))
        for index, shard in enumerate(moved.local_shards if isinstance(target, DeviceMapping) else [moved]):
            where = place(target.mesh, target, [64, 64], index) if isinstance(target, DeviceMapping) else ...
            if not np.array_equal(shard.to_numpy(), whole[where]):
                raise ValueError(f"place {index} gets other values than NumPy's")
        compiled[key] = run
    return compiled[key]


def prepared(job: Job) -> Callable[[], object]:
    """A movement that can be run again and again."""
    mesh = mesh_of(job)
    source = mapping(mesh, job["source"], job["pending"])
    target = CPU() if job["target"] is None else mapping(mesh, job["target"], [])
    run = program(job, source, target)
    x = tensor(mesh, source, np.ones(job["shape"], np.float32))
    run(x)
    return lambda: run(x)


def main() -> None:
    """Answer until there is nothing more to answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what MAX prints is no answer
    ready: Callable[[], object] = lambda: None  # noqa: E731
    for line in sys.stdin:
        job = json.loads(line)
        if "run" in job:
            start = time.perf_counter()
            ready()
            said: dict[str, object] = {"seconds": time.perf_counter() - start}
        else:
            ready = lambda: None  # noqa: E731, lets go of the tensors before
            try:
                ready = prepared(job)
                said = {"ready": True}
            except Exception as error:  # noqa: BLE001, whatever MAX cannot do is said, and the next job comes
                said = {"cannot": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
