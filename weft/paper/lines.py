"""Which line of the user's program an op belongs to: for a gradient, the line whose gradient it is."""

from __future__ import annotations

from typing import NamedTuple, final

import torch

from ..watch.call_site import call_site

__all__ = ["Line", "Lines"]


class Line(NamedTuple):
    """A line of a program, and whether it is its gradient that is computed.

    >>> print(Line("model.py:41", True))
    model.py:41 (backward)
    """

    where: str
    is_backward: bool

    def __str__(self) -> str:
        return f"{self.where} (backward)" if self.is_backward else self.where


@final
class Lines:
    """Lines by the numbers that torch gives the ops it will differentiate, so that backward passes find them again."""

    def __init__(self) -> None:
        self._by_number: dict[int, Line] = {}
        self._backward: dict[int, Line] = {}

    def here(self) -> Line:
        """The line that the op belongs to that is being run."""
        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            line = Line(str(call_site()), False)
            # What records this op has got its number already.
            self._by_number[torch._C._autograd._get_sequence_nr() - 1] = line
            return line
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        found = self._backward.get(number)
        if found is None:
            forward = self._by_number.get(number)
            found = Line(str(call_site()) if forward is None else forward.where, True)
            self._backward[number] = found
        return found
