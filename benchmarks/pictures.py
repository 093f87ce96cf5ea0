"""Pictures of the figures, as SVG written by hand: lines over logarithmic axes, and bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from figure import LIMIT, SEPARATE, WEFT
from results import Results

from weft.inspect.bench import amount, duration

COLOURS = {WEFT: "#0969da", SEPARATE: "#54aeff", LIMIT: "#57606a"}
OTHERS = ("#bf3989", "#9a6700", "#1a7f37", "#8250df")
INK, FAINT = "#24292f", "#d8dee4"
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a chart stands in the picture."""

    left: float
    top: float
    width: float
    height: float


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = INK) -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """The whole file."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-family="system-ui, sans-serif">'
    return "\n".join(
        [
            head,
            f'<rect width="{width}" height="{height}" fill="white"/>',
            text(24, 32, title, size=17),
            *parts,
            "</svg>",
            "",
        ]
    )


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name, the same in every picture for Weft and the limit."""
    others = [name for name in names if name not in COLOURS]
    return {**COLOURS, **{name: OTHERS[i % len(OTHERS)] for i, name in enumerate(others)}}


def line_chart(
    frame: Frame, title: str, lines: Mapping[str, Line], across: Callable[[float], str], paint: Mapping[str, str]
) -> str:
    """Seconds over something, both axes logarithmic."""
    points = [point for line in lines.values() for point in line]
    low_x, high_x = (f(math.log(x) for x, _ in points) for f in (min, max))
    low_y = math.floor(min(math.log10(y) for _, y in points))
    high_y = max(low_y + 1, math.ceil(max(math.log10(y) for _, y in points)))

    def at(x: float, y: float) -> tuple[float, float]:
        wide = (math.log(x) - low_x) / ((high_x - low_x) or 1)
        tall = (math.log10(y) - low_y) / (high_y - low_y)
        return frame.left + frame.width * wide, frame.top + frame.height * (1 - tall)

    parts = [text(frame.left, frame.top - 12, title, size=14)]
    for power in range(low_y, high_y + 1):
        _, y = at(points[0][0], 10.0**power)
        parts.append(
            f'<line x1="{frame.left}" x2="{frame.left + frame.width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>'
        )
        parts.append(text(frame.left - 6, y + 4, tick(10.0**power), size=11, anchor="end"))
    for x in sorted({x for x, _ in points}):
        place, _ = at(x, 10.0**low_y)
        parts.append(text(place, frame.top + frame.height + 18, across(x), size=11, anchor="middle"))
    for name, line in lines.items():
        places = [at(x, y) for x, y in line]
        dash = ' stroke-dasharray="5 4"' if name == LIMIT else ""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{paint[name]}" stroke-width="2.5"{dash}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{paint[name]}"/>' for x, y in places]
    return "\n".join(parts)


def tick(seconds: float) -> str:
    """A power of ten of seconds.

    >>> tick(1e-05)
    '10 µs'
    """
    return duration(seconds * 1.0001).replace(".00", "").replace(".0", "")


def legend(x: float, y: float, names: Sequence[str], paint: Mapping[str, str]) -> str:
    """Names in their colours, side by side."""
    parts = []
    for name in names:
        parts.append(text(x, y, f"● {name}", colour=paint[name]))
        x += 32 + 6.8 * len(name)
    return "\n".join(parts)


def bars(
    frame: Frame, rows: Mapping[str, Mapping[str, float]], shown: Callable[[float], str], paint: Mapping[str, str]
) -> str:
    """For each row a bar per name, with its value; the longest fills the frame."""
    most = max(value for row in rows.values() for value in row.values())
    room = frame.height / len(rows)
    thick = min(15.0, room / (max(map(len, rows.values())) + 1))
    parts = []
    for i, (title, row) in enumerate(rows.items()):
        top = frame.top + room * i
        parts.append(text(frame.left - 10, top + thick * len(row) / 2 + 4, title, anchor="end"))
        for j, (name, value) in enumerate(row.items()):
            wide = max(1.0, frame.width * value / most)
            y = top + j * (thick + 1)
            parts.append(
                f'<rect x="{frame.left}" y="{y:.1f}" width="{wide:.1f}" height="{thick:.1f}" rx="2" fill="{paint[name]}"/>'
            )
            parts.append(text(frame.left + wide + 6, y + thick - 3, shown(value), size=11))
    return "\n".join(parts)


