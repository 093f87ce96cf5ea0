"""What the words of random programs mean, on plain tensors and on sharded ones."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

import weft
from weft.runtime.machine import residence
from weft.sharding import DeviceMesh, ReduceOp
from weft.sharding.geometry import box
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

__all__ = ["KINDS", "ROUGH", "PlainWords", "WeftWords", "overlaps"]

Shape = tuple[int, ...]
Splits = Sequence[str]
"""For each dim, the mesh axes that split it."""
Pending = dict[str, str] | None
Sizes = dict[str, int]

KINDS = {
    "SUM": lambda parts: parts.sum(0, dtype=parts.dtype),
    "AVG": lambda parts: parts.mean(0),
    "MAX": lambda parts: parts.amax(0),
    "MIN": lambda parts: parts.amin(0),
    "PROD": lambda parts: parts.prod(0, dtype=parts.dtype),
}
ROUGH = {torch.bfloat16: 0.1, torch.float32: 1e-3, torch.complex64: 1e-3, torch.float64: 1e-6, torch.complex128: 1e-6}


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers."""
    values = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed))
    if dtype is torch.bool:
        return values > 0
    return (values * (1 + 2j)).to(dtype) if dtype.is_complex else values.to(dtype)


def _whole(seed: int, shape: tuple[int, ...], dtype: torch.dtype, how: str) -> torch.Tensor:
    """Numbers that lie in memory one after the other, or otherwise."""
    if how == "turned":
        return numbers(seed, shape[::-1], dtype).permute(*range(len(shape) - 1, -1, -1))
    if how == "expanded":
        return numbers(seed, shape[1:], dtype).expand(shape)
    if how == "windows":
        return numbers(seed, (sum(shape) + 1,), dtype).as_strided(shape, (1,) * len(shape))
    if how == "part":
        return numbers(seed, tuple(size + 2 for size in shape), dtype)[(slice(1, -1),) * len(shape)]
    if how == "numpy":
        made = numbers(seed, shape, dtype)
        return torch.from_numpy(made.cpu().numpy().copy()).to(made.device)
    return numbers(seed, shape, dtype)


def _part(seed: int, shape: tuple[int, ...], dtype: torch.dtype, how: str, coords: tuple[int, ...]) -> torch.Tensor:
    """What one device contributes: numbers of its own, the same for all, or one number for all elements."""
    own = 0 if how == "same" else sum(c * 5**i for i, c in enumerate(coords))
    if how == "expanded":
        return numbers(seed + 31 * own, (1,) * len(shape), dtype).expand(shape)
    return numbers(seed + 31 * own, shape, dtype)


