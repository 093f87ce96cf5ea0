"""`SmallMessages`: small messages of a group, all of one size, in memory that is kept from call to call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch

__all__ = ["ALWAYS_FITS", "HEAD", "SmallMessages", "bytes_of", "small_message_size"]

HEAD = 8
ALWAYS_FITS = 4096 - HEAD
"""Bytes that always fit into a small message."""


def small_message_size(processes: int) -> int:
    """Bytes of a small message: all of a group have the same, so that those of different calls can be told apart.

    >>> small_message_size(4), small_message_size(64)
    (32768, 4096)
    """
    return 32768 if processes <= 16 else HEAD + ALWAYS_FITS


def bytes_of(flat: torch.Tensor) -> torch.Tensor:
    """The bytes of a flat tensor; a single element may have any stride, which torch minds here.

    >>> bytes_of(torch.tensor([258], dtype=torch.int16)).tolist()
    [2, 1]
    """
    return (flat if flat.stride(0) == 1 else flat.as_strided(flat.shape, (1,))).view(torch.uint8)


@final
class SmallMessages:
    """One small message to each process of a group and one from each; each begins with which call it belongs to."""

    def __init__(self, processes: int) -> None:
        with torch.inference_mode(False):  # memory of inference mode could not be written to later
            self.leaving = torch.zeros(processes, small_message_size(processes), dtype=torch.uint8)
            self.arriving = torch.zeros_like(self.leaving)
            self._heads_leaving = self.leaving.view(torch.int64)[:, 0]
            self._heads_arriving = self.arriving.view(torch.int64)[:, 0]
            self._inside_leaving = [message[HEAD:] for message in self.leaving]
            self._inside_arriving = [message[HEAD:] for message in self.arriving]

    def fill(self, call: int, outgoing: Mapping[int, torch.Tensor]) -> None:
        """Puts flat tensors into the messages to some processes."""
        self._heads_leaving.fill_(call)
        for k, x in outgoing.items():
            given = bytes_of(x)
            self._inside_leaving[k][: given.numel()].copy_(given)

    def calls(self) -> list[int]:
        """Which call each message that has arrived belongs to."""
        found: list[int] = self._heads_arriving.tolist()
        return found

    def empty(self, incoming: Mapping[int, torch.Tensor]) -> None:
        """Takes what has arrived out of the messages from some processes."""
        for k, x in incoming.items():
            into = bytes_of(x)
            into.copy_(self._inside_arriving[k][: into.numel()])
