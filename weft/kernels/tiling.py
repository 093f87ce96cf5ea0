"""How much one program does at a time, and with how many threads."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tiling", "tiling"]


@dataclass(frozen=True, slots=True)
class Tiling:
    """`block` bytes of every source or target at a time, by `warps` × 32 threads.

    >>> Tiling(block=8192, warps=8)
    Tiling(block=8192, warps=8, policy='')
    """

    block: int
    warps: int
    policy: str = ""

    def __post_init__(self) -> None:
        if self.block & (self.block - 1) or self.block < 64:
            raise ValueError(f"Tiling: block is a power of two of at least 64 bytes, but got {self.block}.")


# A thread moves 16 bytes at once, so a block of 16 * 32 * warps bytes is one access a thread. Small messages want many
# programs with one access each. Of the large ones, `multicast` and `combine` were swept on an H200 (docs/gpu.md): one
# access a thread was best there too. `exchange` and `scatter` were not.
_SMALL = Tiling(block=1024, warps=2)
_LARGE = {
    "multicast": Tiling(block=4096, warps=8),
    "exchange": Tiling(block=8192, warps=8),
    "combine": Tiling(block=4096, warps=8),
    "scatter": Tiling(block=4096, warps=8),
}
_SMALL_BYTES = 256 * 1024


def tiling(mode: str, largest: int) -> Tiling:
    """The tiling for jobs of up to `largest` bytes.

    >>> tiling("combine", 16 * 1024)
    Tiling(block=1024, warps=2, policy='')
    """
    return _SMALL if largest <= _SMALL_BYTES else _LARGE[mode]
