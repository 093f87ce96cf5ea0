"""Running a program: what its values are, what it refuses, its gradients, its layouts and what moved."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from types import CodeType

import torch

import weft
from weft.watch.comm_log import CommLog

from .program import Program, assigned, mentioned
from .words import Namespace, plain_words, spread_devices, weft_words, without_memory

Movement = tuple[str, tuple[str, ...], int, int, tuple[int, ...]]
After = Callable[[Namespace, str], None]
"""What is done after a line, to what it has bound or written to."""


@dataclass
class Outcome:
    """What came of a program."""

    names: dict[str, object] = field(default_factory=dict)
    """Its values, and what torch says about them."""
    errors: dict[int, Exception] = field(default_factory=dict)
    """What was raised, by line; those of gradients come after all lines."""
    wholes: dict[str, torch.Tensor] = field(default_factory=dict)
    """Its tensors as plain ones, of those that were looked at."""
    layouts: dict[str, str] = field(default_factory=dict)
    moved: list[Movement] = field(default_factory=list)
    done: int = 0

    @property
    def checks(self) -> int:
        """How many lines there are to compare: what they gave, or that they were refused."""
        return self.done + len(self.errors)


def tensors_in(name: str, value: object) -> dict[str, torch.Tensor]:
    """The tensors of a result, each under the expression that gives it."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    if isinstance(value, tuple | list):
        parts = (tensors_in(f"{name}[{i}]", part) for i, part in enumerate(value))
        return {key: tensor for part in parts for key, tensor in part.items()}
    return {}


def everything(space: Mapping[str, object]) -> dict[str, torch.Tensor]:
    named = (tensors_in(name, value) for name, value in space.items() if name.startswith("v") and ".grad" not in name)
    return {key: tensor for part in named for key, tensor in part.items()}


_OF_TWO = re.compile(r"[*/] (v\d|fresh)|F\.bilinear\(")
_WITH_MEAN = re.compile(r"torch\.(var|std)_mean\(")
_ALONG_NONE = re.compile(r"torch\.std_mean\([^,]+, \(\)\)|\.var\(\(\), ")
_SINGULAR = re.compile(r"linalg\.(svdvals|cond|matrix_rank)\(|'nuc'")
_DECOMPOSED = re.compile(r"linalg\.qr\((v\d+(?:\[\d+\])*)\)")
_LOG_OF_DETERMINANT = re.compile(r"logdet\((v\d+(?:\[\d+\])*) @ ")
_STRIDED = re.compile(r"= (v\d+(?:\[\d+\])*)\.as_strided\(")


def is_beyond(line: str, space: Mapping[str, object]) -> bool:
    """Whether a line has given what pages or plain torch leave open: docs/layout.md and decision 41 say why.

    It has divided by zeros of another tensor, or multiplied by its infinities; it has a mean of infinite numbers beside a
    variance, singular values of such, a gradient that torch divides by zero, or that of the factors of a singular matrix, or the
    logarithm of its determinant; or it shows with a gradient what its tensor does not.
    """
    name = assigned(line)
    if name is None:
        return False
    given = tensors_in(name, space.get(name)) or {
        key: x for key, x in everything(space).items() if key.startswith(f"{name}[")
    }
    if not given:
        return False
    if _WITH_MEAN.search(line) and not bool(given[f"{name}[1]"].isfinite().all()):
        return True
    if _ALONG_NONE.search(line) and any(t.requires_grad for t in given.values()):
        return True
    read = set(mentioned(line)) - {name}
    used = [t for key, t in everything(space).items() if key.partition("[")[0] in read]
    if _SINGULAR.search(line):
        return not all(bool(t.isfinite().all()) for t in used)
    if (decomposed := _DECOMPOSED.search(line)) and any(t.requires_grad for t in given.values()):
        return _is_singular(everything(space)[decomposed[1]])
    if squared := _LOG_OF_DETERMINANT.search(line):
        x = everything(space)[squared[1]].detach()
        return _is_singular(x @ x.mT + 1)
    if strided := _STRIDED.search(line):
        x = everything(space).get(strided[1])
        if x is None:
            return False
        if x.untyped_storage().nbytes() > x.numel() * x.itemsize and not x._is_view():
            return True  # memory that a kernel has to spare, as of `unique`, is nobody's
        if given[name].requires_grad:
            return not _shows_all(x, given[name])
    # What is infinite on the way may be finite in the end: 1 / (x * y + 3).
    return bool(_OF_TWO.search(line)) and any(bool(t.isinf().any()) for t in (*given.values(), *used))


