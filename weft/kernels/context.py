"""A participant of a collective: a device and the stream its work is ordered on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .program import INTERPRETED

__all__ = ["DeviceContext"]


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """A device and its stream (by default the one that is current there when a collective starts).

    Participants that share a GPU are served by one launch. `own_launch=True` gives one its own all the same, as if it
    stood on a GPU of its own; it then needs a stream that no other participant uses.

    >>> DeviceContext("cpu")
    DeviceContext(device=device(type='cpu'), stream=None, own_launch=False)
    """

    device: torch.device
    stream: torch.cuda.Stream | None = None
    own_launch: bool = False
    place: int = field(default=0, init=False, repr=False, compare=False)
    """The number of the GPU, -1 for the CPU; -2 where it has a stream or a launch of its own."""

    def __init__(
        self, device: torch.device | str | int, stream: torch.cuda.Stream | None = None, own_launch: bool = False
    ) -> None:
        object.__setattr__(self, "device", _placed(torch.device(device)))
        object.__setattr__(self, "stream", stream)
        object.__setattr__(self, "own_launch", own_launch)
        own = stream is not None or own_launch
        object.__setattr__(self, "place", -2 if own else -1 if self.device.type == "cpu" else self.device.index)
        if stream is not None and stream.device != self.device:
            raise ValueError(
                f"DeviceContext: the stream belongs to {stream.device}, but the device is {self.device}. "
                f"Give a stream made with torch.cuda.Stream({str(self.device)!r})."
            )

    def current_stream(self) -> torch.cuda.Stream | None:
        """The stream to work on now; None on the CPU.

        >>> DeviceContext("cpu").current_stream() is None
        True
        """
        if self.device.type == "cpu" or self.stream is not None:
            return self.stream
        return torch.cuda.current_stream(self.device)


def _placed(device: torch.device) -> torch.device:
    if device.type == "cpu":
        if not INTERPRETED:
            raise ValueError(
                "DeviceContext: Triton runs on CPU tensors only in its interpreter. "
                "Put the tensors on a GPU, or set TRITON_INTERPRET=1 before weft.kernels is imported."
            )
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"DeviceContext: a device is 'cuda:N' (or 'cpu' in the interpreter), but got {str(device)!r}.")
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device
