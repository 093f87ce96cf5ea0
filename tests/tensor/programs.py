"""Programs: lines of torch code that plain tensors and sharded ones both run, and what both of them see.

A program is text. The words in which it differs from plain torch (`given`, `moved`, `seen`, …) are in `program_words`;
`program_making` makes random ones.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass

import torch

from tests.on_gpu import on_host
from tests.tensor.program_words import ROUGH, PlainWords, WeftWords

__all__ = ["Program", "difference", "run_line", "shortened"]


@dataclass(frozen=True)
class Program:
    """A mesh's sizes and lines of code."""

    sizes: dict[str, int]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        """Lines that a person can paste: they run on sharded tensors, and fail where the program failed."""
        start = (
            "from tests.tensor.program_words import WeftWords",
            f"globals().update(WeftWords({self.sizes}).words())",
        )
        return "\n".join((*start, *self.lines))

    def run(self, words: PlainWords) -> list[object]:
        """What is seen, and the errors that lines raise."""
        names = words.words()
        with words.stack:
            for line in self.lines:
                run_line(line, names, words)
        return words.looked


MAY_RAISE = (
    "modified by an inplace operation",
    "a leaf Variable that requires grad",
    "is a view and",
    "backward through the graph a second time",
    "does not require grad",
)


def run_line(line: str, names: dict[str, object], words: PlainWords) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "An output with one or more elements was resized")
        try:
            exec(line, names)
        except RuntimeError as error:
            if not any(text in str(error) for text in MAY_RAISE):
                raise
            words.looked.append(f"{line}: {next(text for text in MAY_RAISE if text in str(error))}")


def difference(program: Program) -> str | None:
    """Where sharded tensors do not do as plain ones do."""
    with on_host():
        expected = program.run(PlainWords(program.sizes))
    words = WeftWords(program.sizes)
    try:
        found = program.run(words)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown with the program
        text = str(error).splitlines() or [""]
        return f"{type(error).__name__}: {text[0][:300]}"
    for k, (one, other) in enumerate(itertools.zip_longest(found, expected)):
        said = _unequal(one, other)
        if said:
            return f"the {k}. thing seen {said}"
    return None


def _unequal(found: object, expected: object) -> str | None:
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return None if found == expected and type(found) is type(expected) else f"is {found}, and should be {expected}"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"is {found.dtype} of {tuple(found.shape)}, and should be {expected.dtype} of {tuple(expected.shape)}"
    rough = ROUGH.get(expected.dtype, 0)
    if torch.allclose(found.cpu(), expected, rtol=rough, atol=rough, equal_nan=True):
        return None
    return f"is\n{found}\nand should be\n{expected}"


def _kind(program: Program) -> str:
    said = difference(program) or ""
    return "unequal" if said.startswith("the ") else said[:50]


def shortened(program: Program) -> Program:
    """The program without lines that the same kind of failure does not need."""
    kind = _kind(program)
    lines = list(program.lines)
    for k in range(len(lines) - 1, -1, -1):
        fewer = Program(program.sizes, tuple(lines[:k] + lines[k + 1 :]))
        try:
            if _kind(fewer) == kind:
                lines = list(fewer.lines)
        except Exception:  # noqa: BLE001 - a line that misses one that is gone
            continue
    return Program(program.sizes, tuple(lines))
