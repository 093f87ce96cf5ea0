"""`ppermute`: shards change places. It is linear, and its transpose is the inverse permutation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from ...caches import cached
from ...runtime import run
from ...runtime.holding import Pieces
from ...runtime.run import Route
from ...runtime.strides import in_order, row_major
from ...runtime.traced import Size, hinted, is_open, settled
from ...sharding.geometry import Box, box, box_shape
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ...watch import comm_log, policy
from ...watch.notes import Note, tell
from ..memory import memory_of
from ..sharded import ShardedTensor, wrap
from ..views.copy_views import current
from .asynchrony import begun, is_issuing
from .movement import is_recorded, layout_of, move

__all__ = ["note_passing", "passed_on", "permute"]

Pairs = tuple[tuple[int, int], ...]


def permute(x: torch.Tensor, permutation: Iterable[tuple[int, int]]) -> torch.Tensor:
    """Device `dst` gets what device `src` holds, for each (src, dst); the others get zeros."""
    layout = layout_of(x)
    assert layout is not None
    pairs = _checked(permutation, layout.mesh.num_devices)
    _route(layout, _routed(layout, x.shape), pairs)
    if is_recorded(x):
        return _PermuteShards.apply(x, pairs)  # type: ignore[no-any-return, no-untyped-call]
    return _PermuteShards.forward(x, pairs)


class _PermuteShards(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        assert isinstance(x, ShardedTensor)
        _log(x, pairs, "ppermute", implicit=False)
        return _permuted(x, pairs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        layout = layout_of(inputs[0])
        assert layout is not None
        ctx.pairs, ctx.layout = inputs[1], layout.resolved

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return permute(move(grad, ctx.layout, op="ppermute backward"), ((dst, src) for src, dst in ctx.pairs)), None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _: None) -> torch.Tensor:
        return permute(move(tangent, ctx.layout, op="ppermute"), ctx.pairs)

    @staticmethod
    def vmap(
        info: object, in_dims: tuple[int | None, None], x: torch.Tensor, pairs: Pairs
    ) -> tuple[torch.Tensor, int | None]:
        return permute(x, pairs), in_dims[0]


def _permuted(x: ShardedTensor, pairs: Pairs) -> ShardedTensor:
    layout, shape, dtype = x._layout, tuple(x.shape), x.dtype
    route = _route(layout, _routed(layout, shape), pairs)
    pieces = current(x)
    strides = row_major(shape)

    def permuted(pieces: Pieces) -> Pieces:
        return tuple(in_order(piece, strides) for piece in run.permute(pieces, layout, shape, route, dtype))

    if is_issuing():
        return begun(x, layout, x._asked, strides, permuted)
    return wrap(permuted(pieces), layout, shape, asked=x._asked, dtype=dtype)


def passed_on(x: ShardedTensor, axes: tuple[str, ...], op: str) -> ShardedTensor:
    """Every device has the shard that the one before it along these axes had; nobody has asked for that.

    Where one memory has them all, what would move is noted, and they stay.
    """
    pairs = _to_the_next(x._layout.mesh, axes)
    _log(x, pairs, op, implicit=True)
    return _permuted(x, pairs) if memory_of(x._layout).pieces_are_shards else x


def note_passing(layout: Layout, shape: tuple[int, ...], dtype: torch.dtype, axes: tuple[str, ...], op: str) -> None:
    """Notes that the shards of such a tensor are passed on, where that need not be carried out."""
    tell(_PermutationNote(layout, dtype.itemsize, _to_the_next(layout.mesh, axes), op, implicit=True), shape)


@cached(1024)
def _to_the_next(mesh: DeviceMesh, axes: tuple[str, ...]) -> Pairs:
    groups = mesh.groups(axes)
    return tuple((group[k], group[(k + 1) % len(group)]) for group in groups for k in range(len(group)))


def _checked(permutation: Iterable[tuple[int, int]], count: int) -> Pairs:
    listed = list(permutation)
    for pair in listed:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"ppermute takes pairs (source, destination) of device indices, but got {pair!r}")
    pairs = tuple((src, dst) for src, dst in listed)
    for name, indices in (("source", [src for src, _ in pairs]), ("destination", [dst for _, dst in pairs])):
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int):
                raise TypeError(f"ppermute takes pairs of device indices, but got the {name} {index!r}")
            if not 0 <= index < count:
                raise ValueError(f"ppermute: {name} {index} is outside the mesh: it has devices 0 to {count - 1}")
        if len(set(indices)) != len(indices):
            twice = next(i for i in indices if indices.count(i) > 1)
            raise ValueError(
                f"ppermute: {name} {twice} stands twice in {list(pairs)!r}: every device sends and receives at most once"
            )
    return pairs


def _routed(layout: Layout, shape: Sequence[int]) -> Size:
    """Sizes to find a route for: all that split evenly have the same, so that a compiler may leave them open."""
    counts = [layout.split_count(dim) for dim in range(len(shape))]
    is_even = is_open(shape) and all(size > 0 and size % count == 0 for size, count in zip(shape, counts, strict=True))
    return hinted(shape) if is_even else settled(shape)


@cached(1024)
def _route(layout: Layout, shape: tuple[int, ...], pairs: Pairs) -> Route:
    """For each box (and contribution) that is received, the slot it comes from; replicas must agree."""
    mesh = layout.mesh
    source_of = {dst: src for src, dst in pairs}
    pending = [mesh.index_of[axis] for axis in layout.pending_axes]
    seen: dict[Box, tuple[int, Box | None]] = {}
    for slot in range(mesh.num_devices):
        where = box(layout, shape, slot)
        source = source_of.get(slot)
        origin = None if source is None else box(layout, shape, source)
        if origin is not None and box_shape(origin) != box_shape(where):
            raise ValueError(
                f"ppermute needs equal local shapes, but device {source} holds {box_shape(origin)} and device {slot} holds {box_shape(where)}: "
                "pad the tensor so that it splits evenly"
            )
        if pending and source is not None and any(mesh.coords(source)[i] != mesh.coords(slot)[i] for i in pending):
            raise ValueError(
                f"ppermute from device {source} to {slot} would mix contributions of the pending reduction over "
                f"{', '.join(map(repr, layout.pending_axes))}: all_reduce first"
            )
        if math.prod(box_shape(where)):
            first, known = seen.setdefault(where, (slot, origin))
            if known != origin:
                raise ValueError(
                    f"ppermute: devices {first} and {slot} hold replicas of one shard, but would receive different shards: "
                    "permute all replicas alike, or split the tensor over that axis"
                )
    return tuple(source_of.get(slot) for slot in range(mesh.num_devices))


def _log(x: ShardedTensor, pairs: Pairs, op: str, *, implicit: bool) -> None:
    if not comm_log.is_logging() and not (implicit and policy.watches()):
        return
    tell(_PermutationNote(x._layout, x.dtype.itemsize, pairs, op, implicit), tuple(x.shape))


@final
@dataclass(frozen=True, slots=True)
class _PermutationNote(Note):
    """A permutation, as it is logged and reported."""

    layout: Layout
    itemsize: int
    pairs: Pairs
    op: str
    implicit: bool

    def tell(self, sizes: tuple[int, ...]) -> None:
        layout, op = self.layout, self.op
        boxes = [box(layout, sizes, dst) for src, dst in self.pairs if src != dst]
        received = [math.prod(box_shape(each)) * self.itemsize for each in boxes]
        most = max(received, default=0)
        if self.implicit:
            policy.report_rearrangement(op, sizes, layout, layout, most, "permute")
        axes = layout.mesh.axis_names
        comm_log.log_step("permute", axes, layout, layout, sizes, most, sum(received), op, implicit=self.implicit)
