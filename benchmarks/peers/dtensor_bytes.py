"""What DTensor's two planners would receive per device, in MiB, as JSON: one object a transition.

    python benchmarks/peers/dtensor_bytes.py

Only plans are made, in a process group that talks to nobody.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._redistribute import _gen_transform_infos_non_cached, _optimize_transform_infos
from torch.testing._internal.distributed.fake_pg import FakeStore
from transitions import ITEMSIZE, SHAPE, Case, cases


def spec(mesh: DeviceMesh, case: Case, splits: tuple[str, str], pending: str) -> DTensorSpec:
    """A layout in DTensor's words; another order than the mesh's goes into its shard order."""
    names = list(case.axes)
    placements: list[Placement] = []
    for axis in names:
        dims = [dim for dim, axes in enumerate(splits) if axis in axes]
        placements.append(Shard(dims[0]) if dims else Partial() if axis in pending else Replicate())
    meta = TensorMeta(torch.Size(SHAPE), (SHAPE[1], 1), torch.float32)
    found = DTensorSpec(mesh, tuple(placements), tensor_meta=meta)
    order = found.shard_order
    wanted = {dim: tuple(names.index(axis) for axis in axes) for dim, axes in enumerate(splits) if axes}
    changed = tuple(type(entry)(entry.tensor_dim, wanted[entry.tensor_dim]) for entry in order)
    return DTensorSpec(mesh, tuple(placements), tensor_meta=meta, shard_order=changed)


def received(case: Case, mesh: DeviceMesh, graph: bool) -> float:
    """MiB that a device receives over all transforms, from DTensor's own list of them."""
    source = spec(mesh, case, case.source, case.pending)
    target = spec(mesh, case, case.target, case.target_pending)
    infos = _gen_transform_infos_non_cached(source, target, graph)
    infos = _optimize_transform_infos(infos, mesh, source.placements, target.placements)
    local = float(SHAPE[0] * SHAPE[1] * ITEMSIZE)
    for axes in case.source:
        for axis in axes:
            local /= case.axes[axis]
    total = 0.0
    for info in infos:
        n = getattr(info, "mesh", mesh).size(info.mesh_dim)
        before, after = info.src_dst_placements
        if before.is_partial():
            total += local * (n - 1) / n * (2 if after.is_replicate() else 1)
            local /= 1 if after.is_replicate() else n
        elif before.is_shard() and after.is_replicate():
            total += local * (n - 1)
            local *= n
        elif before.is_shard():
            total += local * (n - 1) / n
        elif after.is_shard():
            local /= n
    return total / (1 << 20)


def main() -> None:
    """Print one number for the greedy planner and one for the graph-based, for each transition."""
    warnings.simplefilter("ignore")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    results = {}
    for case in cases():
        count = 1
        for size in case.sizes:
            count *= size
        mesh = DeviceMesh("cpu", torch.arange(count).reshape(case.sizes), mesh_dim_names=tuple(case.axes))
        results[f"{case.mesh} {case.name}"] = [received(case, mesh, False), received(case, mesh, True)]
    print(json.dumps({"version": torch.__version__, "mib": results}))


if __name__ == "__main__":
    main()
