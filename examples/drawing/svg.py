"""Line charts and bar charts as pieces of one SVG picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

INK, FAINT = "#24292f", "#d0d7de"
BLUE, RED, GREY = "#0969da", "#bf3989", "#8c959f"
COLOURS = (BLUE, RED)


@dataclass(frozen=True)
class Frame:
    """Where a chart stands in the picture."""

    left: float
    top: float
    width: float
    height: float

    def text(self, x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = INK) -> str:
        """Words at a place of the picture."""
        return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'

    def title(self, words: str) -> str:
        """The heading above the chart."""
        return self.text(self.left, self.top - 12, words, size=14)


def line_chart(frame: Frame, title: str, lines: Mapping[str, Sequence[float]]) -> str:
    """One line per name over its index; earlier lines are drawn broader, so that equal ones both show."""
    values = [value for line in lines.values() for value in line]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    count = max(len(line) for line in lines.values())

    def at(index: int, value: float) -> str:
        x = frame.left + frame.width * index / max(count - 1, 1)
        return f"{x:.1f},{frame.top + frame.height * (high - value) / span:.1f}"

    parts = [frame.title(title)]
    for tick in (low, low + span / 2, high):
        y = frame.top + frame.height * (high - tick) / span
        parts.append(
            f'<line x1="{frame.left}" x2="{frame.left + frame.width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>'
        )
        parts.append(frame.text(frame.left - 6, y + 4, f"{tick:.2f}", anchor="end"))
    for i, (name, line) in enumerate(lines.items()):
        width = 2 + 5 * (len(lines) - 1 - i)
        points = " ".join(at(index, value) for index, value in enumerate(line))
        colour = COLOURS[i % len(COLOURS)]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round" opacity="{0.35 if width > 2 else 1}"/>'
        )
        parts.append(
            frame.text(frame.left + frame.width - 8, frame.top + 18 + 18 * i, name, anchor="end", colour=colour)
        )
    parts.append(frame.text(frame.left + frame.width, frame.top + frame.height + 18, f"step {count}", anchor="end"))
    return "\n".join(parts)


def bar_chart(frame: Frame, title: str, bars: Mapping[str, tuple[float, float]], legend: Mapping[str, str]) -> str:
    """For each name two bars, one under the other, with their values; the legend names the two and their colours."""
    colours = list(legend.values())
    most = max((value for pair in bars.values() for value in pair), default=1.0) or 1.0
    room = frame.height / max(len(bars), 1)
    thick = min(16.0, room / 3)
    label, numbers = 110.0, 76.0
    parts = [frame.title(title)]
    for i, (name, pair) in enumerate(bars.items()):
        y = frame.top + room * i
        parts.append(frame.text(frame.left, y + thick + 4, name))
        for j, value in enumerate(pair):
            wide = (frame.width - label - numbers) * value / most
            top = y + j * (thick + 3)
            parts.append(
                f'<rect x="{frame.left + label:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{thick:.1f}" rx="2" fill="{colours[j]}"/>'
            )
            parts.append(frame.text(frame.left + label + wide + 6, top + thick - 3, amount(value), size=11))
    for j, (words, colour) in enumerate(legend.items()):
        parts.append(
            frame.text(frame.left + label + j * 150, frame.top + frame.height + 18, f"■ {words}", colour=colour)
        )
    return "\n".join(parts)


def picture(width: int, height: int, heading: str, charts: Sequence[str]) -> str:
    """The whole SVG file."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="40" y="36" font-size="18" fill="{INK}">{escape(heading)}</text>',
            *charts,
            "</svg>",
            "",
        ]
    )


def amount(size: float) -> str:
    """Bytes in a readable unit.

    >>> amount(1536), amount(10)
    ('1.5 KiB', '10 B')
    """
    step = 0 if size < 1 else min(3, int(math.log(size, 1024)))
    return f"{size:.0f} B" if not step else f"{size / 1024**step:.1f} {'KMG'[step - 1]}iB"
