"""`ShardingReport`: what `shard_module` did, name by name."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from ..planning.costs.bounds import largest
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh

__all__ = ["ShardedName", "ShardingReport", "remember", "sharding_report"]


@dataclass(frozen=True, slots=True)
class ShardedName:
    """One parameter or buffer: its layout, and the pattern that gave it."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    layout: Layout
    pattern: str | None
    """None: no pattern matched, so it is replicated."""
    tied_to: str | None = None
    """The name of the first parameter that is this same tensor, if it is not the first."""

    @property
    def local_bytes(self) -> int:
        """What the device with the largest shard holds of it; a tied tensor is counted where it stands first."""
        return 0 if self.tied_to is not None else prod(largest(self.layout, self.shape)) * self.itemsize

    @property
    def total_bytes(self) -> int:
        """The bytes of the whole tensor; a tied tensor is counted where it stands first."""
        return 0 if self.tied_to is not None else prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True)
class ShardingReport:
    """What `shard_module` did, name by name; prints as a table.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> module = weft.nn.shard_module(torch.nn.Linear(8, 8), mesh, {"weight": weft.P("tp", None)})
    >>> print(weft.nn.sharding_report(module))
    name    shape   layout   pattern     bytes/device
    weight  (8, 8)  (tp, –)  weight      64 of 256
    bias    (8,)    (–)      no pattern  32 of 32
    """

    mesh: DeviceMesh
    names: tuple[ShardedName, ...]

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The names that no pattern matched: they are replicated."""
        return tuple(entry.name for entry in self.names if entry.pattern is None and entry.tied_to is None)

    @property
    def bytes_per_device(self) -> int:
        """What the fullest device holds of the module."""
        return sum(entry.local_bytes for entry in self.names)

    def __str__(self) -> str:
        head = ("name", "shape", "layout", "pattern", "bytes/device")
        rows = [
            (
                entry.name,
                str(entry.shape),
                str(entry.layout),
                f"tied to {entry.tied_to}" if entry.tied_to else entry.pattern or "no pattern",
                f"{entry.local_bytes:,} of {entry.total_bytes:,}",
            )
            for entry in self.names
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (head, *rows)
        )


_ATTRIBUTE = "_weft_sharding_report"


def remember(module: torch.nn.Module, report: ShardingReport) -> None:
    """Keeps the report with the module, outside its parameters, buffers and submodules."""
    object.__setattr__(module, _ATTRIBUTE, report)


def sharding_report(module: torch.nn.Module) -> ShardingReport:
    """What `shard_module` did to a module, name by name.

    >>> import torch, weft
    >>> module = weft.nn.shard_module(torch.nn.Linear(4, 4), weft.make_mesh({"tp": 2}), {"weight": weft.P("tp")})
    >>> sharding_report(module).unmatched
    ('bias',)
    """
    report = getattr(module, _ATTRIBUTE, None)
    if not isinstance(report, ShardingReport):
        raise ValueError(
            f"this {type(module).__name__} was not given to shard_module itself, so it has no report: ask the module that was"
        )
    return report
