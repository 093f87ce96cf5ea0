"""Contests: contenders for the same work, interleaved in one process, medians with their spread."""

from weft.inspect.timing import Contender, Timing, contest

__all__ = ["Contender", "Timing", "contest"]
