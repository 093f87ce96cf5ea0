"""Copies to and from accelerators: from peer to peer where two can reach each other, through pinned memory where not.

Every device's work is ordered on its current stream. A copy between two is ordered on both, by events; the host waits
only where it reads the result, or where its own memory must not change yet. What several devices do that are one accelerator
in truth is done one after the other, or `side_by_side` where that is written down to be done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, final

import torch

from ...caches import cached

__all__ = ["Lanes", "address", "brought", "copy", "reaches", "settle", "side_by_side", "turns"]


@cached(4096)
def reaches(one: torch.device, other: torch.device) -> bool:
    """Whether one accelerator can read another's memory; two on the same hardware can.

    >>> reaches(torch.device("cuda", 0), torch.device("cuda", 0))
    True
    """
    return one == other or torch.cuda.can_device_access_peer(one, other)


def address(x: torch.Tensor) -> int:
    """Where a tensor's first element lies, for reading only.

    `data_ptr` is for writing: it parts a tensor from the copies that share its memory until one is written to.

    >>> x = torch.ones(3)
    >>> address(x[1:]) - address(x)
    4
    """
    storage: int = torch._C._data_address(x)  # type: ignore[attr-defined]
    return storage + int(x.storage_offset()) * x.itemsize


def copy(target: torch.Tensor, source: torch.Tensor, *, settled: bool = True) -> torch.Tensor:
    """Writes a tensor to another of its shape, wherever the two are.

    `settled=False`: host memory that is read may be read later, until `settle` is called.

    >>> copy(torch.empty(2), torch.ones(2))
    tensor([1., 1.])
    """
    there, here = target.device, source.device
    if there.type == "cuda" and here.type == "cpu":
        return _uploaded(target, source, settled)
    if there.type == here.type == "cuda" and not reaches(here, there):
        return _staged(target, source)
    return target.copy_(source)


def brought(source: torch.Tensor, device: torch.device, *, settled: bool = True) -> torch.Tensor:
    """A tensor on a device: itself if it is there.

    >>> x = torch.ones(2)
    >>> brought(x, torch.device("cpu")) is x
    True
    """
    if source.is_meta or source.device == device:
        return source
    if "cuda" not in (source.device.type, device.type):
        return source.to(device)
    return copy(torch.empty(source.shape, dtype=source.dtype, device=device), source, settled=settled)


def settle(source: torch.Tensor, devices: Iterable[torch.device]) -> None:
    """Waits until what copies read of a host tensor has been read.

    >>> settle(torch.ones(2), [torch.device("cpu")])
    """
    accelerators = {device for device in devices if device.type == "cuda"}
    if accelerators and source.device.type == "cpu" and source.is_pinned():
        for device in accelerators:
            torch.cuda.current_stream(device).synchronize()


def _uploaded(target: torch.Tensor, source: torch.Tensor, settled: bool) -> torch.Tensor:
    if not source.is_contiguous() and source.numel():
        # Torch would gather it in ordinary memory, and the driver copy that to pinned memory. One pass is enough.
        pinned = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
        return target.copy_(pinned.copy_(source), non_blocking=True)
    # From pinned memory, `non_blocking` lets many copies run one after the other while the host goes on.
    return target.copy_(source, non_blocking=not settled)


def _staged(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """From one accelerator to another that cannot reach it."""
    pinned = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
    pinned.copy_(source, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(source.device))
    torch.cuda.current_stream(target.device).wait_event(arrived)
    # Torch keeps the pinned memory until both copies are done.
    return target.copy_(pinned, non_blocking=True)


@final
class Lanes:
    """The stream of `side_by_side`, and those beside it. Not for each thread: backward passes run in threads of torch's own."""

    now: ClassVar[tuple[torch.cuda.Stream, list[torch.cuda.Stream]] | None] = None


@contextmanager
def side_by_side(stream: torch.cuda.Stream, beside: list[torch.cuda.Stream]) -> Iterator[None]:
    """Inside, what devices do in `turns` on this stream is done at once, by streams `beside` it, which are made as needed.

    Small kernels leave most of an accelerator idle, and a graph of them takes longer than they do, if each waits for the one
    before. The host has more to do; that is for what is recorded.
    """
    before = Lanes.now
    Lanes.now = stream, beside
    try:
        yield
    finally:
        Lanes.now = before


def turns(count: int) -> Iterable[int]:
    """The numbers of so many devices, for a loop that lets each of them do its part of one operation.

    No part may use what another has made.

    >>> list(turns(3))
    [0, 1, 2]
    """
    lanes = Lanes.now
    if lanes is None or count == 1 or torch.cuda.current_stream() != lanes[0]:
        return range(count)
    return _at_once(count, *lanes)


def _at_once(count: int, stream: torch.cuda.Stream, beside: list[torch.cuda.Stream]) -> Iterator[int]:
    # All wait for what came before, and what comes after for all: memory that one gives back is used again by all.
    before = stream.record_event()
    beside += [torch.cuda.Stream() for _ in range(count - 1 - len(beside))]
    begun: list[torch.cuda.Stream] = []
    try:
        yield 0
        for k, lane in enumerate(beside[: count - 1], 1):
            lane.wait_event(before)
            begun.append(lane)
            torch.cuda.set_stream(lane)
            yield k
    finally:
        torch.cuda.set_stream(stream)
        for lane in begun:
            stream.wait_stream(lane)
