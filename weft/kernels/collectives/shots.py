"""One shot or two: how groups divide a result that every device gets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..group import GpuGroup
from ..work import KernelWork, shares

__all__ = ["ONE_SHOT_BYTES", "shots"]

ONE_SHOT_BYTES: int = 512 * 1024
"""Up to this size, several GPUs each make the whole result for themselves.

>>> ONE_SHOT_BYTES
524288
"""


def shots(
    mode: str,
    groups: Sequence[GpuGroup],
    sources: Sequence[int],
    targets: Sequence[int | None],
    size: int,
    *,
    in_place: bool,
) -> list[KernelWork]:
    """Each group's work for a result of `size` bytes that goes to every target that is not None.

    One shot: a group reads all and writes its own targets, the quickest for little data. Two: a group reads and
    finishes its share and writes it to everybody, so that each link carries each byte once. In place only two will do,
    since others may still be reading what a group writes.

    >>> groups = [GpuGroup((0,), None, None, 24), GpuGroup((1,), None, None, 25)]
    >>> [work.targets for work in shots("combine", groups, [0, 1024], [4096, 8192], 512, in_place=False)]
    [(4096,), (8192,)]
    >>> [work.targets for work in shots("combine", groups, [0, 1024], [4096, 8192], 512, in_place=True)]
    [(4096, 8192), (4352, 8448)]
    """
    one_shot = size <= ONE_SHOT_BYTES and not in_place
    if one_shot or len(groups) == 1:
        return [_whole(mode, sources, [targets[i] for i in group.members], size) for group in groups]
    bounds = shares(size, len(groups))
    return [
        _whole(
            mode,
            [source + start for source in sources],
            [None if target is None else target + start for target in targets],
            stop - start,
        )
        for start, stop in itertools.pairwise(bounds)
    ]


def _whole(mode: str, sources: Sequence[int], targets: Sequence[int | None], size: int) -> KernelWork:
    # Outputs that are one tensor are written once.
    unique = tuple(dict.fromkeys(target for target in targets if target is not None))
    return KernelWork(mode, tuple(sources), unique, (0, size if unique else 0))
