"""A collective in progress: its participants checked, its streams joined, its tensors made plain, its results put back."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ..context import DeviceContext
from ..element import Element
from ..group import GpuGroup, grouped
from ..launch import launches, on_stream, start
from ..signals import SIGNAL_BYTES
from ..work import KernelWork
from .known import KnownCall

__all__ = ["MAX_GPUS", "OpenCollective", "opened"]

MAX_GPUS = 8
"""The most participants that one collective has.

>>> MAX_GPUS
8
"""


@dataclass(slots=True)
class OpenCollective:
    """One collective in progress, between the moment its streams are joined and the moment they are released.

    >>> from weft.kernels.signals import signal_buffer
    >>> with opened("x", [DeviceContext("cpu")], [signal_buffer("cpu")], None, None) as call:
    ...     call.groups[0].members
    (0,)
    """

    name: str
    groups: tuple[GpuGroup, ...]
    signals: tuple[int, ...]
    known: KnownCall | None = None
    """Who is to remember what it takes, for calls like it."""
    _written: list[torch.Tensor] = field(default_factory=list)
    _unwritten: list[tuple[GpuGroup, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def group_of(self, participant: int) -> GpuGroup:
        """The group that a participant belongs to."""
        return next(group for group in self.groups if participant in group.members)

    def reads(self, tensors: Sequence[torch.Tensor], owners: Sequence[int]) -> list[torch.Tensor]:
        """The tensors, or plain copies of those that do not lie in one aligned piece."""
        found = []
        for tensor, owner in zip(tensors, owners, strict=True):
            if not _is_plain(tensor):
                with on_stream(self.group_of(owner)):
                    tensor = _copied(tensor)
            found.append(tensor)
        return found

    def writes(self, tensors: Sequence[torch.Tensor], *, shared: bool) -> list[torch.Tensor]:
        """The tensors, or plain stand-ins that are copied back at the end for those that do not lie in one piece."""
        found = []
        for i, tensor in enumerate(tensors):
            if not _is_plain(tensor):
                if torch._debug_has_internal_overlap(tensor) == 1:
                    raise ValueError(
                        f"{self.name}: elements of outputs[{i}] share memory (shape {tuple(tensor.shape)}, strides "
                        f"{tensor.stride()}), so it cannot be written. Give a tensor that was not expanded."
                    )
                group = self.group_of(i)
                with on_stream(group):
                    plain = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
                self._unwritten.append((group, tensor, plain))
                tensor = plain
            found.append(tensor)
        _check_apart(self.name, found, shared)
        self._written += tensors
        return found

    def clear(
        self,
        sources: Sequence[torch.Tensor],
        owners: Sequence[int],
        targets: Sequence[torch.Tensor],
        in_place: Callable[[int, int], int | None],
    ) -> list[torch.Tensor]:
        """The sources, or copies of those that would be overwritten before they are read.

        Source i and target j may overlap if `in_place(i, j)` bytes lie between their beginnings, for then each element
        is read before that very place is written; None if they may not overlap at all.
        """
        found = list(sources)
        written = [_span(target) for target in targets]
        for i, source in enumerate(sources):
            begin, end = _span(source)
            for j, (first, last) in enumerate(written):
                if begin < last and first < end and first - begin != in_place(i, j):
                    with on_stream(self.group_of(owners[i])):
                        found[i] = source.clone()
                    break
        return found

    def launch(self, works: Sequence[KernelWork], reducing: tuple[str, Element] | None = None) -> None:
        """Launch every group's work."""
        # In the interpreter a launch runs to its end before the next begins: there is nobody to wait for.
        meeting = self.groups[0].device.type != "cpu"
        made = launches(works, self.groups, self.signals, reducing, meeting)
        start(made)
        if self.known is not None:
            self.known.remember(made)

    def finish(self) -> None:
        """Copy stand-ins back, and tell autograd that the outputs have changed."""
        for group, tensor, plain in self._unwritten:
            with on_stream(group):
                tensor.copy_(plain)
        torch.autograd.graph.increment_version([tensor for tensor in self._written if not tensor.is_inference()])


