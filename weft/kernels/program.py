"""Where Triton programs run: compiled for the GPU, or in Triton's interpreter on CPU tensors."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

__all__ = ["INTERPRETED", "program"]


def _interpreted() -> bool:
    asked = os.environ.get("TRITON_INTERPRET")
    if asked is None:
        return not torch.cuda.is_available()
    return asked.strip().lower() in {"1", "on", "true", "yes", "y"}


INTERPRETED: bool = _interpreted()
"""Whether programs run in the interpreter: what `TRITON_INTERPRET` says, else whether no GPU is there.

>>> INTERPRETED in (True, False)
True
"""


def program(*fixed: str) -> Callable[[Callable[..., object]], JITFunction | InterpretedFunction]:
    """Turn a function into a Triton program whose arguments named in `fixed` are never specialised on.

    >>> @program()
    ... def nothing():
    ...     pass
    >>> type(nothing).__name__ in ("JITFunction", "InterpretedFunction")
    True
    """

    def made(function: Callable[..., object]) -> JITFunction | InterpretedFunction:
        # Triton's own decorator asks the environment alone. Deciding here lets a machine without a GPU run every
        # program, and keeps a program and those that it calls of one kind.
        kind = InterpretedFunction if INTERPRETED else JITFunction
        return kind(function, do_not_specialize=list(fixed))

    return made
