"""`KernelWork`: what one group's launch does, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KernelWork", "balanced", "shares"]


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Addresses to read and to write, where parts begin, and which parts are this group's; all in bytes.

    `mode` is a row of the table in `weft.kernels.collective`, `rows` maps its jobs to parts.

    >>> KernelWork("combine", sources=(256, 512), targets=(1024,), bounds=(0, 40)).largest
    40
    """

    mode: str
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    bounds: tuple[int, ...]
    rows: tuple[int, ...] = (0,)

    @property
    def jobs(self) -> int:
        """How many jobs there are.

        >>> KernelWork("exchange", (0, 64), (128, 192), (0, 8, 16), rows=(0, 1)).jobs
        4
        """
        counts = {
            "multicast": len(self.sources),
            "exchange": len(self.sources) * len(self.targets),
            "combine": 1,
            "scatter": len(self.targets),
        }
        return counts[self.mode]

    @property
    def largest(self) -> int:
        """The bytes of the largest part.

        >>> KernelWork("scatter", (0, 64), (128, 192), (0, 24, 40), rows=(0, 1)).largest
        24
        """
        return max(stop - start for start, stop in zip(self.bounds, self.bounds[1:], strict=False))

    @property
    def unit(self) -> int:
        """The power of two, 16 at most, that divides every address and every start.

        >>> (
        ...     KernelWork("combine", (256, 512), (1024,), (0, 40)).unit,
        ...     KernelWork("combine", (256, 516), (1024,), (0, 40)).unit,
        ... )
        (16, 4)
        """
        starts = self.bounds[:-1]
        if self.mode == "exchange":  # row k of a target begins after k parts
            starts = self.bounds
        bits = 16
        for place in (*self.sources, *self.targets, *starts):
            bits |= place
        return bits & -bits


def balanced(size: int, parts: int) -> tuple[int, ...]:
    """Where balanced parts of `size` begin and end: the first `size % parts` have one more.

    >>> balanced(10, 4)
    (0, 3, 6, 8, 10)
    """
    most, extra = divmod(size, parts)
    return tuple(i * most + min(i, extra) for i in range(parts + 1))


def shares(size: int, parts: int) -> tuple[int, ...]:
    """Where `parts` shares of `size` bytes begin and end if each but the last begins and ends at a multiple of 128.

    >>> shares(1000, 3)
    (0, 384, 768, 1000)
    """
    most = -(-size // (parts * 128)) * 128
    return tuple(min(i * most, size) for i in range(parts + 1))
