"""Laws of schedules: each is a value, runs, and waits no longer and keeps no more than it promises."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

import weft
from weft.errors import ScheduleError
from weft.schedules import NAMES, Entry, Schedule, Work, gpipe, interleaved, one_f_one_b, schedule, zb_h1, zb_v

ONE_STAGE = ("gpipe", "1f1b", "zb-h1")
SIZES = [(places, microbatches) for places in (1, 2, 3, 4, 8) for microbatches in (1, 4, 7, 16)]


def named(name: str, places: int, microbatches: int) -> Schedule | None:
    """The schedule of this name, unless it does not take such sizes."""
    if (name == "interleaved" and microbatches % places) or (name == "dualpipe-v" and microbatches < 2 * places):
        return None
    return schedule(name, places * (1 if name in ONE_STAGE else 2), places, microbatches)


MADE = [found for name in NAMES for places, count in SIZES if (found := named(name, places, count)) is not None]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_schedules_of_several_sizes(name: str) -> None:
    assert len([each for each in MADE if each.name == name]) >= 5


@pytest.mark.parametrize("made", MADE, ids=lambda made: f"{made.name}-{made.places}-{made.microbatches}")
def test_a_schedule_is_a_value(made: Schedule) -> None:
    for other in (eval(repr(made)), pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert other == made
        assert hash(other) == hash(made)
    with pytest.raises(AttributeError, match="cannot change"):
        made.name = "another"


@pytest.mark.parametrize("made", MADE, ids=lambda made: f"{made.name}-{made.places}-{made.microbatches}")
def test_nothing_begins_before_what_it_needs(made: Schedule) -> None:
    spans = {span.entry: span for span in made.timeline(2, 3, 1.5, 0.5).spans}
    assert len(spans) == sum(map(len, made.rows))
    for entry, span in spans.items():
        if entry.work is Work.FORWARD and entry.stage:
            before = spans[Entry(Work.FORWARD, entry.stage - 1, entry.microbatch)]
            assert span.start >= before.end + 0.5 * (span.place != before.place)
        if entry.work is Work.BACKWARD and entry.stage + 1 < made.stages:
            before = spans[Entry(Work.BACKWARD, entry.stage + 1, entry.microbatch)]
            assert span.start >= before.end + 0.5 * (span.place != before.place)
        if entry.work is Work.WEIGHT:
            assert span.start >= spans[Entry(Work.BACKWARD, entry.stage, entry.microbatch)].end


@pytest.mark.parametrize(("places", "microbatches"), [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_waits_are_those_of_the_papers(places: int, microbatches: int) -> None:
    """In units of one kind of work, beyond the work itself."""
    waits = {"gpipe": 3, "1f1b": 3, "zb-h1": 1, "interleaved": 3, "zb-v": 1, "dualpipe-v": 1}
    for name, each in waits.items():
        made = named(name, places, microbatches)
        assert made is not None
        work = 3 * microbatches * made.stages // places
        assert made.timeline().length == work + each * (places - 1), name
        assert made.bubble == pytest.approx(each * (places - 1) / (work + each * (places - 1)))


def test_what_is_kept() -> None:
    assert gpipe(4, 8).live == (8, 8, 8, 8)
    assert one_f_one_b(4, 8).live == (4, 3, 2, 1)
    assert zb_h1(4, 8).live == (4, 4, 4, 4)
    assert zb_v(4, 8).live == (8, 8, 8, 8)  # of stages that are half as large
    assert interleaved(4, 8).live == (11, 9, 7, 5)


REFUSED = {
    "deadlock": (
        ["F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1"],
        "the schedule stands still: row 0 waits at B0.0 for B1.0, row 1 waits at F1.1 for F0.1. "
        "Put what is waited for before what waits",
    ),
    "order": (
        ["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.1 F1.1 B1.0"],
        "B1.1 stands before F1.1 in row 1, but needs it: put F1.1 first",
    ),
    "weight first": (["F0.0 W0.0 B0.0"], "W0.0 stands before B0.0 in row 0, but needs it: put B0.0 first"),
    "missing": (
        ["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1"],
        "B1.1 is missing: every stage does the forward and the backward pass of every microbatch, and there are 2",
    ),
    "twice": (["F0.0 B0.0 F0.0"], "F0.0 stands twice in row 0: every piece of work is done once"),
    "two places": (
        ["F0.0 B0.0", "F0.1 B0.1"],
        "stage 0 is in two places: F0.0 is in row 0, F0.1 in row 1. A stage has its weights in one place",
    ),
    "no such stage": (["F1.0 B1.0"], "stage 0 is in no row, but stage 1 is: number stages from 0 on"),
    "empty": (["F0.0 B0.0", ""], "row 1 is empty: every place has at least one stage"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_cannot_run_is_refused_by_entry(case: str) -> None:
    rows, words = REFUSED[case]
    with pytest.raises(ScheduleError) as caught:
        Schedule(rows)
    assert str(caught.value) == words


def test_too_much_memory_is_refused_by_entry() -> None:
    rows = one_f_one_b(3, 6).rows
    assert Schedule(rows, most_live=3).live == (3, 2, 1)
    with pytest.raises(ScheduleError) as caught:
        Schedule(rows, most_live=2)
    assert str(caught.value) == (
        "F0.2 in row 0 would be number 3 of the microbatches that are kept for their backward pass there, but most_live is 2: "
        "put backward passes (or weight gradients) before it, or allow more"
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Schedule("F0.0 B0.0"), "a schedule takes one row for each place, but got 'F0.0 B0.0'"),
        (lambda: Schedule(["F0 B0"]), r"an entry is written F2.5, B2.5 or W2.5 \(.*\), but got 'F0'"),
        (lambda: Schedule(["F0.0 B0.0"], most_live=0), "most_live is a whole number from 1 on, or None, but got 0"),
        (lambda: Entry(Work.FORWARD, -1, 0), "the stage of an entry is a whole number from 0 on, but got -1"),
        (lambda: interleaved(4, 6), "in groups of 4, one for each place, but 6 are no whole number of groups: use 8"),
        (lambda: schedule("dualpipe-v", 8, 4, 7), "takes at least 8 microbatches, but got 7"),
        (lambda: schedule("zb", 2, 2, 2), "there is no schedule 'zb': the known ones are 'gpipe', '1f1b'"),
        (lambda: schedule("1f1b", 4, 2, 2), "has one stage in each place, but got 4 stages and 2 places"),
        (lambda: schedule("zb-v", 3, 2, 2), "has two stages in each place, .*: cut the model into 4 stages"),
        (lambda: schedule("interleaved", 3, 2, 2), "equally many stages in each place, but got 3 stages and 2 places"),
        (lambda: gpipe(2, 2).timeline(forward=0), "forward is a time above 0, but got 0"),
        (lambda: gpipe(2, 2).timeline(transfer=-1), "transfer is a time from 0 on, but got -1"),
    ],
)
def test_what_is_no_schedule_is_refused(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=words):
        make()


def test_pictures_show_every_entry() -> None:
    made = zb_v(2, 3)
    picture = weft.visualize(made)
    drawn = picture.svg()
    assert drawn.count("<rect") == sum(map(len, made.rows))
    assert all(f"<title>{entry}:" in drawn for row in made.rows for entry in row)
    assert str(weft.visualize(zb_h1(2, 2))).splitlines()[1:] == [
        "0  F0 F1 ·  B0 W0 B1 W1",
        "1  ·  F0 B0 F1 B1 W0 W1",
    ]


def test_schedules_need_no_torch() -> None:
    code = "import sys, weft.schedules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
