"""Calls with arguments that are unusual and legal, or just not: each line of `arguments/` stands for many programs.

    python -m tests.fuzz.templates                           every line, in a layout of each mesh
    python -m tests.fuzz.templates selections --layouts 6    one table, in more of them

A line is an expression, or several with `;;` between them. `G[5,7]` stands for a new tensor of this shape that needs a gradient,
other letters for other dtypes (`DTYPES`); with a number behind it, `G[5,7]#1`, it is the same tensor wherever it stands. `?` is a number
that says how something lies. What begins with `!` is run for what it writes, and `w = ...` gives what later parts call `w`.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import weft
from weft.runtime import machine

from .checking import Finding, differs
from .comparing import difference
from .program import Program
from .running import Outcome, run_plain, run_weft
from .words import layout_of

TABLES = Path(__file__).with_name("arguments")
MESHES: tuple[Mapping[str, int], ...] = ({"a": 2, "b": 2}, {"x": 3})
DTYPES = {
    "T": "float64",
    "G": "float64",
    "S": "float32",
    "H": "bfloat16",
    "C": "complex128",
    "CG": "complex128",
    "J": "int64",
    "I": "int32",
    "K": "int8",
    "U": "uint8",
    "B": "bool",
}
NEW = re.compile(rf"\b({'|'.join(DTYPES)})\[([\d, ]*)\](#\d+)?")
NAMED = re.compile(r"\bw(\d*)\b")


def templates(table: str) -> list[str]:
    """The lines of a table."""
    return [line for line in (TABLES / f"{table}.txt").read_text().splitlines() if line and not line.startswith("#")]


def tables() -> list[str]:
    """The names of all tables."""
    return sorted(path.stem for path in TABLES.glob("*.txt"))


def expanded(template: str, mesh: Mapping[str, int], seed: int) -> Program:
    """One of the programs that a template stands for."""
    return _Expansion(template, mesh, seed).program


class _Expansion:
    """A template on its way to a program."""

    def __init__(self, template: str, mesh: Mapping[str, int], seed: int) -> None:
        self._rng, self._mesh = random.Random(f"{template}{seed}{mesh}"), weft.make_mesh(mesh)
        self._made: list[str] = []
        self._again: dict[str, str] = {}
        self._count = 0
        body = [self._statement(part.strip()) for part in template.split(";;")]
        self.program = Program(dict(mesh), (*self._made, *body), 1)

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _statement(self, text: str) -> str:
        text = NEW.sub(self._tensor, text)
        text = re.sub(r"\?", lambda _: str(self._rng.randrange(1000)), text)
        text = NAMED.sub(r"v9\1", text)
        if text.startswith("!"):
            return text[1:].strip()
        return text if re.match(r"v9\d* = ", text) else f"{self._name()} = {text}"

    def _tensor(self, found: re.Match[str]) -> str:
        if found[3] and found[0] in self._again:
            return self._again[found[0]]
        shape = tuple(int(size) for size in found[2].split(",") if size.strip())
        asked = ", grad=True" if found[1].endswith("G") else ""
        name = self._name()
        numbers = f"{self._rng.randrange(999)}, {self._layout(len(shape))}"
        self._made.append(f"{name} = fresh({shape}, {DTYPES[found[1]]!r}, {numbers}{asked})")
        if found[3]:
            self._again[found[0]] = name
        return name

    def _layout(self, rank: int) -> int:
        """The number of a layout, mostly of one that splits something."""
        code = self._rng.randrange(1000)
        while rank and self._rng.random() > 0.25 and not any(layout_of(self._mesh, rank, code).splits):
            code = self._rng.randrange(1000)
        return code


def findings(program: Program) -> Iterator[Finding]:
    """What is wrong with a program, with memories apart, in one memory, or between them."""
    found: list[Outcome] = []
    for form in ("apart", "one"):
        machine.use_separate_memory(form == "apart")
        outcome = run_weft(program)
        wrong = difference(outcome, run_plain(program), program)
        if wrong is not None:
            yield Finding(f"{form}, {wrong[0]}", wrong[1], program)
            return
        found.append(outcome)
    wrong = differs(*found, "other memory")
    if wrong is not None:
        yield Finding(*wrong, program)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.templates")
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(tables())}; all of them if none is named")
    parser.add_argument("--layouts", type=int, default=1, help="programs of each template and mesh")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    wrong = 0
    for table in asked.tables or tables():
        lines, programs = templates(table), 0
        for template in lines:
            for mesh in MESHES:
                for seed in range(asked.seed, asked.seed + asked.layouts):
                    programs += 1
                    for finding in findings(expanded(template, mesh, seed)):
                        wrong += 1
                        print(f"--- {template}\n{finding}", flush=True)
        print(f"{table}: {len(lines)} templates, {programs} programs", flush=True)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
