"""Contests: contenders for the same work, interleaved in one process, medians with their spread."""

from weft.inspect.timing import Contender, Elsewhere, Timing, contest

__all__ = ["Contender", "Elsewhere", "Timing", "contest"]
