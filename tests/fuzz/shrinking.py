"""Cutting a program that fails down to a shortest one that fails in the same way."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from .program import Program, assigned, mentioned

_FRESH = re.compile(r"fresh\((\([^)]*\)), '(\w+)', (\d+), (\d+)")


def shrunk(
    program: Program, fails: Callable[[Program], bool], patience: float = math.inf, most: int = 10_000
) -> Program:
    """The shortest program found in `patience` seconds and `most` tries."""
    deadline, tries = time.monotonic() + patience, 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            tries += 1
            if tries > most or time.monotonic() > deadline:
                return program
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    lines = program.lines
    for size in (len(lines) // 2, len(lines) // 4, 1):
        if size:
            for start in range(len(lines) - size, -1, -size):
                yield from _without(program, start, size)
    for index, line in enumerate(lines):
        for name in sorted(set(mentioned(line)) - {assigned(line)}) if assigned(line) else ():
            rest = (re.sub(rf"\b{assigned(line)}\b", name, text) for text in lines[index + 1 :])
            yield replace(program, lines=(*lines[:index], *rest))
    for order in range(program.order):
        yield replace(program, order=order)
    if len(program.mesh) > 1:
        for axis in program.mesh:
            yield replace(program, mesh={name: size for name, size in program.mesh.items() if name != axis})
    for index, line in enumerate(lines):
        for text in _simpler(line):
            yield replace(program, lines=(*lines[:index], text, *lines[index + 1 :]))


def _without(program: Program, start: int, size: int) -> Iterator[Program]:
    dropped = {assigned(line) for line in program.lines[start : start + size]}
    kept = (*program.lines[:start], *program.lines[start + size :])
    if not any(name in dropped for line in kept for name in mentioned(line)):
        yield replace(program, lines=kept)


def _simpler(line: str) -> Iterator[str]:
    """The line with a tensor of it replicated, without a gradient, smaller, or of whole numbers."""
    if ", grad=True" in line:
        yield line.replace(", grad=True", "")
    for match in _FRESH.finditer(line):
        shape, dtype, seed, code = match.groups()
        sizes = [int(size) for size in re.findall(r"\d+", shape)]
        for at, size in enumerate(sizes):
            if size > 1:
                fewer = (*sizes[:at], size - 1, *sizes[at + 1 :])
                yield _swap(line, match, f"fresh({fewer}, {dtype!r}, {seed}, {code}")
        if code != _REPLICATED:
            yield _swap(line, match, f"fresh({shape}, {dtype!r}, {seed}, {_REPLICATED}")


def _swap(line: str, match: re.Match[str], text: str) -> str:
    return line[: match.start()] + text + line[match.end() :]


_REPLICATED = "68"
"""A number that stands for the replicated layout on the meshes of the generator."""
