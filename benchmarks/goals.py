"""The goals that figures are held to, as rows: what was aimed at, what was measured, whether it is met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from figure import LIMIT, WEFT, Figure
from processes import REPEATED
from results import Results

from weft.inspect.bench import duration

LARGE = 64 << 20
TRAINED = "DP x TP training step"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A goal and what became of it."""

    goal: str
    measured: str
    met: bool


def worst(figures: Iterable[Figure], other: Callable[[Figure], str | None], most: float) -> tuple[str, bool] | None:
    """The largest ratio of Weft's time to another's, and where it was."""
    found = [(ratio, figure) for figure in figures if (ratio := figure.ratio(WEFT, other(figure))) is not None]
    if not found:
        return None
    ratio, figure = max(found, key=lambda pair: pair[0])
    where = "" if len(found) == 1 else f" at worst of {len(found)} ({figure.name})"
    return f"{ratio:.2g} ×{where}", ratio <= most


def at_most(figure: Figure | None, seconds: float) -> tuple[str, bool] | None:
    """A time, and whether it is short enough."""
    if figure is None:
        return None
    median = figure.times[WEFT].median
    return duration(median), median <= seconds


def limit(_: Figure) -> str:
    """The physical limit."""
    return LIMIT


def best_peer(figure: Figure) -> str | None:
    """The quickest peer."""
    return figure.best_peer


def jax(figure: Figure) -> str | None:
    """JAX's quickest way."""
    ways = {name: timing for name, timing in figure.peers.items() if name.startswith("JAX")}
    return min(ways, key=lambda name: ways[name].median, default=None)


def small_add(results: Results) -> tuple[str, bool] | None:
    """Three times eight plain adds, and 10 µs."""
    figure = results.find("ops", "x + y")
    if figure is None:
        return None
    ours, plain = figure.times[WEFT].median, figure.times[LIMIT].median
    return f"{duration(ours)}, allowed {duration(3 * plain + 1e-5)}", ours <= 3 * plain + 1e-5


def replicated(results: Results) -> tuple[str, bool] | None:
    """What replicating adds to the process."""
    if not results.memory:
        return None
    return f"{results.memory['added_mib']:g} MiB", results.memory["added_mib"] < 16


def outcomes(results: Results) -> Iterator[Outcome]:
    """Every goal whose figures were measured."""
    large = [f for f in results.of("transitions") if f.nbytes >= LARGE]
    block = [f for f in results.of("training") if f.name.startswith("GPT-2")]
    adamw = [f for f in results.of("training") if f.name.startswith("AdamW") and f.name.endswith("foreach")]
    over = results.of("processes")
    raw = [f for f in over if LIMIT in f.times and "DTensor" not in f.name and not f.name.startswith("S(0)")]
    small = [f for f in over if f.name.startswith(REPEATED)]
    several = [f for f in over if LIMIT not in f.times and f.name != TRAINED and f not in small]
    trained = [f for f in over if f.name == TRAINED]
    graphs = {kind: results.find("graphs", f"50 small ops: graph, {kind}") for kind in ("eager backend", "inductor")}
    rows: list[tuple[str, tuple[str, bool] | None]] = [
        ("transitions of 64 MiB and more: at most 1.5 × the limit", worst(large, limit, 1.5)),
        ("transitions of 64 MiB and more: at least 2 × as fast as JAX", worst(large, jax, 0.5)),
        ("replicating 1 GiB on 8 devices of one memory: adds less than 16 MiB", replicated(results)),
        ("`x + y` on 1 KiB: at most 3 × eight plain adds and 10 µs", small_add(results)),
        ("a known `shard`: at most 60 µs", at_most(results.find("ops", "shard, known"), 6e-5)),
        ("a known `all_reduce`: at most 60 µs", at_most(results.find("ops", "all_reduce, split"), 6e-5)),
        (
            "a known `all_reduce` of given contributions: at most 60 µs",
            at_most(results.find("ops", "all_reduce, pending"), 6e-5),
        ),
        ("a training step of a GPT-2 block: at most 1.3 × plain torch on one device", worst(block, limit, 1.3)),
        ("a training step of a GPT-2 block: at least 1.5 × as fast as JAX", worst(block, jax, 1 / 1.5)),
        ("AdamW, 64 small parameters in lists: at most 1.5 × plain torch on one device", worst(adamw, limit, 1.5)),
        ("4 processes, S(0)→S(1): at least 3 × as fast as DTensor", worst(over[:1], best_peer, 1 / 3)),
        ("4 processes, collectives: at most 1.1 × the raw call", worst(raw, limit, 1.1)),
        ("4 processes, ten transitions: at least as fast as DTensor", worst(several, best_peer, 1.0)),
        ("4 processes, known ops on 1 KiB: less than DTensor's", worst(small, best_peer, 1.0)),
        ("4 processes, a training step: no slower than DTensor", worst(trained, best_peer, 1.0)),
        (
            "planning anew, 8 devices: at most 1 ms",
            at_most(results.find("planning", "a new movement", devices=8), 1e-3),
        ),
        (
            "planning anew, 4,096 devices: at most 50 ms",
            at_most(results.find("planning", "a new movement", devices=4096), 5e-2),
        ),
        ("a known plan: a few microseconds", at_most(results.find("planning", "a known plan"), 5e-6)),
        ("one device's box of 65,536: microseconds", at_most(results.find("planning", "one device's box"), 5e-5)),
        (
            "a graph of 50 ops, eager backend: at least 2 × as fast as tensors",
            worst([f for f in [graphs["eager backend"]] if f], best_peer, 0.5),
        ),
        (
            "a graph of 50 ops, inductor: at least 5 × as fast as tensors",
            worst([f for f in [graphs["inductor"]] if f], best_peer, 0.2),
        ),
        ("recording and compiling 1,000 ops: under 2 s", at_most(results.find("graphs", "recording"), 2.0)),
    ]
    for goal, outcome in rows:
        if outcome is not None:
            yield Outcome(goal, *outcome)
