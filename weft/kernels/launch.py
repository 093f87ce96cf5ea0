"""Launching: one program for each group, at once and in step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import triton
from triton.compiler import CompiledKernel
from triton.knobs import runtime

from ..caches import BoundedCache
from .collective import collective
from .element import Element, word
from .group import GpuGroup
from .program import INTERPRETED
from .signals import MAX_PROGRAMS, SLOT_BITS
from .tiling import Tiling, tiling
from .work import KernelWork

__all__ = ["Launch", "launches", "on_stream", "prepared", "start"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, ready to go: the number of programs, their arguments and the options they are compiled with.

    >>> work = KernelWork("combine", sources=(256, 512), targets=(1024,), bounds=(0, 40))
    >>> made = launches([work], [GpuGroup((0, 1), torch.device("cpu"), None, 24)], signals=[0], reducing=None)
    >>> made[0].programs
    1
    """

    group: GpuGroup
    programs: int
    arguments: tuple[int, ...]
    options: tuple[tuple[str, object], ...]


def launches(
    works: Sequence[KernelWork],
    groups: Sequence[GpuGroup],
    signals: Sequence[int],
    reducing: tuple[str, Element] | None,
    meeting: bool = True,
    programs_at_once: int | None = None,
) -> list[Launch]:
    """Turn each group's work into its launch; groups that meet have equally many programs, all resident at once.

    >>> launches([], [], [], None)
    []
    """
    tilings = [tiling(work.mode, work.largest) for work in works]
    blocks = [-(-work.largest // tile.block) for work, tile in zip(works, tilings, strict=True)]
    programs = [work.jobs * count for work, count in zip(works, blocks, strict=True)]
    meeting = meeting and len(groups) > 1
    if meeting:
        at_once = _resident(groups) if programs_at_once is None else programs_at_once
        programs = [max(1, min(max(programs), at_once))] * len(groups)
    slots = sum(group.slot << (SLOT_BITS * i) for i, group in enumerate(groups))
    return [
        Launch(
            group=group,
            programs=programs[i],
            arguments=(
                *_filled(works[i].sources, 8),
                *_filled(works[i].targets, 8),
                *_filled(works[i].bounds, 9),
                *_filled(signals, 8),
                slots,
                i,
                blocks[i],
            ),
            options=_options(works[i], tilings[i], reducing, groups=len(groups) if meeting else 1),
        )
        for i, group in enumerate(groups)
    ]


def start(made: Sequence[Launch]) -> None:
    """Start every launch on its group's stream.

    >>> start([])
    """
    # All are loaded before one is started: loading may wait for the GPU, and there a started launch may wait for the
    # one being loaded.
    ready = [(launch, _loaded(launch)) for launch in made if launch.programs]
    for launch, run in ready:
        with on_stream(launch.group):
            run(launch.programs, launch.arguments)


def prepared(launch: Launch) -> Callable[[Sequence[int]], object]:
    """What runs a launch again with other arguments, on the stream that is current then.

    >>> work = KernelWork("combine", sources=(256, 512), targets=(1024,), bounds=(0, 40))
    >>> made = launches([work], [GpuGroup((0, 1), torch.device("cpu"), None, 24)], signals=[0], reducing=None)
    >>> callable(prepared(made[0]))
    True
    """
    run, programs = _loaded(launch), launch.programs
    return lambda arguments: run(programs, arguments)


def on_stream(group: GpuGroup) -> contextlib.AbstractContextManager[object]:
    """The context in which torch and Triton work on a group's stream.

    >>> with on_stream(GpuGroup((0,), torch.device("cpu"), None, 24)):
    ...     pass
    """
    if group.stream is None:
        return contextlib.nullcontext()
    return torch.cuda.stream(group.stream)


def _options(
    work: KernelWork, tile: Tiling, reducing: tuple[str, Element] | None, groups: int
) -> tuple[tuple[str, object], ...]:
    op, element = reducing or ("", word(work.unit))
    return (
        ("MODE", work.mode),
        ("OP", op),
        ("SOURCES", len(work.sources)),
        ("TARGETS", len(work.targets)),
        ("PARTS", len(work.bounds) - 1),
        ("ROWS", sum(row << (4 * i) for i, row in enumerate(work.rows))),
        ("JOBS", work.jobs),
        ("GROUPS", groups),
        ("TYPE", element.type),
        ("SUM", element.total),
        ("ITEM", element.size),
        ("UNIT", work.unit),
        ("BLOCK", tile.block // element.size),
        ("POLICY", tile.policy),
        ("num_warps", tile.warps),
        ("num_stages", 1),
    )


def _resident(groups: Sequence[GpuGroup]) -> int:
    """How many programs of every group run at the same time for sure: one for each multiprocessor, shared fairly."""
    if INTERPRETED:
        return MAX_PROGRAMS
    devices = [group.device for group in groups]
    return min(
        MAX_PROGRAMS,
        *(
            torch.cuda.get_device_properties(device).multi_processor_count // devices.count(device)
            for device in devices
        ),
    )


def _filled(values: Sequence[int], count: int) -> tuple[int, ...]:
    return (*values, *(0 for _ in range(count - len(values))))


Run = Callable[[int, Sequence[int]], object]
"""Runs so many programs with these arguments."""
_cache = BoundedCache[tuple[torch.device, tuple[tuple[str, object], ...]], Run](1024)


def _loaded(launch: Launch) -> Run:
    """What runs a launch, compiled and loaded on its device; asked for by what it was compiled with, not by Triton."""
    key = (launch.group.device, launch.options)
    run = _cache.get(key)
    if run is None:
        with on_stream(launch.group):
            run = _cache[key] = _interpreter(launch) if INTERPRETED else _compiled(launch)
    return run


def _interpreter(launch: Launch) -> Run:
    options = dict(launch.options)
    return lambda programs, arguments: collective[(programs,)](*arguments, **options)


def _compiled(launch: Launch) -> Run:
    options = dict(launch.options)
    kernel = collective.warmup(*launch.arguments, grid=(launch.programs,), **options)
    constants = [options[name] for name in collective.arg_names[len(launch.arguments) :]]
    kernel[(1, 1, 1)]  # loads it
    device, function = launch.group.device.index, kernel.function
    begin, between = _launcher(kernel)

    def run(programs: int, arguments: Sequence[int]) -> None:
        # What Triton does for every launch takes as long as the launch itself, and is for hooks that nobody has set.
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            kernel[(programs, 1, 1)](*arguments, *constants)
            return
        stream = torch._C._cuda_getCurrentRawStream(device)
        begin(programs, 1, 1, stream, function, *between, None, None, None, *arguments, *constants)

    return run


def _launcher(kernel: CompiledKernel) -> tuple[Callable[..., object], tuple[object, ...]]:
    """What launches a kernel, and what it takes between function and hooks: below Python, where that is known of Triton."""
    launcher, packed = kernel.run, kernel.packed_metadata
    if not triton.__version__.startswith("3.6.") or launcher.global_scratch_size or launcher.profile_scratch_size:
        return launcher, (packed,)
    return launcher.launch, (launcher.launch_cooperative_grid, launcher.launch_pdl, None, None, packed)
