"""Plans as text: one screen that says what moves, how much and for how long."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Protocol

from ..sharding.layout import Layout
from .parts import Parts
from .step import Bytes, Step

__all__ = ["bytes_said", "bytes_text", "plan_text", "table", "time_text"]

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


class Described(Protocol):
    """What `plan_text` reads of a plan."""

    @property
    def source(self) -> Layout: ...
    @property
    def target(self) -> Layout: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def steps(self) -> tuple[Step, ...]: ...
    @property
    def bytes_received(self) -> Bytes: ...
    @property
    def lower_bound(self) -> Bytes: ...
    @property
    def peak_memory(self) -> int: ...
    @property
    def estimated_time(self) -> float: ...
    @property
    def parts(self) -> Parts | None: ...


def plan_text(plan: Described) -> str:
    """A plan on one screen."""
    received, bound = plan.bytes_received, plan.lower_bound
    meshes = f"{plan.source.mesh}"
    if plan.source.mesh != plan.target.mesh:
        same = set(plan.source.mesh.devices) == set(plan.target.mesh.devices)
        meshes += f" -> {plan.target.mesh}{'' if not same else ' (the same devices)'}"
    least = f"at least {bytes_text(bound.max)} and {bytes_text(bound.total)}"
    lines = [
        f"Plan {plan.source} -> {plan.target} on {meshes}",
        f"  tensor    {shape_text(plan.shape)}, {plan.itemsize} bytes an element",
        f"  received  {bytes_text(received.max)} on the busiest device, {bytes_text(received.total)} in all ({least})",
        f"  memory    {bytes_text(plan.peak_memory)} on the fullest device",
        f"  time      {time_text(plan.estimated_time)}",
    ]
    if plan.parts is not None:
        lines.append(f"  parts     {plan.parts.count} along dim {plan.parts.dim}, one after another")
    if not plan.steps:
        return "\n".join([*lines, "  steps     none: the layouts are the same"])
    rows = [("", "step", "over", "from", "to", "received")]
    rows += [
        (
            str(number),
            step.described,
            ", ".join(step.axes) or "–",
            str(step.source),
            str(step.target),
            bytes_text(step.bytes_received.max),
        )
        for number, step in enumerate(plan.steps, 1)
    ]
    return "\n".join([*lines, "", *("  " + line for line in table(rows))])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text in columns.

    >>> table([("a", "bb"), ("ccc", "d")])
    ['a    bb', 'ccc  d']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def shape_text(shape: Sequence[object]) -> str:
    """A shape as people write it.

    >>> shape_text((8, 4)), shape_text(())
    ('8 × 4', 'scalar')
    """
    return " × ".join(map(str, shape)) or "scalar"


def bytes_text(size: int) -> str:
    """A number of bytes, rounded for people.

    >>> bytes_text(32 << 20), bytes_text(1536), bytes_text(12)
    ('32 MiB', '1.5 KiB', '12 B')
    """
    amount, unit = float(size), 0
    while amount >= 1024 and unit + 1 < len(_BYTES):
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g} {_BYTES[unit]}"


def bytes_said(limit: float | str) -> int:
    """A number of bytes from `60GB`, `60 GiB` or a number, for a memory limit.

    >>> bytes_said("1.5 KiB"), bytes_said("2MB"), bytes_said(12)
    (1536, 2000000, 12)
    """
    said = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", limit) if isinstance(limit, str) else None
    if said is not None and said[2].upper() in _UNITS:
        count = float(said[1]) * _UNITS[said[2].upper()]
    elif isinstance(limit, (int, float)) and not isinstance(limit, bool) and math.isfinite(limit):
        count = limit
    else:
        raise ValueError(f"memory_limit is a number of bytes or a text such as '60GB' or '60GiB', but got {limit!r}")
    if count < 1:
        raise ValueError(f"memory_limit is more than 0 bytes, but got {limit!r}")
    return int(count)


def time_text(seconds: float) -> str:
    """A time, rounded for people.

    >>> time_text(0.00325), time_text(0)
    ('3.25 ms', '0 s')
    """
    for scale, unit in _TIMES:
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs" if seconds else "0 s"
