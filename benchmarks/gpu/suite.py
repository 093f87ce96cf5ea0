"""Runs the in-process tests on one GPU that stands in for as many as they need.

    python benchmarks/gpu/suite.py                 # a few minutes
    python benchmarks/gpu/suite.py tests/gpu       # some of them

Each file runs in a process of its own, several at a time. Prints what failed and a table last; with $OUT set, writes
the logs to $OUT/suite.log and the table to $OUT/suite.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = [
    "tests/gpu",
    "tests/rules",
    "tests/tensor",
    "tests/nn",
    "tests/graph/test_cuda_capture.py",
    "tests/kernels/test_in_runtime.py",
]
NEEDS = {"tests/checkpoint": "safetensors"}


@dataclass(frozen=True)
class Outcome:
    """How the tests of one file went."""

    file: str
    counts: dict[str, int]
    seconds: float
    log: str

    @property
    def is_good(self) -> bool:
        return bool(self.counts.get("passed")) and not set(self.counts) - {"passed", "skipped", "warnings", "warning"}

    @property
    def wrongs(self) -> list[str]:
        """The lines that name what failed, and why."""
        return [line for line in self.log.splitlines() if line.startswith(("FAILED", "ERROR"))]


def run(file: Path, limit: float) -> Outcome:
    """Run one file's tests, for `limit` seconds at most."""
    begin = time.monotonic()
    name = str(file.relative_to(ROOT))
    command = [sys.executable, "-m", "pytest", name, "-q", "--tb=short", "-p", "no:cacheprovider", "--maxfail=40"]
    environment = os.environ | {"WEFT_VIRTUAL_ACCELERATORS": "64", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=max(1, limit), check=False
        )
        log, counts = done.stdout + done.stderr[-4000:], _counts(done.stdout)
        if not counts:
            counts = {f"exit {done.returncode}": 1}
    except subprocess.TimeoutExpired as late:
        log = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        counts = {"not ended": 1}
    print(f"{name}: {_said(counts)} in {time.monotonic() - begin:.0f} s", flush=True)
    return Outcome(name, counts, time.monotonic() - begin, log)


def _counts(output: str) -> dict[str, int]:
    """What pytest's last line says: `3 failed, 10 passed in 1.2s`."""
    last = next((line for line in reversed(output.splitlines()) if re.search(r" in [\d.]+s", line)), "")
    return {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", last.partition(" in ")[0])}


def _said(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def files(asked: list[str]) -> list[Path]:
    """The test files, those that take longest first."""
    folders = asked or [*FOLDERS, *(folder for folder, module in NEEDS.items() if find_spec(module))]
    found: list[Path] = []
    for folder in folders:
        path = ROOT / folder
        found += [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    return sorted(found, key=lambda path: -path.stat().st_size)


def report(outcomes: list[Outcome], seconds: float) -> dict[str, object]:
    """The sums of all files, and what failed."""
    sums: dict[str, int] = {}
    for outcome in outcomes:
        for word, count in outcome.counts.items():
            sums[word] = sums.get(word, 0) + count
    return {
        "machine": machine(),
        "seconds": round(seconds),
        "sums": sums,
        "files": {outcome.file: outcome.counts for outcome in sorted(outcomes, key=lambda o: o.file)},
        "failed": [line for outcome in outcomes for line in outcome.wrongs],
    }


def machine() -> dict[str, str]:
    """What the tests ran on."""
    code = "import torch; print(torch.__version__, torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no GPU', sep='|')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    version, _, device = done.stdout.strip().partition("|")
    return {"torch": version, "gpu": device}


def main() -> int:
    """Run everything; 1 if a test failed or did not end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="folders or files, instead of all")
    parser.add_argument("--limit", type=float, default=290, help="seconds for everything")
    parser.add_argument("--at-once", type=int, default=min(8, os.cpu_count() or 1), help="files that run at a time")
    asked = parser.parse_args()
    begin = time.monotonic()
    with ThreadPoolExecutor(asked.at_once) as pool:
        outcomes = list(pool.map(lambda file: run(file, asked.limit - (time.monotonic() - begin)), files(asked.paths)))
    found = report(outcomes, time.monotonic() - begin)
    if "OUT" in os.environ:
        out = Path(os.environ["OUT"])
        out.joinpath("suite.json").write_text(json.dumps(found, indent=1, ensure_ascii=False))
        logs = [f"##### {outcome.file}\n{outcome.log}" for outcome in outcomes if not outcome.is_good]
        out.joinpath("suite.log").write_text("\n".join(logs))
    for outcome in outcomes:
        if not outcome.is_good:
            print(f"\n##### {outcome.file}: {_said(outcome.counts)}")
            print("\n".join(outcome.wrongs[:40]) or outcome.log[-1500:])
    good = all(outcome.is_good for outcome in outcomes)
    print(json.dumps(found["machine"]), f"{round(time.monotonic() - begin)} s")
    print("all right:" if good else "NOT ALL RIGHT:", _said(found["sums"]))  # type: ignore[arg-type]
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
