"""The page that shows the figures: tables with Weft over the limit and over the best peer, and why where it is behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from contest import Timing
from figure import LIMIT, SEPARATE, SEPARATE_LIMIT, WEFT, Figure
from goals import LARGE, TRAINED, outcomes
from reasons import reason
from results import Results

from weft.inspect.bench import amount, duration

TRANSITIONS_EXPLAINED = """S0: rows over all devices, S1: columns, R: a copy on each, P: a sum still to be taken; (dp, tp): rows over one axis of a
2 × 4 mesh, columns over the other. The limit: what must be written, copied (or added) by plain torch into memory that
exists. The peers: JAX on 8 host devices, with arrays that have not been moved before (it keeps on an array what it gathered
of it); MAX, compiled, on a mesh that repeats its one CPU (its own words: simulated), where replicas are one buffer. MAX has
no layout (tp·dp, –), and no maximum or permutation among the collectives. Nabla cannot be measured: its newest release,
26.2251344, raises on import where MAX is a released version ("Nabla requires Modular nightly builds")."""
HEADINGS = {
    "ops": (
        "Single calls, 1 KiB on 8 CPU devices",
        "The limit: the same op on each of the eight shards, by plain torch.",
    ),
    "transitions": ("Twelve transitions, 8 CPU devices in one process", TRANSITIONS_EXPLAINED),
    "collectives": (
        "Collectives, 8 CPU devices in one process",
        "A matrix whose rows lie over the devices. The limit and the peer as above.",
    ),
    "training": (
        "Training steps, DP × TP on 2 × 4 CPU devices in one process",
        "Forward, loss, backward, SGD. The limit: plain torch on one device. DTensor has one device, and attention made of matmuls.",
    ),
    "processes": (
        "4 Gloo processes, 16 MiB",
        "The limit: the raw call of `torch.distributed`, into memory that exists. A turn takes as long as its slowest process; ops are called 200 times.",
    ),
    "planning": ("Planning", "Without peers: theirs is part of compiling, or is not searched for."),
    "graphs": ("Compiled graphs", "The limit: the same ops on one plain torch tensor."),
}
PICTURES = {
    "ops": ("overhead.svg", "What a single op costs on eight shards"),
    "transitions": ("time_over_size.svg", "Time over size for four transitions"),
    "planning": ("planning.svg", "Planning time over the number of devices"),
}
LEGEND = """S0: rows split over the devices, S1: columns, R: a copy on each, P: a sum still to be taken. The limit is the same reads
and writes, or the same arithmetic, by plain torch. A ratio below 1: Weft is quicker. In one memory most movements copy
nothing; *separate memories* shows devices that share none, as GPUs do not."""
WHERE = {"transitions": "8 devices", "ops": "8 devices", "training": "8 devices", "processes": "4 processes"}
HONESTLY = """In one memory, which is what CPU devices of one process have, Weft stores a tensor whole and a layout is a label: most
movements copy nothing at all, and their time is that of the call, whatever the size. That is what a user gets, and it is
no miracle of copying. The columns *separate memories* show what Weft does where devices do not share memory, as GPUs do
not: there every device's shard is written, as JAX always does on host devices, and the limit is that of writing them."""


SUMMARY = {
    "transitions": ("S0→S1", "S0→R", "P→S0", "(dp, tp)→(tp, dp)"),
    "ops": ("x + y",),
    "training": ("GPT-2",),
    "processes": ("S(0) -> S(1)", TRAINED),
}
"""The figures of the README: for each section, how their names begin."""


def write(results: Results, page: Path, readme: Path) -> None:
    """Writes the page, and the summary between the markers of the README, if it has them."""
    page.write_text("\n".join(lines(results)) + "\n")
    begin, end = "<!-- benchmarks -->\n", "<!-- end of benchmarks -->"
    text = readme.read_text()
    if begin in text and end in text:
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        readme.write_text(before + begin + "\n".join(summary(results)) + "\n" + end + after)


def summary(results: Results) -> list[str]:
    """A few figures and a picture."""
    chosen = [
        figure
        for section, names in SUMMARY.items()
        for figure in results.of(section)
        if figure.name.startswith(names) and (section != "transitions" or figure.nbytes == LARGE)
    ]
    hidden = ("", "devices", "limit", "its limit", WHY)
    columns = {"": lambda f: f"{WHERE[f.section]}: {f.name.replace('->', '→')}"}
    columns |= {heading: make for heading, make in COLUMNS.items() if heading not in hidden}
    behind = [f"- {figure.name}: {why}." for figure in chosen if (why := reason(figure))]
    picture = "![Time over size for four transitions](docs/benchmarks/time_over_size.svg)"
    told = ["Where Weft is behind, and why:", "", *behind, ""] if behind else []
    return [*table(chosen, columns), "", LEGEND, "", *told, setting(results), "", picture]


