"""The distributed transpose, where it changes the value: the group's devices, a dim of their own, trade places with parts of a dim."""

from __future__ import annotations

import torch

from ..caches import cached
from ..engine.moves.movement import move
from ..sharding.layout import Layout
from .combining import without_axes

__all__ = ["check_parts", "exchange_group", "exchanged", "transposed", "turned"]


@cached(4096)
def turned(layout: Layout, split: int, concat: int) -> Layout | None:
    """The layout after a tiled exchange that keeps the value: what split `concat` splits `split`. None if it is another."""
    axes = layout.splits[concat]
    if split == concat or not axes:
        return None
    return layout.with_split(concat, ()).with_split(split, (*layout.splits[split], *axes))


def exchange_group(layout: Layout, split: int, concat: int) -> tuple[int | None, tuple[str, ...]]:
    """The dim whose parts are exchanged, and the axes that split it; None when every device holds the whole."""
    for dim in (concat, split):
        if layout.splits[dim]:
            return dim, layout.splits[dim]
    dims = [dim for dim, axes in enumerate(layout.splits) if axes]
    if len(dims) > 1:
        raise ValueError(
            f"all_to_all cannot tell its group: neither dim {split} nor dim {concat} is split, and the layout {layout} splits several others. "
            "Gather all but one of them first"
        )
    return (dims[0], layout.splits[dims[0]]) if dims else (None, layout.mesh.axis_names)


def check_parts(x: torch.Tensor, layout: Layout, split: int, dim: int | None, count: int, tiled: bool) -> None:
    """Raises unless the split dim can be cut into one part for each device of the group."""
    own = layout.split_count(split)
    local = x.shape[split] // own
    if not tiled and local != count:
        raise ValueError(
            f"all_to_all with tiled=False needs dim {split} to have the size of the group, {count}, on each device, but it is {local}"
        )
    if local % count:
        raise ValueError(
            f"all_to_all cannot cut dim {split} (size {local} on each device) into {count} equal parts: pad it to {-(-local // count) * count} per device"
        )


def exchanged(
    x: torch.Tensor, layout: Layout, split: int, concat: int, dim: int | None, axes: tuple[str, ...]
) -> torch.Tensor:
    """The tiled exchange: the group's devices, a dim of their own, go before the concatenated dim."""
    y, concat_at = _with_group_dim(x, layout, concat, dim, axes)
    if split == concat:
        # (device, part, rest) of one dim: the parts become the devices.
        count = y.shape[concat_at]
        y = y.unflatten(concat_at + 1, (count, y.shape[concat_at + 1] // count)).transpose(concat_at, concat_at + 1)
        y = y.flatten(concat_at, concat_at + 2)
    else:
        y = y.flatten(concat_at, concat_at + 1)
    target = without_axes(layout, axes)
    return move(y, target.with_split(split, (*target.splits[split], *axes)), op="all_to_all")


def _with_group_dim(
    x: torch.Tensor, layout: Layout, before: int, dim: int | None, axes: tuple[str, ...]
) -> tuple[torch.Tensor, int]:
    """`x` with the group's devices as a dim of their own, standing before dim `before`."""
    count = layout.mesh.group_size(axes)
    if dim is None:
        return x.unsqueeze(before).expand(*x.shape[:before], count, *x.shape[before:]), before
    y = x.unflatten(dim, (count, x.shape[dim] // count))
    return y.movedim(dim, before), before


def transposed(
    x: torch.Tensor, layout: Layout, split: int, concat: int, dim: int | None, axes: tuple[str, ...]
) -> torch.Tensor:
    """The exchange with tiled=False: what was the group's dim stands at `concat`, and the split dim's index is the device."""
    count = layout.mesh.group_size(axes)
    if dim is None:
        raise ValueError(
            f"all_to_all with tiled=False needs a dim that is split, but the layout {layout} splits none: shard it first"
        )
    y = x.unflatten(dim, (count, x.shape[dim] // count))
    rest = without_axes(layout, axes)
    if split == dim:
        # The dim held (device, part): the parts become the devices, the devices the new dim's inner index.
        y = y.transpose(dim, dim + 1).movedim((dim, dim + 1), (concat, concat + 1)).flatten(concat, concat + 1)
        return move(y, rest.without_dim(dim).with_dim(concat, axes), op="all_to_all")
    # (…, device, local, …, outside, part, …): the part index goes where the device index was; the device index goes to
    # `concat`, and with it, before it, what axes outside of the group split.
    y = y.unflatten(split + (split > dim), (layout.split_count(split), count))
    at = {d: d + (d > dim) + (d > split) for d in range(x.dim())}
    order = [(at[d],) if d != dim else (at[split] + 1, at[d] + 1) for d in range(x.dim()) if d != split]
    order.insert(concat, (at[split], at[dim]))
    y = y.permute([each for group in order for each in group])
    for new, group in enumerate(order):
        y = y.flatten(new, new + 1) if len(group) > 1 else y
    return move(
        y, rest.with_split(dim, axes).without_dim(split).with_dim(concat, layout.splits[split]), op="all_to_all"
    )
