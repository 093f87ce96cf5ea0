"""The form of many processes: each makes the same programs, runs them together with the others, and compares.

Started by a launcher, it is one of them: `python tests/fuzz/processes.py SECONDS SEED MOST SPREAD`, or `known SPREAD`, for
what once went wrong. SPREAD says over how many of the processes meshes lie: with 1, all devices are the first one's, and the
others have none.
"""

from __future__ import annotations

import faulthandler
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

import weft
from tests.fuzz.checking import Finding, differs, differs_with_other_numbers, names_outside
from tests.fuzz.comparing import difference
from tests.fuzz.generator import make
from tests.fuzz.known import KNOWN
from tests.fuzz.other_numbers import with_other_numbers
from tests.fuzz.program import Program
from tests.fuzz.running import run_plain, run_weft
from tests.fuzz.shrinking import shrunk
from tests.multiprocess.launching import Processes

COUNT, EACH = 2, 8
SPREAD = int(sys.argv[-1]) if __name__ == "__main__" else COUNT
"""Over how many processes meshes lie."""


def _agreed(value: int) -> int:
    """The largest of what the processes bring."""
    told = torch.tensor(value)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return int(told)


def check(program: Program, *, again: bool = True, otherwise: bool = True) -> tuple[Finding | None, int]:
    """What is wrong with a program in this process, and how many lines were compared with plain torch.

    `again`: it is run once more; `otherwise`: with other numbers. What is asked for is done in any case: all processes
    have to make the same calls.
    """
    expected = run_plain(program)
    if names_outside(expected):
        return None, 0
    found = run_weft(program, SPREAD)
    checks, wrong = found.checks, difference(found, expected, program)
    if again:
        repeated = run_weft(program, SPREAD)
        wrong = wrong or differs(found, repeated, "again")
    if otherwise and is_for(with_other_numbers(program), SPREAD):
        changed, more = differs_with_other_numbers(program, SPREAD)
        wrong, checks = wrong or changed, checks + more
    return Finding(*wrong, program) if wrong else None, checks


def is_for(program: Program, spread: int) -> bool:
    """Whether a program can run where meshes lie over so many processes.

    Those without a device compile nothing, and cannot refuse what depends on values that others have.
    """
    return spread == COUNT or not (any("linearize" in line for line in program.lines) or run_plain(program).errors)


def _fails(program: Program) -> bool:
    return bool(_agreed(check(program)[0] is not None))


def _join() -> None:
    faulthandler.enable()
    weft.distributed.init(backend="gloo", timeout=60, devices_per_process=EACH)


def repeat_known() -> None:
    """Runs the programs that once went wrong."""
    _join()
    known = {what: program for what, program in KNOWN.items() if is_for(program, SPREAD)}
    for what, program in known.items():
        finding, _ = check(program, again=False, otherwise=False)
        if _agreed(finding is not None):
            print(f"--- {what}: {finding}", flush=True)
    print(f"{len(known)} programs", flush=True)
    weft.distributed.shutdown()


def work(seconds: float, seed: int, most: int) -> None:
    """What each process does; the first one says when it is time to stop."""
    _join()
    here = weft.distributed.process_index()
    start, checks, findings, programs = time.monotonic(), 0, 0, 0
    while not _agreed(here == 0 and (time.monotonic() - start > seconds or findings >= most)):
        # Said beforehand: a process that ends in the middle of a program cannot say it afterwards.
        print(f"{checks} checks before seed {seed + programs}", file=sys.stderr, flush=True)
        program = make(seed + programs)
        programs += 1
        if not is_for(program, SPREAD):
            continue
        finding, done = check(program, again=programs % 4 == 1, otherwise=programs % 4 == 3)
        checks += done
        if _agreed(finding is not None):
            findings += 1
            print(f"--- process {here}: {finding}", flush=True)
            if _agreed(finding is not None and "process 1" in finding.text):
                break  # they no longer make the same calls: nothing that follows would mean anything
            smallest = shrunk(program, _fails, most=200)  # by turns, not by the clock: all cut alike
            print(f"shortest: {check(smallest)[0]}", flush=True)
    print(f"{checks} checks before seed {seed + programs}", file=sys.stderr, flush=True)
    weft.distributed.shutdown()


def hunt(seconds: float, seed: int, most: int, spread: int = COUNT) -> tuple[str, int]:
    """What the processes say, and how many findings there were; processes that fail count as one, and others go on."""
    start, first, checks, findings, said = time.monotonic(), seed, 0, 0, []
    while (left := seconds - (time.monotonic() - start)) > 0 and findings < most:
        with Processes([__file__, str(left), str(seed), str(most - findings), str(spread)], COUNT) as started:
            ended = started.wait(left + 300)
        failed = [how for how in ended if how.status != 0]
        said += [how.out for how in ended]
        found = ended[0].out.count("--- process 0")
        findings += found + (not found and bool(failed))
        done, seed = max((int(a), int(b)) for how in ended for a, b in _PROGRESS.findall(how.err))
        said += [
            f"a process ended with {how.status} at seed {seed}: {_PROGRESS.sub('', how.err).strip()[-6000:]}"
            for how in failed
        ]
        checks, seed = checks + done, seed + bool(failed)
    said.append(f"{checks} op checks processes; seeds {first} to {seed - 1}; {findings} findings")
    return "\n".join(filter(None, said)), findings


_PROGRESS = re.compile(r"(\d+) checks before seed (\d+)\n")


if __name__ == "__main__" and sys.argv[1] == "known":
    repeat_known()
elif __name__ == "__main__":
    work(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