def lines(results: Results) -> list[str]:
    """The whole page."""
    found = [
        "# Benchmarks",
        "",
        setting(results),
        "",
        "`make bench` measures all of this again on your machine (`make bench QUICK=1` in about two minutes); `weft bench`",
    ]
    found += [
        "measures the same without peers. Contenders take turns; a time is the median of the turns, with half the distance of",
        "the quartiles behind it. The figures as they were measured: [figures.json](benchmarks/figures.json).",
        "",
    ]
    found += [HONESTLY, "", "## What was aimed at", "", *goals_table(results), ""]
    found += bytes_lines(results)
    for section, (title, explained) in HEADINGS.items():
        figures = results.of(section)
        if not figures and section not in results.missing:
            continue
        found += [f"## {title}", "", explained, ""]
        if section in results.taken:
            found += [f"Measured {results.taken[section]}.", ""]
        if section in PICTURES:
            name, words = PICTURES[section]
            found += [f"![{words}](benchmarks/{name})", ""]
        if section in results.missing:
            found += [f"This section did not come to its end: `{results.missing[section]}`", ""]
        found += [*table(figures), ""] if figures else []
    return found[:-1]


def setting(results: Results) -> str:
    """On what it was measured."""
    at = results.environment
    versions = ", ".join(f"{name} {number}" for name, number in at["versions"].items())
    load = max(at["load_before"], at.get("load_after", 0))
    busy = (
        f" The machine was busy with other work (load {load:g} on {at['cores']} cores): only the ratios mean something."
        if at["load_before"] > at["cores"] * 0.75
        else ""
    )
    pace = " (a quick run)" if at.get("quick") else ""
    return f"Measured on {at['date']}{pace}: {at['processor']}, {at['cores']} cores, {at['memory_gib']} GiB, {at['system']}, Python {at['python']}, {versions}, Weft at {at['weft']}.{busy}"


def goals_table(results: Results) -> list[str]:
    """Goals, and what became of them."""
    rows = ["| goal | measured | |", "|---|---|---|"]
    for o in outcomes(results):
        verdict = "met" if o.met else "**not met**"
        if o.met and any(o.goal.startswith(words) for name in results.missing for words in BEGINNINGS.get(name, ())):
            verdict = "not all was measured"
        rows.append(f"| {o.goal} | {o.measured} | {verdict} |")
    return rows


BEGINNINGS = {
    "transitions": ("transitions",),
    "training": ("a training step",),
    "processes": ("4 processes",),
    "graphs": ("a graph", "recording"),
}
"""How the goals of a section begin."""


def bytes_lines(results: Results) -> list[str]:
    """Bytes over the lower bound, by planner."""
    if not results.bytes:
        return []
    rows = [
        "## Bytes over the lower bound",
        "",
        "What the busiest device receives, over the fewest bytes possible; each transition is in [planning](planning.md).",
        "",
    ]
    rows += [
        "![Bytes over the lower bound](benchmarks/bytes.svg)",
        "",
        "| planner | geometric mean | worst | transitions |",
        "|---|---|---|---|",
    ]
    rows += [
        f"| {who} | {said['mean']:.2f} | {said['worst']:.1f} | {said['cases']} |" for who, said in results.bytes.items()
    ]
    return [*rows, ""]


def cell(timing: Timing | None) -> str:
    """A median with its spread."""
    if timing is None:
        return ""
    spread = 50 * (timing.high - timing.low) / timing.median
    return duration(timing.median) + (f" ±{spread:.0f}%" if timing.high > timing.low else "")


def times(ratio: float | None) -> str:
    """A ratio in two digits."""
    return "" if ratio is None else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"


def peer(figure: Figure) -> str:
    """The quickest peer and its time."""
    return "" if figure.best_peer is None else f"{figure.best_peer}: {cell(figure.times[figure.best_peer])}"


WHY = "where behind, why"
COLUMNS: dict[str, Callable[[Figure], str]] = {
    "": lambda f: f.name,
    "devices": lambda f: f"{f.devices:,}" if f.section == "planning" else "",
    "size": lambda f: amount(f.nbytes),
    "Weft": lambda f: cell(f.times.get(WEFT)),
    "limit": lambda f: cell(f.times.get(LIMIT)),
    "Weft / limit": lambda f: times(f.ratio(WEFT, LIMIT)),
    "best peer": peer,
    "Weft / peer": lambda f: times(f.ratio(WEFT, f.best_peer)),
    "separate memories": lambda f: cell(f.times.get(SEPARATE)),
    "its limit": lambda f: cell(f.times.get(SEPARATE_LIMIT)),
    "/ limit": lambda f: times(f.ratio(SEPARATE, SEPARATE_LIMIT)),
    "/ peer": lambda f: times(f.ratio(SEPARATE, f.best_peer)),
    WHY: reason,
}


def table(figures: list[Figure], columns: Mapping[str, Callable[[Figure], str]] = COLUMNS) -> list[str]:
    """A section's rows; columns that would be empty are left out."""
    cells = {heading: [make(figure) for figure in figures] for heading, make in columns.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    rows = [f"| {' | '.join(shown)} |", f"|{'---|' * len(shown)}"]
    return rows + [f"| {' | '.join(row)} |" for row in zip(*shown.values(), strict=True)]
