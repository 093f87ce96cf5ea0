"""Where in the user's program an operation was called."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from ..runtime.processes import current_call

__all__ = ["CallSite", "call_site"]

_INSIDE = tuple(str(Path(path).parent) + "/" for path in (Path(__file__).parent, torch.__file__))

_MADE = ("<frozen ", "<string>", "<eval_with_key>")
"""Code that Python and torch write; what is typed into a prompt or a notebook has names like these too."""

_HOOKS = ("__torch_function__", "__torch_dispatch__")


@dataclass(frozen=True, slots=True)
class CallSite:
    """A file and a line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def call_site() -> CallSite:
    """The innermost line outside Weft and torch, and outside what torch calls on the way of every op."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith((*_INSIDE, *_MADE)) or frame.f_code.co_name in _HOOKS
    ):
        frame = frame.f_back
    return CallSite(frame.f_code.co_filename, frame.f_lineno)


current_call.set_call_site(call_site)
