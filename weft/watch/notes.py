"""Notes in compiled programs: what is told whoever watches, each time that the program runs.

A program that is traced while somebody watches has a node, `weft::note`, before what moves; one that is traced while nobody
does has none. `torch.compile` keeps both, and takes the one that is right.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from ..frozen import Written
from ..runtime.traced import Size, in_order_of_trace, is_traced, library, not_computed_anew, read
from . import comm_log, policy
from .call_site import CallSite, call_site, called_at
from .setting import Setting

__all__ = ["Note", "is_watched", "leave_note", "tell", "watchers"]


class Note(Written):
    """What is told of one movement, but for the sizes of the tensor."""

    __slots__ = ()

    @abstractmethod
    def tell(self, sizes: Size) -> None:
        """Tells the open logs, and the policy."""


def is_watched() -> bool:
    """Whether movements are logged, or reported."""
    return Setting.is_used and (comm_log.is_logging() or policy.watches())


def watchers() -> tuple[object, str]:
    """Who watches now: the open logs, which are another object with any other one, and the policy."""
    return comm_log.open_logs(), policy.policy_now()


def leave_note(note: Note, sizes: Sequence[int]) -> None:
    """Puts a note into the program that is traced, if somebody watches."""
    if is_watched():
        site = call_site()
        # With a tensor, if an empty one: inductor keeps ops that have none in no order with those before them.
        with not_computed_anew():
            torch.ops.weft.note(torch.empty(0), repr(note), list(sizes), site.file, site.line)


def tell(note: Note, sizes: Sequence[int]) -> None:
    """Tells whoever watches, or puts a note into the program that is traced."""
    if is_traced():
        leave_note(note, sizes)
    else:
        note.tell(tuple(sizes))


def _tell(_: torch.Tensor, note: str, sizes: list[int], file: str, line: int) -> None:
    if is_watched():
        value = read(note)
        assert isinstance(value, Note)
        with called_at(CallSite(file, line)):
            value.tell(tuple(sizes))


def _tell_nobody(_: torch.Tensor, note: str, sizes: list[int], file: str, line: int) -> None:
    """While a program is traced."""


library.define("note(Tensor nothing, str note, SymInt[] sizes, str file, int line) -> ()")
library.impl("note", _tell, "CompositeExplicitAutograd")
torch.library.register_fake("weft::note", _tell_nobody, lib=library)
in_order_of_trace("note")
