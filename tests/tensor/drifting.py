"""Programs that drift, and what is told of them; by itself, what each of several processes runs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

import weft
from weft import P

Program = Callable[[weft.DeviceMesh], object]


def trained(value: torch.Tensor, mesh: weft.DeviceMesh, spec: P) -> torch.Tensor:
    x = weft.shard(value, mesh, spec)
    assert isinstance(x, torch.Tensor)
    return nn.Parameter(x)


def whole_batch(mesh: weft.DeviceMesh) -> object:
    """Weights P("tp", "dp") and ids that every device has: each layer moves the whole batch."""
    ids = weft.shard(torch.arange(8 * 256).reshape(8, 256) % 64, mesh, P())
    table, weight = (trained(torch.ones(size, 64), mesh, P("tp", "dp")) for size in (64, 1024))
    x = F.embedding(ids, table)  # type: ignore[arg-type]
    return F.linear(x, weight).relu()  # here


def lost_batch(mesh: weft.DeviceMesh) -> object:
    """A table whose features are split over the axis that splits the batch."""
    ids = weft.shard(torch.arange(8 * 512).reshape(8, 512) % 64, mesh, P("dp"))
    table = trained(torch.ones(64, 512), mesh, P("tp", "dp"))
    return F.embedding(ids, table)  # type: ignore[arg-type]  # here


def lost_split(mesh: weft.DeviceMesh) -> object:
    """An op that takes its tensor whole."""
    x = weft.shard(torch.eye(512), mesh, P("dp"))
    return torch.linalg.cholesky(x)  # type: ignore[arg-type]  # here


def lost_gradient(mesh: weft.DeviceMesh) -> object:
    """A product that keeps the batch split, whose gradient is smaller gathered than its weight."""
    x = trained(torch.ones(1024, 4096), mesh, P("dp"))
    weight = trained(torch.ones(1024, 4096), mesh, P("tp", "dp"))
    y = F.linear(2 * x, weight)  # here
    y.relu().square().sum().backward()
    return y


def whole_gradient(mesh: weft.DeviceMesh) -> object:
    """An op whose gradient puts numbers where they were taken from, into a tensor that is whole."""
    x = trained(torch.ones(512, 1024), mesh, P("dp"))
    y = x.take(torch.arange(1000))  # here
    y.square().sum().backward()
    return y


def whole_program(mesh: weft.DeviceMesh) -> object:
    """Data and tensor parallel, as they should be."""
    x = weft.shard(torch.ones(8, 64, 512), mesh, P("dp"))
    up, down = trained(torch.ones(1024, 512), mesh, P("tp")), trained(torch.ones(512, 1024), mesh, P(None, "tp"))
    y = F.linear(F.gelu(F.linear(x, up)), down)  # type: ignore[arg-type]
    y.square().mean().backward()
    return y


def split_weights(mesh: weft.DeviceMesh) -> object:
    """Weights that are split like the batch, and gathered to be used."""
    x = weft.shard(torch.ones(8, 512, 512), mesh, P(("dp", "tp")))
    weight = trained(torch.ones(1024, 512), mesh, P(("dp", "tp")))
    y = F.linear(x, weight)  # type: ignore[arg-type]
    y.square().mean().backward()
    return y


DRIFTING: dict[str, Program] = {
    each.__name__: each for each in (whole_batch, lost_batch, lost_split, lost_gradient, whole_gradient)
}
STEADY: dict[str, Program] = {each.__name__: each for each in (whole_program, split_weights)}


def drifts(program: Program, mesh: weft.DeviceMesh) -> list[str]:
    """What is told of a program, but for the folder of its file."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with weft.reshard_policy("warn"):
            program(mesh)
    told = [str(each.message) for each in seen if issubclass(each.category, weft.DriftWarning)]
    return [text.replace(__file__, "drifting.py") for text in told]


def all_drifts(names: Sequence[str] = ()) -> dict[str, list[str]]:
    """What is told of each program."""
    mesh = weft.make_mesh({"dp": 4, "tp": 2})
    programs = DRIFTING | STEADY
    return {name: drifts(programs[name], mesh) for name in names or programs}


if __name__ == "__main__":
    weft.distributed.init(devices_per_process=4)
    print(json.dumps(all_drifts()))
    weft.distributed.shutdown()