def _is_singular(x: torch.Tensor) -> bool:
    """Whether the columns that an orthogonal factor is made of depend on each other: its gradient is divided by zero, or by noise."""
    columns = x.detach()[..., : min(x.shape[-2:])]
    if not columns.numel() or not bool(columns.isfinite().all()):
        return False
    values = torch.linalg.svdvals(columns)
    return bool((values[..., -1] <= 1e-8 * values[..., 0]).any())


def _shows_all(x: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether a tensor shows all places of its memory that a view of it does."""
    shown, seen = (_places(t) for t in (x, view))
    return seen <= shown


def _places(x: torch.Tensor) -> set[int]:
    """The places of memory that a tensor shows."""
    found = {x.storage_offset()}
    for size, stride in zip(x.shape, x.stride(), strict=True):
        found = {place + stride * index for place in found for index in range(size)}
    return found


def _weights(value: torch.Tensor) -> torch.Tensor:
    return torch.cos(torch.arange(value.numel(), dtype=torch.float64)).reshape(value.shape).to(value.dtype)


def _total(found: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    parts = [(value * _weights(value)).sum() for value in found.values() if value.requires_grad]
    parts = [part.real if part.is_complex() else part for part in parts]
    return sum(part.double() for part in parts) if parts else None  # type: ignore[return-value]


def differentiate(space: Namespace, order: int) -> dict[str, torch.Tensor]:
    """Gradients of a weighted sum of all values for all leaves, and of a weighted sum of these."""
    found = everything(space)
    leaves = {name: value for name, value in found.items() if value.requires_grad and value.is_leaf}
    gradients: dict[str, torch.Tensor] = {}
    outputs = found
    for turn in range(1, order + 1):
        total = _total(outputs)
        if total is None or not total.requires_grad or not leaves:
            break
        given = torch.autograd.grad(
            total, list(leaves.values()), create_graph=turn < order, allow_unused=True, retain_graph=True
        )
        outputs = {f"{name}.grad{turn}": g for name, g in zip(leaves, given, strict=True) if g is not None}
        gradients |= outputs
    return gradients


@lru_cache(maxsize=1 << 14)
def _compiled(line: str) -> CodeType:
    return compile(line, "<program>", "exec")


def run_lines(program: Program, space: Namespace, log: CommLog, after: Callable[[str], None] | None = None) -> Outcome:
    """Runs line by line; a line that is refused binds nothing, and ends the program if it was to write."""
    outcome = Outcome()
    for index, line in enumerate(program.lines):
        moved = len(log)
        try:
            exec(_compiled(line), space)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side has to refuse it too
            outcome.errors[index] = error
            del log.records[moved:]  # what moved for a call that was refused in the end is nobody's concern
            if assigned(line) is None:
                break
            continue
        outcome.done += 1
        if after is not None:
            after(line)
    return outcome


def _run(program: Program, space: Namespace, log: CommLog, after: Callable[[str], None] | None = None) -> Outcome:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = run_lines(program, space, log, after)
        try:
            gradients = differentiate(space, program.order) if program.order else {}
        except Exception as error:  # noqa: BLE001 - as above
            outcome.errors[len(program.lines)] = error
            gradients = {}
    for name, value in {**{k: v for k, v in space.items() if k.startswith("v")}, **gradients}.items():
        outcome.names |= tensors_in(name, value) or {name: value}
    return outcome


def run_plain(program: Program, after: After | None = None) -> Outcome:
    """What plain torch gives."""
    space = plain_words()
    return _run(program, space, CommLog(), (lambda line: after(space, line)) if after else None)


def run_plain_without_memory(program: Program) -> Outcome:
    """What plain torch says of a program whose tensors have no values."""
    return _run(replace(program, order=0), without_memory(plain_words()), CommLog())


def run_weft_without_memory(program: Program) -> Outcome:
    """What Weft says of it."""
    mesh = _mesh(tuple(program.mesh), tuple(program.mesh.values()), 1)
    with weft.comm_log() as log:
        return _run(replace(program, order=0), without_memory(weft_words(mesh)), log)


@lru_cache(maxsize=16)
def _mesh(names: tuple[str, ...], sizes: tuple[int, ...], processes: int) -> weft.DeviceMesh:
    return weft.DeviceMesh(spread_devices(prod(sizes), processes), sizes, names)


def run_weft(program: Program, processes: int = 1) -> Outcome:
    """What Weft gives in the memory that is set."""
    mesh = _mesh(tuple(program.mesh), tuple(program.mesh.values()), processes)
    with weft.comm_log() as log:
        outcome = _run(program, weft_words(mesh), log)
    outcome.moved = [(r.kind, r.axes, r.bytes_received, r.total_bytes, tuple(r.shape)) for r in log if r.total_bytes]
    outcome.layouts = {
        name: str(value.mapping.layout(value.dim()))
        for name, value in outcome.names.items()
        if isinstance(value, weft.Tensor)
    }
    return outcome
