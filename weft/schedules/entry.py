"""`Entry`: one piece of work of a pipeline, the forward pass, the backward pass or the weight gradient of a microbatch in a stage."""

from __future__ import annotations

import re
from enum import Enum
from typing import final

from ..frozen import Frozen

__all__ = ["Entry", "Work"]


@final
class Work(Enum):
    """What is done with a microbatch in a stage.

    >>> [str(work) for work in Work]
    ['forward', 'backward', 'weight gradient']
    """

    FORWARD = "F"
    BACKWARD = "B"
    """The gradient of what came in, and of the weights too where no weight gradient is an entry of its own."""
    WEIGHT = "W"

    def __str__(self) -> str:
        return {"F": "forward", "B": "backward", "W": "weight gradient"}[self.value]

    def __repr__(self) -> str:
        return f"Work.{self.name}"


_TEXT = re.compile(r"([FBW])(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")


@final
class Entry(Frozen):
    """One piece of work: what, in which stage, with which microbatch. Written `F2.5`: forward, stage 2, microbatch 5.

    >>> Entry(Work.FORWARD, 2, 5), str(Entry.parse("B0.1"))
    (Entry(Work.FORWARD, 2, 5), 'B0.1')
    """

    __slots__ = __match_args__ = ("work", "stage", "microbatch")
    work: Work
    stage: int
    microbatch: int

    def __init__(self, work: Work, stage: int, microbatch: int) -> None:
        if not isinstance(work, Work):
            raise TypeError(f"the work of an entry is a Work, such as Work.FORWARD, but got {work!r}")
        for name, value in (("stage", stage), ("microbatch", microbatch)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"the {name} of an entry is a whole number from 0 on, but got {value!r}")
        self._set(work=work, stage=stage, microbatch=microbatch)

    @classmethod
    def parse(cls, text: str) -> Entry:
        """The entry that is written so.

        >>> Entry.parse("W3.0")
        Entry(Work.WEIGHT, 3, 0)
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"an entry is written F2.5, B2.5 or W2.5 (forward, backward, weight gradient; stage 2, microbatch 5), but got {text!r}"
            )
        return cls(Work(found[1]), int(found[2]), int(found[3]))

    def __str__(self) -> str:
        return f"{self.work.value}{self.stage}.{self.microbatch}"
