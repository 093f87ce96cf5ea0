"""A report as text: one screen that says whether a step fits, what moves where, and how long it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...planning.text import bytes_text, table, time_text
from ..ledger import KINDS

if TYPE_CHECKING:
    from .report import StepReport

__all__ = ["report_text", "short", "work_text"]

_MOST = 8
_UNITS = ("", "k", "M", "G", "T", "P", "E")


def report_text(report: StepReport) -> str:
    """A report on one screen."""
    machine, memory = report.machine, report.memory
    meshes = ", ".join(map(str, report.meshes)) or "one device"
    share = report.flops / report.seconds / max(machine.flops.values()) if report.seconds else 0.0
    moving = (
        f"{time_text(report.moving)} moving ({time_text(report.exposed)} exposed, {time_text(report.hidden)} hidden)"
    )
    lines = [
        f"A step on {report.devices:,} {machine.name}: {meshes}",
        f"  time      {time_text(report.seconds)}: {time_text(report.computing)} computing, {moving}",
        f"  work      {work_text(report.flops)} a device, {share:.0%} of what it could do",
        f"  received  {bytes_text(report.bytes_received)} a device",
        f"  memory    {bytes_text(memory.peak)} of {bytes_text(machine.memory)} on the fullest device",
    ]
    lines += [f"    {kind:<18}{bytes_text(memory.at_peak[kind]):>12}" for kind in KINDS if kind in memory.at_peak]
    made = [held for held in memory.largest if held.line.where != "before the step"][:4]
    if made:
        lines.append("  made by")
        lines += [
            f"    {bytes_text(each.nbytes):>12}  {each.kind}, {each.op} at {short(str(each.line))}" for each in made
        ]
    if report.movements:
        lines += [f"  by {what:<8}{_listed(report.bytes_by(what))}" for what in ("axis", "tier", "kind")]
    rows = [("time", "op")] + [(time_text(s), op) for op, s in list(report.seconds_by("op").items())[:_MOST]]
    lines += ["  by op", *("    " + line for line in table(rows))]
    if report.movements:
        rows = [("received", "line")]
        rows += [(bytes_text(n), short(line)) for line, n in list(report.bytes_by("line").items())[:_MOST]]
        lines += ["  by line", *("    " + line for line in table(rows))]
    for each in report.findings:
        lines.append(f"  ! {each}")
    return "\n".join(lines)


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {bytes_text(n)}" for name, n in sizes.items())


def work_text(flops: float) -> str:
    """Operations of arithmetic, in words.

    >>> work_text(2_500_000)
    '2.5 MFLOP'
    """
    unit = 0
    while flops >= 1000 and unit < len(_UNITS) - 1:
        flops, unit = flops / 1000, unit + 1
    return f"{flops:.3g} {_UNITS[unit]}FLOP"


def short(line: str) -> str:
    """A line with the last two names of its path.

    >>> short("/home/me/project/model.py:41")
    'project/model.py:41'
    """
    return "/".join(Path(line).parts[-2:]).lstrip("/")
