"""The page of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...drawing.page import LineSpan, MovementRow, Page, Row
from ...planning.text import bytes_text, time_text
from ..ledger import KINDS
from ..timing import Movement
from .text import work_text

if TYPE_CHECKING:
    from .report import StepReport

__all__ = ["report_page"]

_POINTS = 3000
"""Points of the memory curve, beyond which nobody sees more."""


def report_page(report: StepReport) -> Page:
    """What a browser shows of a report."""
    memory = report.memory
    curve = _thinned(report.curve())
    totals = [sum(held) for _, held in curve]
    return Page(
        title=f"A step on {report.devices:,} {report.machine.name}",
        subtitle=", ".join(map(str, report.meshes)) or "one device",
        facts=[
            ("the step takes", time_text(report.seconds)),
            ("computing", time_text(report.computing)),
            ("moving, exposed", time_text(report.exposed)),
            ("moving, hidden", time_text(report.hidden)),
            ("work of a device", work_text(report.flops)),
            ("received by a device", bytes_text(report.bytes_received)),
            ("held at most", f"{bytes_text(memory.peak)} of {bytes_text(report.machine.memory)}"),
        ],
        findings=[(each.what, each.fix) for each in report.findings],
        meshes=report.meshes,
        rows=_rows(report),
        kinds=KINDS,
        memory=curve,
        peak=memory.peak,
        peak_at=totals.index(max(totals)) if totals else 0,
        capacity=report.machine.memory,
        largest=[(each.nbytes, each.kind, each.op, str(each.line)) for each in memory.largest[:20]],
        moves=_moves(report.movements),
    )


def _rows(report: StepReport) -> list[Row]:
    rows: dict[tuple[object, str], list[LineSpan]] = {}
    several = len({each.device for each in report.operations}) > 1
    for each in report.operations:
        name = f"compute {each.device}" if several else "compute"
        more = work_text(each.work.flops) if each.work.flops else bytes_text(each.work.nbytes)
        rows.setdefault((0, name), []).append(LineSpan(each.start, each.seconds, each.op, str(each.line), more))
    for move in report.movements:
        name = move.tier.name.lower() + (f" {move.device}" if several else "")
        record = move.record
        more = f"{bytes_text(record.bytes_received)} over {'·'.join(record.axes)}, {record.source} to {record.target}"
        rows.setdefault((1, name), []).append(LineSpan(move.start, move.seconds, record.kind, str(move.line), more))
    return [
        Row(name, "--k5" if kind else "--k0", sorted(spans, key=lambda each: each.start))
        for (kind, name), spans in rows.items()
    ]


def _moves(movements: Sequence[Movement]) -> list[MovementRow]:
    groups: dict[tuple[object, ...], list[Movement]] = {}
    for each in movements:
        record = each.record
        key = (str(each.line), record.kind, record.axes, record.source, record.target, record.shape, record.op)
        groups.setdefault(key, []).append(each)
    return [
        MovementRow(
            first.record.kind,
            first.record.axes,
            first.tier.name.lower(),
            first.record.source,
            first.record.target,
            first.record.shape,
            first.record.op,
            str(first.line),
            sum(each.record.bytes_received for each in group),
            len(group),
            sum(each.seconds for each in group),
            sum(each.exposed for each in group),
        )
        for group in groups.values()
        for first in group[:1]
    ]


def _thinned(curve: Sequence[tuple[float, tuple[int, ...]]]) -> list[tuple[float, tuple[int, ...]]]:
    """A curve of fewer points: of each stretch the highest, so that the peak stays."""
    stretch = -(-len(curve) // _POINTS) or 1
    return [max(curve[at : at + stretch], key=lambda point: sum(point[1])) for at in range(0, len(curve), stretch)]
