"""Figures become tables and pictures that say what was measured, also where Weft is behind."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from weft.inspect.timing import Timing
from weft.inspect.transitions import TRANSITIONS
from weft.runtime import machine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SETTING = {
    "date": "2026-01-01 00:00 UTC",
    "processor": "an abacus",
    "cores": 2,
    "memory_gib": 8,
    "system": "Linux",
    "python": "3.12.0",
    "versions": {"torch": "2.13.0"},
    "weft": "abcdef",
    "load_before": 0.1,
}


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """The benchmarks import each other as scripts do; afterwards their names are free again."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield
    machine.reset()  # forgets which devices were taken to have a memory each
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None) or ""
        if Path(origin).is_relative_to(BENCHMARKS):
            del sys.modules[name]


def timing(seconds: float) -> Timing:
    return Timing(seconds, 0.9 * seconds, 1.1 * seconds, 7)


def results():
    from figure import LIMIT, SEPARATE, SEPARATE_LIMIT, WEFT, Figure
    from results import Results

    def times(ours: float, **others: float) -> dict[str, Timing]:
        return {WEFT: timing(ours), **{name: timing(value) for name, value in others.items()}}

    figures = [
        Figure(
            "transitions",
            t.name,
            {
                **times(1e-5 * size),
                SEPARATE: timing(2e-3),
                LIMIT: timing(1e-3),
                SEPARATE_LIMIT: timing(1e-3),
                "JAX": timing(4e-3),
            },
            size << 20,
        )
        for size in (1, 64)
        for t in TRANSITIONS
    ]
    figures += [Figure("ops", "x + y", {**times(9e-5, DTensor=3e-5), LIMIT: timing(1e-5)}, 1024)]
    figures += [
        Figure("planning", name, times(1e-4 * devices), devices=devices)
        for devices in (8, 4096)
        for name in ("a new movement", "a new one, sums pending")
    ]
    bound = {"Weft": {"mean": 1.0, "worst": 1.0, "cases": 31}, "XLA": {"mean": 1.4, "worst": 8.0, "cases": 31}}
    return Results(SETTING, figures, bound, {"added_mib": 0.1}, {}, {"graphs": "no compiler"})


def test_results_come_back_as_they_were_written(tmp_path):
    from results import Results

    written = results()
    written.save(tmp_path / "figures.json")
    assert Results.read(tmp_path / "figures.json") == written


def test_the_page_shows_every_figure_and_where_weft_is_behind():
    from report import lines

    page = "\n".join(lines(results()))
    for transition in TRANSITIONS:
        assert f"| {transition.name} | 64 MiB | 640.0 µs ±10% | 1.0 ms ±10% | 0.64 | JAX: 4.0 ms ±10% | 0.16 |" in page
    assert (
        "| x + y | 1 KiB | 90.0 µs ±10% | 10.0 µs ±10% | 9 | DTensor: 30.0 µs ±10% | 3 | an op is dispatched in Python"
        in page
    )
    assert "an abacus, 2 cores, 8 GiB, Linux, Python 3.12.0, torch 2.13.0, Weft at abcdef" in page
    assert "This section did not come to its end: `no compiler`" in page


def test_goals_are_said_to_be_missed_where_they_are():
    from goals import outcomes

    said = {outcome.goal: outcome for outcome in outcomes(results())}
    assert said["transitions of 64 MiB and more: at most 1.5 × the limit"].met
    assert not said["`x + y` on 1 KiB: at most 3 × eight plain adds and 10 µs"].met
    assert not said["planning anew, 4,096 devices: at most 50 ms"].met
    assert said["planning anew, 8 devices: at most 1 ms"].measured == "800.0 µs"


def test_a_busy_machine_is_confessed():
    from report import setting

    busy = results()
    assert "busy" not in setting(busy)
    busy.environment = {**SETTING, "load_before": 7.5}
    assert "only the ratios mean something" in setting(busy)


def test_pictures_are_well_formed(tmp_path):
    from pictures import DRAWINGS, draw

    assert len(draw(results(), tmp_path)) == len(DRAWINGS)
    for name in DRAWINGS:
        ElementTree.parse(tmp_path / name)


