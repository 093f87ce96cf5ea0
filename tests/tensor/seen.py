"""Which ops torch is seen to call on sharded tensors, and which of their calls the engine looks at."""

from __future__ import annotations

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.engine import dispatch


class Seen(TorchDispatchMode):
    """The ops on sharded tensors, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names += [str(func)] if weft.Tensor in types else []
        return func(*args, **(kwargs or {}))


def note_looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list of the calls that are looked at from now on: those that are not known."""
    seen: list[str] = []
    at_length = dispatch._at_length

    def noted(call, **how):
        seen.append(str(call))
        return at_length(call, **how)

    monkeypatch.setattr(dispatch, "_at_length", noted)
    return seen
