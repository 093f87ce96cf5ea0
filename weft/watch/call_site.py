"""Where in the user's program an operation was called."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import torch
from torch.fx import traceback

from ..caches import cached
from ..runtime.processes import current_call
from ..runtime.traced import is_traced

__all__ = ["CallSite", "call_site", "called_at"]

_INSIDE = (*(str(Path(path).parent) + "/" for path in (Path(__file__).parent, torch.__file__)), contextlib.__file__)

_MADE = ("<frozen ", "<string>", "<eval_with_key>")
"""Code that Python and torch write; what is typed into a prompt or a notebook has names like these too."""

_GENERATED = "/torchinductor_"
"""In the paths of what torch compiles."""

_HOOKS = ("__torch_function__", "__torch_dispatch__")


@dataclass(frozen=True, slots=True)
class CallSite:
    """A file and a line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def call_site() -> CallSite:
    """The innermost line outside Weft and torch, and outside what torch calls on the way of every op.

    While a program is traced, that is the line of the program that the tracer is at.
    """
    said = _elsewhere.site or (_traced_site() if is_traced() else None)
    if said is not None:
        return said
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_code):
        frame = frame.f_back
    return CallSite(frame.f_code.co_filename, frame.f_lineno)


def _is_inside(code: CodeType) -> bool:
    return _is_passed(code.co_filename) or code.co_name in _HOOKS


@cached(4096)
def _is_passed(file: str) -> bool:
    """Whether a file is Weft's or torch's, or none that a user wrote."""
    return file.startswith((*_INSIDE, *_MADE)) or _GENERATED in file


def _traced_site() -> CallSite | None:
    lines = re.findall(r'File "(.+)", line (\d+)', traceback.current_meta.get("stack_trace") or "")
    outside = [(file, line) for file, line in lines if not file.startswith((*_INSIDE, *_MADE))]
    return CallSite(outside[-1][0], int(outside[-1][1])) if outside else None


class _SaidSite(threading.local):
    site: CallSite | None = None


_elsewhere = _SaidSite()


@contextmanager
def called_at(site: CallSite) -> Iterator[None]:
    """Says that this thread works for a call that stands at a line of the user's program."""
    _elsewhere.site = site
    try:
        yield
    finally:
        _elsewhere.site = None


current_call.set_call_site(call_site)