def test_transitions_and_collectives_run_without_peers(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    from figure import LIMIT, SEPARATE, SEPARATE_LIMIT, WEFT
    from in_process import collective_figure, transition_figure
    from peers import jax_movements

    monkeypatch.setattr(jax_movements, "HAS_JAX", False)
    everyone = {WEFT, SEPARATE, LIMIT, SEPARATE_LIMIT}
    assert transition_figure(TRANSITIONS[0], 1 << 16, quick=True).times.keys() == everyone
    assert collective_figure("reduce_scatter", 1 << 16, quick=True).times.keys() == everyone


def test_what_another_process_does_is_timed_there():
    from contest import Elsewhere, contest

    assert contest({"far": Elsewhere(lambda: 42.0)}, seconds=0.001, least=2, most=3)["far"].median == 42.0


def test_max_is_asked_for_the_same_movement(monkeypatch):
    from in_process import DEVICES
    from peers import max_movements

    asked = []

    def answer(job):
        asked.append(job)
        return {"seconds": 0.5} if "run" in job else {"ready": True}

    monkeypatch.setattr(max_movements, "max_version", lambda: {"MAX": "1.0"})
    monkeypatch.setattr(max_movements, "answer", answer)
    (case,) = (t for t in TRANSITIONS if t.pending == ("tp",))
    (found,) = max_movements.transition(case, case.mesh(DEVICES), (64, 32)).values()
    assert found.seconds() == 0.5
    assert asked[0] == {
        "axes": {"dp": 2, "tp": 4},
        "source": (("dp",), ()),
        "target": (("dp",), ("tp",)),
        "pending": ("tp",),
        "shape": (64, 32),
    }


@pytest.mark.parametrize(
    "why", [({}, {"ready": True}), ({"MAX": "1.0"}, {"cannot": "it"})], ids=["not there", "cannot"]
)
def test_where_max_cannot_it_is_left_out(why, monkeypatch):
    from in_process import DEVICES
    from peers import max_movements

    version, said = why
    monkeypatch.setattr(max_movements, "max_version", lambda: version)
    monkeypatch.setattr(max_movements, "answer", lambda _: said)
    assert max_movements.transition(TRANSITIONS[0], TRANSITIONS[0].mesh(DEVICES), (64, 64)) == {}
    assert max_movements.collective("ppermute", TRANSITIONS[0].mesh(DEVICES), (64, 64)) == {}


def test_a_run_says_whether_max_takes_part(monkeypatch, tmp_path):
    import environment

    monkeypatch.setattr(environment, "MAX_ENVIRONMENT", tmp_path)
    assert environment.about_max(quick=True) == "MAX is left out of quick runs: its programs take minutes to compile."
    assert "it has not been installed" in environment.about_max(quick=False)
    (tmp_path / "why-not").write_text("WARNING: old\nERROR: No matching distribution found for max==26.7.0\n")
    assert environment.about_max(quick=False) == (
        "MAX is left out: ERROR: No matching distribution found for max==26.7.0"
    )


REASONS = {
    "a small movement": ("transitions", "S0→S1", 1 << 16, {"Weft": 2.0, "limit": 1.0}, "a call's fixed cost"),
    "a large sum": ("transitions", "P→R", 1 << 26, {"Weft": 2.0, "MAX compiled": 1.0}, "adds all of them in one pass"),
    "shards that a peer shares": (
        "transitions",
        "S0→R",
        1 << 26,
        {"Weft": 0.1, "Weft, separate memories": 8.0, "limit, separate memories": 7.0, "JAX device_put": 1.0},
        "separate: every device's shard is written",
    ),
    "an op": ("ops", "x + y", 1 << 10, {"Weft": 2.0, "DTensor": 1.0}, "an op is dispatched in Python"),
    "nothing": ("transitions", "S0→S1", 1 << 26, {"Weft": 1.0, "limit": 1.0, "JAX jit": 2.0}, ""),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_behind_says_why(name):
    from figure import Figure
    from reasons import reason

    section, what, size, times, words = REASONS[name]
    said = reason(Figure(section, what, {who: timing(seconds) for who, seconds in times.items()}, size))
    assert said.startswith(words) if not words or words.startswith("separate") else words in said
    assert bool(said) == bool(words)