@contextlib.contextmanager
def opened(
    name: str,
    contexts: Sequence[DeviceContext],
    signal_buffers: Sequence[torch.Tensor],
    target: str | None,
    trace_name: str | None,
    known: KnownCall | None = None,
) -> Iterator[OpenCollective]:
    """Open a call: check who takes part, order its streams before and after it, and name it in a profile.

    >>> with opened("x", [], [], None, None):
    ...     pass
    Traceback (most recent call last):
    ValueError: x: takes 1 to 8 devices, but dev_ctxs_input has 0.
    """
    if not 1 <= len(contexts) <= MAX_GPUS:
        raise ValueError(f"{name}: takes 1 to {MAX_GPUS} devices, but dev_ctxs_input has {len(contexts)}.")
    if len({context.device.type for context in contexts}) > 1:
        raise ValueError(f"{name}: devices are all GPUs or all CPUs, but got {[str(c.device) for c in contexts]}.")
    _check_signals(name, signal_buffers, contexts)
    streams = [context.current_stream() for context in contexts]
    groups = grouped(name, contexts, streams)
    label = trace_name if target is None else f"{trace_name or name} [{target}]"
    with contextlib.nullcontext() if label is None else torch.profiler.record_function(label), torch.no_grad():
        followers = _followers(groups, streams)
        for leader, follower in followers:
            leader.wait_stream(follower)
        signals = tuple(signal_buffers[group.leader].data_ptr() for group in groups)
        call = OpenCollective(name, groups, signals, known)
        yield call
        call.finish()
        for leader, follower in followers:
            follower.wait_stream(leader)


def _followers(
    groups: Sequence[GpuGroup], streams: Sequence[torch.cuda.Stream | None]
) -> list[tuple[torch.cuda.Stream, torch.cuda.Stream]]:
    """Each group's stream with every other stream of its members."""
    return [
        (group.stream, stream)
        for group in groups
        for stream in dict.fromkeys(streams[i] for i in group.members)
        if group.stream is not None and stream is not None and stream != group.stream
    ]


def _check_signals(name: str, buffers: Sequence[torch.Tensor], contexts: Sequence[DeviceContext]) -> None:
    made = "Make one for each device with weft.kernels.signal_buffer(device)."
    if len(buffers) != len(contexts):
        raise ValueError(f"{name}: {len(contexts)} devices need as many signal buffers, but got {len(buffers)}. {made}")
    for i, (buffer, context) in enumerate(zip(buffers, contexts, strict=True)):
        if buffer.device != context.device:
            raise ValueError(
                f"{name}: signal_buffers[{i}] is on {buffer.device}, but device {i} is {context.device}. {made}"
            )
        if buffer.dtype not in (torch.int32, torch.uint8) or not buffer.is_contiguous():
            raise ValueError(
                f"{name}: a signal buffer is a contiguous int32 or uint8 tensor, but signal_buffers[{i}] is {buffer.dtype} "
                f"with strides {buffer.stride()}. {made}"
            )
        if buffer.nbytes < SIGNAL_BYTES or buffer.data_ptr() % 4:
            raise ValueError(
                f"{name}: a signal buffer has at least {SIGNAL_BYTES} bytes at a multiple of 4, but signal_buffers[{i}] "
                f"has {buffer.nbytes} at {buffer.data_ptr()}. {made}"
            )
    places = [buffer.data_ptr() for buffer in buffers]
    if len(set(places)) < len(places):
        raise ValueError(f"{name}: each device needs a signal buffer of its own, but two are the same memory. {made}")


def _check_apart(name: str, outputs: Sequence[torch.Tensor], shared: bool) -> None:
    spans = sorted((*_span(output), i) for i, output in enumerate(outputs) if output.numel())
    for (begin, end, i), (first, last, j) in itertools.pairwise(spans):
        if first < end and not (shared and (begin, end) == (first, last)):
            rule = "be one and the same tensor or lie" if shared else "lie"
            raise ValueError(
                f"{name}: outputs[{i}] and outputs[{j}] overlap in memory. Outputs must {rule} apart: allocate them separately."
            )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + tensor.nbytes


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.data_ptr() % tensor.element_size() == 0
    )


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
