"""All benchmarks in one run: figures as JSON, a page with tables, and pictures.

    make bench            or: python benchmarks/run.py
    make bench QUICK=1    or: python benchmarks/run.py --quick

Each section runs in a process of its own, contenders in turns. `--only transitions` runs one section and keeps the
figures that earlier runs wrote of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

from environment import about_max, environment
from figure import Figure
from pictures import draw
from report import write
from results import Results
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from section import SECTIONS

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
FIGURES = DOCS / "benchmarks" / "figures.json"
LONGEST = 1800
"""Seconds after which a section is given up."""


def lines_of(name: str, quick: bool, errors: object) -> Iterator[dict]:
    """What a section prints, line by line."""
    command = [sys.executable, str(HERE / "section.py"), name, *(["--quick"] if quick else [])]
    variables = {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        code = running.wait(LONGEST)
    if code:
        raise subprocess.CalledProcessError(code, command)


def measure(name: str, quick: bool, progress: Progress, task: TaskID) -> tuple[list[Figure], str | None]:
    """The figures of a section, and why some are missing, if so."""
    found: list[Figure] = []
    with TemporaryFile("w+") as errors:
        try:
            for line in lines_of(name, quick, errors):
                if "total" in line:
                    progress.update(task, total=line["total"])
                    continue
                found.append(Figure.of(line))
                progress.update(task, advance=1, description=f"{name}: {found[-1].name}")
        except subprocess.SubprocessError:
            errors.seek(0)
            said = errors.read().strip().splitlines()
            return found, said[-1] if said else "it ended without a word"
    progress.update(task, description=name, completed=len(found))
    return found, None


def asked(script: str) -> dict[str, object]:
    """What a script says in its last line; nothing if it fails."""
    variables = {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(HERE / script)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def main() -> int:
    """Measure, write and draw; 1 if a section failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer turns: about two minutes")
    parser.add_argument(
        "--only", action="append", choices=[*SECTIONS, "bytes"], help="only this section; may be repeated"
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing: write page and pictures anew")
    options = parser.parse_args()
    console = Console(stderr=True)
    results = Results.read(FIGURES)
    wanted = [] if options.draw else options.only or [*SECTIONS, "bytes"]
    if wanted:
        results.environment = {**environment(), "quick": options.quick}
        console.print(about_max(options.quick))
    columns = (TextColumn("{task.description:44.44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name in wanted:
            task = progress.add_task(name, total=1 if name == "bytes" else None)
            if name == "bytes":
                # They depend on no machine: a quick run keeps what is known.
                if not (options.quick and results.bytes):
                    results.bytes = asked("bytes_over_bound.py") or results.bytes
                results.memory = asked("replication.py") or results.memory
                progress.update(task, completed=1)
                continue
            at = environment()
            results.taken[name] = f"{at['date']} at {at['weft']}, load {at['load_before']:g}"
            figures, missing = measure(name, options.quick, progress, task)
            results.replace(name, figures, missing)
            results.save(FIGURES)  # after each section, so that nothing is lost
    if wanted:
        results.environment["load_after"] = round(os.getloadavg()[0], 2)
    results.save(FIGURES)
    write(results, DOCS / "benchmarks.md", HERE.parent / "README.md")
    drawn = draw(results, FIGURES.parent)
    console.print(f"{FIGURES}\n{DOCS / 'benchmarks.md'}\n" + "\n".join(map(str, drawn)))
    for name, why in results.missing.items():
        console.print(f"[red]{name}[/red] is incomplete: {why}")
    return int(any(name in results.missing for name in wanted))


if __name__ == "__main__":
    sys.exit(main())
