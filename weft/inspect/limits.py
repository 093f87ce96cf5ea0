"""The least that a movement costs: its reads and writes, done by plain torch into memory that exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..sharding.geometry import Box, box, box_shape
from ..sharding.layout import Layout

__all__ = ["written_everywhere", "written_once"]

CHUNK = 1 << 18
"""Elements that are combined at a time, few enough to stay in a core's cache."""


def written_once(parts: Sequence[torch.Tensor]) -> Callable[[], object]:
    """Writes the sum of the parts once: what a program must do where all devices share one memory.

    >>> written_once([torch.ones(2, 2), torch.ones(2, 2)])()
    tensor([[2., 2.],
            [2., 2.]])
    """
    out = torch.zeros_like(parts[0])
    return lambda: _combine(out, parts)


def written_everywhere(
    source: Layout, target: Layout, parts: Sequence[torch.Tensor]
) -> Callable[[], list[torch.Tensor]]:
    """Writes the shard of every device that does not hold it already: what a program must do where none share memory.

    >>> from weft.sharding import make_mesh
    >>> mesh = make_mesh({"d": 2})
    >>> write = written_everywhere(Layout(mesh, (("d",), ())), Layout(mesh, ((), ())), [torch.ones(2, 2)])
    >>> [tuple(out.shape) for out in write()]
    [(2, 2), (2, 2)]
    """
    shape = tuple(parts[0].shape)
    replicas: dict[Box, list[torch.Tensor]] = {}
    for slot in range(target.mesh.num_devices):
        wanted, held = box(target, shape, slot), box(source, shape, slot)
        if source.pending or not _contains(held, wanted):
            replicas.setdefault(wanted, []).append(torch.zeros(box_shape(wanted), dtype=parts[0].dtype))

    def write() -> list[torch.Tensor]:
        for wanted, outs in replicas.items():
            where = tuple(slice(low, high) for low, high in wanted)
            _combine(outs[0], [part[where] for part in parts], outs[1:])
        return [out for outs in replicas.values() for out in outs]

    return write


def _combine(out: torch.Tensor, parts: Sequence[torch.Tensor], copies: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    if len(parts) == 1:
        for each in (out, *copies):
            each.copy_(parts[0])
        return out
    rows = max(1, CHUNK // max(1, out[0].numel()))
    for start in range(0, out.shape[0], rows):
        chunk = slice(start, start + rows)
        torch.add(parts[0][chunk], parts[1][chunk], out=out[chunk])
        for part in parts[2:]:
            out[chunk].add_(part[chunk])
        for each in copies:
            each[chunk].copy_(out[chunk])
    return out


def _contains(outer: Box, inner: Box) -> bool:
    return all(low <= begin and end <= high for (low, high), (begin, end) in zip(outer, inner, strict=True))