def overlaps(x: torch.Tensor) -> bool:
    places = torch.zeros(x.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        places += (torch.arange(size) * stride).view([-1 if d == dim else 1 for d in range(x.dim())])
    return places.unique().numel() != x.numel()


def _copied(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, where no two elements are one: in one memory, movements keep them."""
    if overlaps(x):
        return x.clone()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def _exported(x: torch.Tensor, how: str) -> torch.Tensor:
    """A tensor in the memory of another, which nothing else holds any more."""
    if how == "numpy":
        return torch.from_numpy(x.cpu().numpy()[...]).to(x.device)
    if how == "dlpack":
        return torch.from_dlpack(x)
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def _value(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone() if isinstance(x, torch.Tensor) else torch.as_tensor(x)


@dataclass
class PlainWords:
    """What the words of programs mean on plain tensors."""

    sizes: dict[str, int]
    looked: list[object] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    """What is switched on by `settings`."""

    def words(self) -> dict[str, object]:
        """The names that lines may use."""
        found: dict[str, object] = {"torch": torch, "numbers": numbers, "copy": copy, "pickle": pickle}
        found.update({str(dtype).removeprefix("torch."): dtype for dtype in (*ROUGH, torch.int64, torch.bool)})
        for name in WORDS:
            found[name] = getattr(self, name)
        return found

    def given(
        self,
        seed: int,
        shape: Shape,
        dtype: torch.dtype,
        splits: Splits,
        pending: Pending = None,
        how: str = "",
    ) -> torch.Tensor:
        whole = _whole(seed, shape, dtype, how)
        if how in ("expanded", "windows"):
            return whole.clone()
        return torch.empty_strided(whole.shape, whole.stride(), dtype=dtype).copy_(whole)

    def contributed(
        self, seed: int, shape: Shape, dtype: torch.dtype, splits: Splits, pending: dict[str, str], how: str
    ) -> torch.Tensor:
        (kind,) = set(pending.values())
        every = itertools.product(*(range(self.sizes[axis]) for axis in self.sizes if axis in pending))
        return KINDS[kind](torch.stack([_part(seed, shape, dtype, how, coords) for coords in every]))

    def moved(
        self, x: torch.Tensor, splits: Splits, pending: Pending = None, sizes: Sizes | None = None
    ) -> torch.Tensor:
        return _copied(x)

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        return _copied(x)

    def resolved(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        return _copied(x)

    def seen(self, x: object) -> None:
        self.looked.append(_value(x))

    def looked_at(self, x: torch.Tensor) -> None:
        pass

    def settings(self, name: str) -> None:
        pass

    def exported(self, x: torch.Tensor, how: str) -> torch.Tensor:
        return _exported(x.detach().clone(), how)

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def data_is(self, x: torch.Tensor, y: torch.Tensor) -> None:
        x.data = y

    def leaf(self, x: torch.Tensor) -> torch.Tensor:
        return x.requires_grad_()

    def mapped(self, x: torch.Tensor, splits: Splits) -> torch.Tensor:
        return x * 2 + 1


WORDS = tuple(
    name for name in vars(PlainWords) if not name.startswith("_") and name not in ("words", "sizes", "looked", "stack")
)


class WeftWords(PlainWords):
    """What they mean on sharded ones."""

    def mesh(self, sizes: Sizes | None = None) -> DeviceMesh:
        return weft.make_mesh(sizes or self.sizes)

    def layout(self, splits: Splits, pending: Pending, sizes: Sizes | None = None) -> Layout:
        kinds = {axis: ReduceOp[kind] for axis, kind in (pending or {}).items()}
        return Layout(self.mesh(sizes), [tuple(axes.split()) for axes in splits], kinds)

    def given(
        self,
        seed: int,
        shape: Shape,
        dtype: torch.dtype,
        splits: Splits,
        pending: Pending = None,
        how: str = "",
    ) -> torch.Tensor:
        layout = self.layout(splits, pending)
        return weft.shard(_whole(seed, shape, dtype, how), layout.mesh, named_mapping(layout))

    def contributed(
        self, seed: int, shape: Shape, dtype: torch.dtype, splits: Splits, pending: dict[str, str], how: str
    ) -> torch.Tensor:
        layout, shards = self.layout(splits, pending), []
        mesh, kept = layout.mesh, {}
        for slot in residence(mesh).owned:
            coords = tuple(mesh.device_coord(slot, axis) for axis in layout.pending_axes)
            if coords not in kept and not (how == "same" and kept):
                kept[coords] = _part(seed, shape, dtype, how, coords)
            part = kept[coords] if how != "same" else next(iter(kept.values()))
            shards.append(part[tuple(slice(a, b) for a, b in box(layout, shape, slot))] if layout.split_axes else part)
        return weft.from_local(shards, named_mapping(layout), shape=shape, dtype=dtype)

    def moved(
        self, x: torch.Tensor, splits: Splits, pending: Pending = None, sizes: Sizes | None = None
    ) -> torch.Tensor:
        given = x._layout.pending if isinstance(x, weft.Tensor) else ()
        kinds = set((pending or {}).values()) | {kind.name for _, kind in given}
        layout = self.layout(splits, pending if len(kinds) <= 1 else None, sizes)
        return weft.shard(x, layout.mesh, named_mapping(layout))

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        return weft.all_gather(x) if isinstance(x, weft.Tensor) else x.clone()

    def resolved(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        kinds = dict(x._layout.pending) if isinstance(x, weft.Tensor) else {}
        return weft.all_reduce(x, kinds[axis], reduce_axes=axis) if axis in kinds else x.clone()

    def seen(self, x: object) -> None:
        self.looked.append(_value(x.detach().full_tensor() if isinstance(x, weft.Tensor) else x))

    def looked_at(self, x: torch.Tensor) -> None:
        _ = x.local_shards if isinstance(x, weft.Tensor) else x, str(x)

    def settings(self, name: str) -> None:
        self.stack.close()
        if name == "log":
            self.stack.enter_context(weft.comm_log())
        elif name == "warn":
            self.stack.enter_context(weft.reshard_policy("warn"))

    def exported(self, x: torch.Tensor, how: str) -> torch.Tensor:
        return _exported(x.detach().full_tensor() if isinstance(x, weft.Tensor) else x.detach().clone(), how)

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        return x.full_tensor() if isinstance(x, weft.Tensor) else x.clone()

    def mapped(self, x: torch.Tensor, splits: Splits) -> torch.Tensor:
        mapping = named_mapping(self.layout(splits, None))
        return weft.local_map(lambda shard: shard * 2 + 1, mapping, mapping)(x)
