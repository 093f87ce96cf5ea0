"""Checksums: XXH3, one for each block of a shard, so that a part can be checked without reading the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from xxhash import xxh3_64, xxh3_64_hexdigest

__all__ = ["BLOCK", "DIGITS", "BlockChecksums", "block_count", "checksum"]

BLOCK = 1 << 20
"""Bytes that have one checksum."""
DIGITS = 16
"""The length of a checksum as text."""


def checksum(data: bytes | bytearray | memoryview) -> str:
    """The checksum of some bytes, as text; other threads of the program go on meanwhile.

    >>> checksum(b"weft") == checksum(b"weft"), checksum(b"weft") == checksum(b"wefu")
    (True, False)
    """
    return xxh3_64_hexdigest(data)


def block_count(nbytes: int) -> int:
    """How many blocks so many bytes have.

    >>> block_count(0), block_count(BLOCK), block_count(BLOCK + 1)
    (0, 1, 2)
    """
    return -(-nbytes // BLOCK)


@final
class BlockChecksums:
    """The checksums of the blocks of a shard whose bytes come in parts of any size.

    >>> sums = BlockChecksums()
    >>> [len(part) for part in sums.through(memoryview(bytes(BLOCK + 2)))], len(sums.text()) // DIGITS
    ([1048576, 2], 2)
    """

    __slots__ = ("_current", "_filled", "_found")

    def __init__(self) -> None:
        self._found: list[str] = []
        self._current, self._filled = xxh3_64(), 0

    def through(self, data: memoryview) -> Iterator[memoryview]:
        """Adds bytes, and yields them part by part: each is in the processor's cache then."""
        at = 0
        while at < len(data):
            part = data[at : at + BLOCK - self._filled]
            self._current.update(part)
            self._filled += len(part)
            at += len(part)
            if self._filled == BLOCK:
                self._end_block()
            yield part

    def text(self) -> str:
        """The checksums of all blocks, one after another."""
        if self._filled:
            self._end_block()
        return "".join(self._found)

    def _end_block(self) -> None:
        self._found.append(self._current.hexdigest())
        self._current, self._filled = xxh3_64(), 0
