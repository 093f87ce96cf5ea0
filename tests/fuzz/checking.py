"""Checking one program in one form: against plain torch, against itself with caches warm, against the other memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.runtime import machine

from .comparing import difference
from .program import Program
from .running import Outcome, run_plain, run_weft


@dataclass(frozen=True)
class Finding:
    """A program that does not do what it should, and how that shows."""

    kind: str
    text: str
    program: Program

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}\n{self.program!r}"


def differs(first: Outcome, second: Outcome, what: str) -> tuple[str, str] | None:
    """Whether two runs of a program lay things out, or moved them, in two ways."""
    for name, layout in first.layouts.items():
        if second.layouts.get(name) != layout:
            return f"layout, {what}", f"{name}: {layout}, then {second.layouts.get(name)}"
    if sorted(first.moved) != sorted(second.moved):  # those of gradients that do not wait for each other have no order
        extra = [m for m in second.moved if m not in first.moved]
        missing = [m for m in first.moved if m not in second.moved]
        return (
            f"log, {what}",
            f"only first: {missing[:4]}; only then: {extra[:4]}; {len(first.moved)} and {len(second.moved)} records",
        )
    return None


def check(program: Program, *, apart: bool, twice: bool = True, both: bool = True) -> Finding | None:
    """What is wrong with a program, if anything; `both`: its layouts and log are those of the other memory too."""
    machine.use_separate_memory(apart)
    return check_here(program, twice=twice) or (check_other(program, run_weft(program), apart=apart) if both else None)


def check_here(program: Program, *, twice: bool, keep: dict[int, Outcome] | None = None) -> Finding | None:
    """The same in the memory that is set."""
    expected = run_plain(program)
    found = run_weft(program)
    if keep is not None:
        keep[id(program)] = found
    wrong = difference(found, expected, program)
    if wrong is None and twice:
        wrong = differs(found, run_weft(program), "again")
    return Finding(*wrong, program) if wrong else None


def check_other(program: Program, found: Outcome, *, apart: bool) -> Finding | None:
    machine.use_separate_memory(not apart)
    try:
        wrong = differs(found, run_weft(program), "other memory")
    finally:
        machine.use_separate_memory(apart)
    return Finding(*wrong, program) if wrong else None


def check_all(programs: Iterable[Program], *, apart: bool) -> Iterable[tuple[Finding | None, int]]:
    """Checks many, with one change of memory; for each what is wrong, and how many lines ran."""
    machine.use_separate_memory(apart)
    kept: list[tuple[Program, Outcome]] = []
    for index, program in enumerate(programs):
        outcomes: dict[int, Outcome] = {}
        finding = check_here(program, twice=index % 2 == 0, keep=outcomes)
        outcome = outcomes[id(program)]
        outcome.names = {}
        yield finding, outcome.done + len(outcome.errors)
        if finding is None:
            kept.append((program, outcome))
    machine.use_separate_memory(not apart)
    for program, outcome in kept:
        wrong = differs(outcome, run_weft(program), "other memory")
        if wrong is not None:
            yield Finding(*wrong, program), 0
    machine.use_separate_memory(apart)