SHOWN = ("S0→S1", "S0→R", "P→S0", "(dp, tp)→(tp, dp)")


def time_over_size(results: Results) -> str | None:
    """Four transitions at all sizes."""
    found = {name: [f for f in results.of("transitions") if f.name == name] for name in SHOWN}
    if not all(found.values()):
        return None
    names = list(dict.fromkeys(who for figures in found.values() for f in figures for who in f.times))
    names = [name for name in names if not name.startswith("limit,")]
    paint = colours(names)
    parts = [legend(70, 62, names, paint)]
    for i, (name, figures) in enumerate(found.items()):
        lines = {who: [(f.nbytes, f.times[who].median) for f in figures if who in f.times] for who in names}
        lines = {who: line for who, line in lines.items() if line}
        frame = Frame(80 + 440 * (i % 2), 110 + 280 * (i // 2), 350, 200)
        parts.append(line_chart(frame, name, lines, lambda x: amount(int(x)), paint))
    return picture(920, 660, "Layout transitions on 8 CPU devices in one process: time over size", parts)


def overhead(results: Results) -> str | None:
    """What single ops cost."""
    figures = [f for f in results.of("ops") if LIMIT in f.times]
    if not figures:
        return None
    names = list(dict.fromkeys(who for f in figures for who in f.times if not who.startswith("JAX")))
    paint = colours(names)
    words = {**{name: name for name in names}, LIMIT: "eight plain ops"}
    rows = {f.name: {words[who]: f.times[who].median for who in names if who in f.times} for f in figures}
    paint = {words[name]: paint[name] for name in names}
    names = [words[name] for name in names]
    chart = bars(Frame(120, 90, 620, 90 * len(rows)), rows, duration, paint)
    return picture(
        880, 110 + 90 * len(rows), "A single op on 1 KiB over eight shards", [legend(40, 62, names, paint), chart]
    )


def planning(results: Results) -> str | None:
    """Planning time over devices."""
    names = ("a new movement", "a new one, sums pending")
    lines = {
        name: [(f.devices, f.times[WEFT].median) for f in results.of("planning") if f.name == name] for name in names
    }
    if not all(lines.values()):
        return None
    paint = dict(zip(names, ("#0969da", "#bf3989"), strict=True))
    chart = line_chart(Frame(90, 110, 620, 240), "median of many transitions", lines, lambda x: f"{x:,.0f}", paint)
    return picture(
        780, 400, "Planning a transition: time over the number of devices", [legend(90, 62, names, paint), chart]
    )


def received(results: Results) -> str | None:
    """Bytes over the bound."""
    if not results.bytes:
        return None
    kinds = ("geometric mean", "worst")
    paint = dict(zip(kinds, ("#0969da", "#bf3989"), strict=True))
    rows = {who: {"geometric mean": said["mean"], "worst": said["worst"]} for who, said in results.bytes.items()}
    chart = bars(Frame(140, 90, 520, 52 * len(rows)), rows, lambda x: f"{x:.2f} ×", paint)
    count = max(said["cases"] for said in results.bytes.values())
    return picture(
        760,
        110 + 52 * len(rows),
        f"Bytes received over the lower bound, {count} transitions",
        [legend(140, 62, kinds, paint), chart],
    )


DRAWINGS: Mapping[str, Callable[[Results], str | None]] = {
    "time_over_size.svg": time_over_size,
    "overhead.svg": overhead,
    "planning.svg": planning,
    "bytes.svg": received,
}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draws whatever there are figures for."""
    drawn = []
    for name, make in DRAWINGS.items():
        content = make(results)
        if content is not None:
            (folder / name).write_text(content)
            drawn.append(folder / name)
    return drawn
