"""Checking programs in one memory and in the other: against plain torch, against themselves with caches warm, with other numbers, with none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from weft.runtime import machine

from .comparing import difference, difference_without_memory, may_go_either_way
from .other_numbers import with_other_numbers
from .program import Program, assigned
from .running import Outcome, is_beyond, run_plain, run_plain_without_memory, run_weft, run_weft_without_memory

Wrong = tuple[str, str]
"""The kind of what is wrong, and its description."""
FORMS = ("apart", "one")


@dataclass(frozen=True)
class Finding:
    """A program that does not do what it should, and how that shows."""

    kind: str
    text: str
    program: Program

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}\n{self.program!r}"


@dataclass(frozen=True)
class Checked:
    """What came of a program in one form."""

    form: str
    finding: Finding | None
    checks: int
    """How many of its lines were compared with plain torch."""


def differs(first: Outcome, second: Outcome, what: str) -> Wrong | None:
    """Whether two runs of a program lay things out, or moved them, in two ways."""
    if may_go_either_way(first) or may_go_either_way(second):
        return None
    for name, layout in first.layouts.items():
        if second.layouts.get(name) != layout:
            return f"layout, {what}", f"{name}: {layout}, then {second.layouts.get(name)}"
    if sorted(first.moved) != sorted(second.moved):  # those of gradients that do not wait for each other have no order
        extra = list((Counter(second.moved) - Counter(first.moved)).elements())
        missing = list((Counter(first.moved) - Counter(second.moved)).elements())
        return (
            f"log, {what}",
            f"only first: {missing[:4]}; only then: {extra[:4]}; {len(first.moved)} and {len(second.moved)} records",
        )
    return None


def names_outside(expected: Outcome) -> bool:
    """Whether an index names what is not there: of one that is split, the process that has the fault says so, and others wait for it."""
    return any(text in str(error) for error in expected.errors.values() for text in _OUTSIDE)


_OUTSIDE = ("out of bounds", "out of range", "out of DATA bounds")
"""What torch says of indices."""


def differs_with_other_numbers(program: Program, processes: int = 1) -> tuple[Wrong | None, int]:
    """What is wrong when a program that ran is run with other numbers, and how many lines were compared."""
    other = with_other_numbers(program)
    expected = run_plain(other)
    if processes > 1 and names_outside(expected):
        return None, 0
    found = run_weft(other, processes)
    if any(is_beyond(line, expected.names) for line in other.lines):
        return None, 0
    wrong = difference(found, expected, other)
    return (f"{wrong[0]}, other numbers", wrong[1]) if wrong else None, found.checks


def differs_without_memory(program: Program, real: Outcome) -> Wrong | None:
    """What is wrong when a program is run with tensors that have no memory, up to the first line that plain torch refuses.

    `real`: what plain torch gives with memory. Of some ops it cannot tell what they give without values, and what it makes of
    tensors with memory beside others without is nobody's promise.
    """
    expected = run_plain_without_memory(program)
    held = {
        name.partition("[")[0] for name, x in expected.names.items() if isinstance(x, torch.Tensor) and not x.is_meta
    }
    odd = [index for index, line in enumerate(program.lines) if assigned(line) in held]
    stop = min((*expected.errors, *real.errors, *odd), default=len(program.lines))
    if stop < len(program.lines):
        program = replace(program, lines=program.lines[:stop])
        expected = run_plain_without_memory(program)
    return difference_without_memory(run_weft_without_memory(program), expected, real, program)


def check(program: Program, *, apart: bool, both: bool = True) -> Finding | None:
    """What is wrong with a program, if anything; `both`: its layouts and log are those of the other memory too."""
    machine.use_separate_memory(apart)
    found = run_weft(program)
    expected = run_plain(program)
    wrong = difference(found, expected, program) or differs(found, run_weft(program), "again")
    wrong = wrong or differs_with_other_numbers(program)[0] or differs_without_memory(program, expected)
    if both and wrong is None:
        machine.use_separate_memory(not apart)
        wrong = differs(found, run_weft(program), "other memory")
        machine.use_separate_memory(apart)
    return Finding(*wrong, program) if wrong else None


def check_all(programs: Sequence[Program], forms: Sequence[str] = FORMS) -> Iterator[Checked]:
    """Checks many in one form after the other; most again as well, with the same numbers, with others, or with none."""
    expected = [run_plain(program) for program in programs]
    before: dict[int, Outcome] = {}
    for form in forms:
        machine.use_separate_memory(form == "apart")
        for index, program in enumerate(programs):
            found = run_weft(program)
            checks, wrong = found.checks, difference(found, expected[index], program)
            if wrong is None and index in before:
                wrong = differs(before[index], found, "other memory")
            if wrong is None and index % 4 == 0:
                wrong = differs(found, run_weft(program), "again")
            elif wrong is None and index % 4 == 2:
                wrong, more = differs_with_other_numbers(program)
                checks += more
            elif wrong is None and index % 4 == 3:
                wrong = differs_without_memory(program, expected[index])
            found.names = {}
            if wrong is None:
                before[index] = found
            yield Checked(form, Finding(*wrong, program) if wrong else None, checks)
