"""`python -m tests.fuzz --form apart|one|processes --seconds N --seed S`: looks for wrong values, and prints shortest programs."""

from __future__ import annotations

import argparse
import time
from itertools import count

from . import processes
from .checking import Finding, check, check_all
from .generator import make
from .shrinking import shrunk

BATCH = 40


def hunt(form: str, seconds: float, seed: int, most: int, patience: float, skip: tuple[str, ...]) -> int:
    start, checks, programs, findings = time.monotonic(), 0, 0, 0
    apart = form == "apart"
    for first in count(seed, BATCH):
        for finding, done in check_all([make(s) for s in range(first, first + BATCH)], apart=apart):
            checks, programs = checks + done, programs + bool(done)
            if finding is None or finding.kind in skip:
                continue
            findings += 1
            print(f"--- {finding.kind}: {finding.text[:300]}", flush=True)
            print(shortest(finding, apart=apart, patience=patience), flush=True)
        if time.monotonic() - start > seconds or findings >= most:
            break
    print(
        f"{form}: {checks} op checks in {programs} programs, seeds {seed} to {first + BATCH - 1}; {findings} findings"
    )
    return findings


def shortest(finding: Finding, *, apart: bool, patience: float) -> Finding:
    """A shortest program with a finding of this kind."""
    both = "other memory" in finding.kind

    def fails(program: object) -> bool:
        found = check(program, apart=apart, both=both)  # type: ignore[arg-type]
        return found is not None and found.kind == finding.kind

    smallest = shrunk(finding.program, fails, patience)
    return check(smallest, apart=apart, both=both) or finding


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--form", choices=("apart", "one", "processes"), default="apart")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=20, help="stop after this many findings")
    parser.add_argument("--patience", type=float, default=20, help="seconds to shrink each finding")
    parser.add_argument("--skip", nargs="*", default=(), help="kinds of finding to leave out")
    asked = parser.parse_args()
    if asked.form == "processes":
        text, findings = processes.hunt(asked.seconds, asked.seed, asked.most)
        print(text)
        raise SystemExit(bool(findings))
    raise SystemExit(bool(hunt(asked.form, asked.seconds, asked.seed, asked.most, asked.patience, tuple(asked.skip))))


if __name__ == "__main__":
    main()
