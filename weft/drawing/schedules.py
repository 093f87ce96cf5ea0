"""Drawings of pipeline schedules: time goes across, places go down; in a terminal as text, in a notebook as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import final

from rich.console import Group, RenderableType
from rich.text import Text

from ..schedules import Schedule, Span, Work
from .panels import WIDTH, printed

__all__ = ["SchedulePicture", "schedule_svg", "schedule_text"]

_STYLES = {Work.FORWARD: "black on bright_blue", Work.BACKWARD: "black on bright_green", Work.WEIGHT: "black on yellow"}
_COLORS = {
    Work.FORWARD: ("#b8cdf5", "#86a8ea"),
    Work.BACKWARD: ("#b8f5c4", "#84dd97"),
    Work.WEIGHT: ("#f5e3b8", "#e6c982"),
}
"""For each kind of work the colours of a place's stages, one after another."""
_UNIT, _HEIGHT, _LEFT = 26, 24, 64


@final
@dataclass(frozen=True, slots=True, repr=False)
class SchedulePicture:
    """A drawing of when each place does what, where all kinds of work take the same time.

    >>> from weft.schedules import one_f_one_b
    >>> print(SchedulePicture(one_f_one_b(stages=2, microbatches=2)))
    1f1b: 2 stages in 2 places, 2 microbatches; bubble 33.3%, live 2 1
    0  F0 F1 ·  ·  B0─── ·  B1───
    1  ·  F0 B0─── F1 B1─── ·  ·
    """

    schedule: Schedule

    def __str__(self) -> str:
        return printed(self, max(WIDTH, *map(len, schedule_text(self.schedule).plain.splitlines()), 0))

    def __rich__(self) -> RenderableType:
        head = str(self.schedule).partition("\n")[0]
        return Group(Text(head), schedule_text(self.schedule))

    def svg(self) -> str:
        """The drawing as an SVG file."""
        return schedule_svg(self.schedule)

    def _repr_svg_(self) -> str:
        return self.svg()

    __repr__ = __str__


def schedule_text(schedule: Schedule) -> Text:
    """One line for each place; a dot is a time in which it waits, and small letters are a place's second stage.

    >>> from weft.schedules import gpipe
    >>> print(schedule_text(gpipe(stages=1, microbatches=2)))
    0  F0 F1 B0─── B1───
    """
    timeline = schedule.timeline()
    labels = {span: _label(span, schedule) for span in timeline.spans}
    width = max(map(len, labels.values()))
    text = Text(no_wrap=True, overflow="ignore")
    for place in range(schedule.places):
        text.append(f"{place}  " if place == 0 else f"\n{place}  ")
        now = 0
        for span in (span for span in timeline.spans if span.place == place):
            _wait(text, int(span.start) - now, width)
            cells = int(span.end - span.start)
            label = labels[span] if cells > 1 else labels[span].ljust(width)
            text.append(label.ljust(cells * (width + 1) - 1, "─"), _STYLES[span.entry.work])
            text.append(" ")
            now = int(span.end)
        _wait(text, int(timeline.length) - now, width)
        text.rstrip()
    return text


def _wait(text: Text, ticks: int, width: int) -> None:
    text.append(("·".center(width) + " ") * ticks)


def _label(span: Span, schedule: Schedule) -> str:
    """What is done with which microbatch; where a place has more than two stages, in which stage too."""
    stages = _stages(schedule, span.place)
    if len(stages) > 2:
        return str(span.entry)
    letter = span.entry.work.value
    return f"{letter if span.entry.stage == stages[0] else letter.lower()}{span.entry.microbatch}"


def _stages(schedule: Schedule, place: int) -> list[int]:
    return [stage for stage, where in enumerate(schedule.stage_places) if where == place]


def schedule_svg(schedule: Schedule) -> str:
    """The table as an SVG picture: a row for each place, a box for each entry, as wide as it takes time.

    >>> from weft.schedules import gpipe
    >>> schedule_svg(gpipe(stages=2, microbatches=2)).count("<rect")
    8
    """
    timeline = schedule.timeline()
    unit = _UNIT / min(span.end - span.start for span in timeline.spans)
    width, height = _LEFT + timeline.length * unit + 4, (schedule.places + 1) * _HEIGHT + 4
    size = f"width='{width:g}' height='{height:g}' font-family='monospace' font-size='11'"
    head = escape(str(schedule).partition("\n")[0])
    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' {size}>", f"<text x='0' y='15' fill='#888'>{head}</text>"]
    parts += [
        f"<text x='0' y='{(place + 1) * _HEIGHT + 15}' fill='#888'>place {place}</text>"
        for place in range(schedule.places)
    ]
    parts += [_box(span, schedule, unit) for span in timeline.spans]
    return "".join([*parts, "</svg>"])


def _box(span: Span, schedule: Schedule, unit: float) -> str:
    stages = _stages(schedule, span.place)
    colors = _COLORS[span.entry.work]
    color = colors[stages.index(span.entry.stage) % len(colors)]
    left, top = _LEFT + span.start * unit, (span.place + 1) * _HEIGHT
    width = (span.end - span.start) * unit
    return (
        f"<g><title>{span.entry}: {span.entry.work} of microbatch {span.entry.microbatch} in stage {span.entry.stage}</title>"
        f"<rect x='{left:g}' y='{top}' width='{width:g}' height='{_HEIGHT - 3}' fill='{color}' stroke='#888'/>"
        f"<text x='{left + width / 2:g}' y='{top + 15}' text-anchor='middle' fill='#111'>{span.entry.microbatch}</text></g>"
    )


Schedule._repr_svg_ = schedule_svg  # type: ignore[attr-defined]
