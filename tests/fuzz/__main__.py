"""`python -m tests.fuzz --form both|apart|one|processes|guest --seconds N --seed S`: looks for wrong values, and prints shortest programs."""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count

from . import processes
from .checking import FORMS, Finding, check, check_all
from .generator import make
from .program import Program
from .shrinking import shrunk

BATCH = 200
"""How many programs run in one memory before it is the turn of the other, which forgets what was planned."""


def hunt(forms: Sequence[str], seconds: float, seed: int, most: int, patience: float, skip: Sequence[str]) -> int:
    start, checks, findings = time.monotonic(), Counter[str](), 0
    gc.collect()
    gc.freeze()  # modules are not looked through again for every cycle
    for first in count(seed, BATCH):
        for checked in check_all([make(s) for s in range(first, first + BATCH)], forms):
            checks[checked.form] += checked.checks
            finding = checked.finding
            if finding is None or finding.kind in skip:
                continue
            findings += 1
            print(f"--- {checked.form}, {finding.kind}: {finding.text[:300]}", flush=True)
            print(shortest(finding, apart=checked.form == "apart", patience=patience), flush=True)
        told = ", ".join(f"{checks[form]} op checks {form}" for form in forms)
        print(f"{told}; seeds {seed} to {first + BATCH - 1}; {findings} findings", flush=True)
        if time.monotonic() - start > seconds or findings >= most:
            return findings
    raise AssertionError  # seeds do not end


def shortest(finding: Finding, *, apart: bool, patience: float) -> Finding:
    """A shortest program with a finding of this kind."""
    both = "other memory" in finding.kind

    def fails(program: Program) -> bool:
        found = check(program, apart=apart, both=both)
        return found is not None and found.kind == finding.kind

    smallest = shrunk(finding.program, fails, patience)
    return check(smallest, apart=apart, both=both) or finding


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--form", choices=("both", *FORMS, "processes", "guest"), default="both")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=20, help="stop after this many findings")
    parser.add_argument("--patience", type=float, default=20, help="seconds to shrink each finding")
    parser.add_argument("--skip", nargs="*", default=(), help="kinds of finding to leave out")
    asked = parser.parse_args()
    if asked.form in ("processes", "guest"):
        # A guest is a process without a device of the mesh: it takes part in what others need of it, and in nothing else.
        spread = processes.COUNT if asked.form == "processes" else 1
        text, findings = processes.hunt(asked.seconds, asked.seed, asked.most, spread)
        print(text)
        raise SystemExit(bool(findings))
    forms = FORMS if asked.form == "both" else (asked.form,)
    raise SystemExit(bool(hunt(forms, asked.seconds, asked.seed, asked.most, asked.patience, asked.skip)))


if __name__ == "__main__":
    main()
