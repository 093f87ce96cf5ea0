"""Lets one of three processes misbehave again and again, in the middle of each collective, and counts who noticed.

    python tests/multiprocess/repeat_faults.py --repetitions 50 --timeout 2

Kinds: the second process is killed, is stopped, raises an exception, makes another call, or is slow. After all but the
last, every survivor has to raise an error about it; nobody may hang.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.multiprocess.faulty import COLLECTIVES
from tests.multiprocess.launching import Ended, Processes

PROGRAM = str(Path(__file__).with_name("faulty.py"))
COUNT = 3
SIGNS = {
    "kill": "process 1 shows no sign of life",
    "stop": "process 1 shows no sign of life",
    "raise": "process 1 has failed: ValueError: there is no data",
    "other": "MismatchError",
    "slow": "",
}


@dataclass(frozen=True)
class Outcome:
    """What became of the processes that had to notice, or to go on."""

    label: str
    wanted: int
    right: int
    hung: int
    seconds: tuple[float, ...]
    """How long each was in the call in which it noticed."""
    words: str


def run(how: str, what: str, rows: int, timeout: float) -> Outcome:
    survivors = [0, 1, 2] if how in ("other", "slow") else [0, 2]
    but = [1] if how == "stop" else []
    with Processes([PROGRAM, how, what, str(rows)], COUNT, {"FAULTY_TIMEOUT": str(timeout)}) as started:
        ended = started.wait(timeout * 10 + 60, but=but)
    right = [each for each in survivors if is_right(how, ended[each])]
    seconds = tuple(float(ended[each].out.split("after ", 1)[1].split()[0]) for each in right if how != "slow")
    wrong = [
        f"process {each} ended with {ended[each].status}: {ended[each].out} {ended[each].err[-1500:]}"
        for each in (survivors if len(right) == len(survivors) else range(COUNT))
        if each not in right
    ]
    hung = sum(ended[each].status is None for each in survivors)
    return Outcome(f"{how} {what} {rows}", len(survivors), len(right), hung, seconds, "\n".join(wrong))


def is_right(how: str, ended: Ended) -> bool:
    if how == "slow":
        return ended.status == 0 and "done" in ended.out
    return ended.status == 3 and SIGNS[how] in ended.out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--timeout", type=float, default=2)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("kinds", nargs="*", default=list(SIGNS))
    asked = parser.parse_args()
    failures = 0
    print(f"{'kind':6} {'runs':>5} {'right':>11} {'hung':>5} {'median s':>9} {'most s':>7}")
    for how in asked.kinds or list(SIGNS):
        cases = islice(cycle(product(COLLECTIVES, (4, 8192))), asked.repetitions)
        start = time.monotonic()
        with ThreadPoolExecutor(asked.at_once) as pool:
            begun = [pool.submit(run, how, what, rows, asked.timeout) for what, rows in cases]
            outcomes = [each.result() for each in begun]
        wanted, right = sum(each.wanted for each in outcomes), sum(each.right for each in outcomes)
        hung = sum(each.hung for each in outcomes)
        seconds = [second for each in outcomes for second in each.seconds] or [0.0]
        print(
            f"{how:6} {len(outcomes):5} {right:5} of {wanted:3} {hung:4} {median(seconds):9.1f} {max(seconds):7.1f}"
            f"   in {time.monotonic() - start:.0f} s",
            flush=True,
        )
        for each in outcomes:
            if each.right != each.wanted:
                failures += 1
                print(f"  {each.label}:\n{each.words}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
