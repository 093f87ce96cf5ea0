"""Groups: the participants that one launch serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..caches import cached
from .context import DeviceContext
from .signals import ORDINALS

__all__ = ["GpuGroup", "grouped"]


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The participants on one GPU, the stream they are launched on, and their slot in the signal buffers.

    >>> GpuGroup((0, 1), torch.device("cpu"), None, 24).leader
    0
    """

    members: tuple[int, ...]
    device: torch.device
    stream: torch.cuda.Stream | None
    slot: int

    @property
    def leader(self) -> int:
        """The participant whose signal buffer and stream the group uses.

        >>> GpuGroup((3, 5), torch.device("cpu"), None, 24).leader
        3
        """
        return self.members[0]


def grouped(
    name: str, contexts: Sequence[DeviceContext], streams: Sequence[torch.cuda.Stream | None]
) -> tuple[GpuGroup, ...]:
    """Split participants into groups, one for each GPU (and for each that asks for its own launch).

    >>> [group.members for group in grouped("x", [DeviceContext("cpu")] * 2, [None, None])]
    [(0, 1)]
    """
    members: dict[tuple[torch.device, int | None], list[int]] = {}
    for i, context in enumerate(contexts):
        members.setdefault((context.device, i if context.own_launch else None), []).append(i)
    devices = [device for device, _ in members]
    alone = len(set(devices)) == len(devices)
    if not alone:
        _check_streams(name, streams, [found[0] for found in members.values()])
    elif len(devices) > 1:
        _check_peers(name, devices)
    return tuple(
        GpuGroup(
            members=tuple(found),
            device=device,
            stream=streams[found[0]],
            # GPUs count by ordinal, so that buffers serve any subset in any order.
            slot=(device.index or 0) if alone else ORDINALS + found[0],
        )
        for (device, _), found in members.items()
    )


def _check_streams(name: str, streams: Sequence[torch.cuda.Stream | None], leaders: Sequence[int]) -> None:
    seen: dict[torch.cuda.Stream, int] = {}
    for leader in leaders:
        stream = streams[leader]
        if stream is None:
            continue
        if stream in seen:
            raise ValueError(
                f"{name}: participants {seen[stream]} and {leader} have launches of their own on one stream, where the "
                f"first would wait for the second for ever. Give each its own stream, or drop own_launch=True."
            )
        seen[stream] = leader


def _check_peers(name: str, devices: Sequence[torch.device]) -> None:
    for here in devices:
        if (here.index or 0) >= ORDINALS:
            raise ValueError(
                f"{name}: {here} is beyond the {ORDINALS} GPUs of one host that signal buffers have room for."
            )
        for there in devices:
            if here != there:
                _open_peer(name, here.index, there.index)


@cached(4096)
def _open_peer(name: str, here: int, there: int) -> None:
    if not torch.cuda.can_device_access_peer(here, there):
        raise ValueError(
            f"{name}: cuda:{here} cannot reach the memory of cuda:{there}. The kernels need peer-to-peer access "
            f"(NVLink or PCIe): use GPUs that have it (nvidia-smi topo -p2p r), or move the data with copies."
        )
    # Torch opens the way between two GPUs when it first copies from one to the other.
    torch.zeros(1, device=f"cuda:{there}").copy_(torch.zeros(1, device=f"cuda:{here}"))
