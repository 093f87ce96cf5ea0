"""Replicas that should be the same: whether they are, beyond rounding.

Devices of one process are compared element by element. Processes tell each other some sums of what their devices hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ....sharding.layout import Layout

__all__ = ["are_close", "differ", "named", "pairs", "sums"]

_SUMS = 61
"""How many sums of elements are told: every 61st is in the same one. A prime, so that rows in another order have other sums."""
_ODD = 3
"""How many elements are not a number, and infinite with either sign."""
_ROUNDS = 4
"""How many times what rounding may make of a sum is a difference."""


def pairs(layout: Layout, slots: Sequence[int]) -> list[tuple[int, int]]:
    """Each of these slots, and the first of them that should hold the same.

    >>> from weft.sharding.mesh import make_mesh
    >>> pairs(Layout(make_mesh({"a": 2, "b": 2}), (("a",),)), range(4))
    [(0, 1), (2, 3)]
    """
    mesh = layout.mesh
    kept = [i for i, axis in enumerate(mesh.axis_names) if axis not in layout.replicated_axes]
    first: dict[tuple[int, ...], int] = {}
    found = []
    for slot in slots:
        coords = mesh.coords(slot)
        one = first.setdefault(tuple(coords[k] for k in kept), slot)
        if one != slot:
            found.append((one, slot))
    return found


def sums(shard: torch.Tensor) -> torch.Tensor:
    """What is told of a shard: how large it is, how many odd numbers are in it, and sums of the others."""
    flat = torch.view_as_real(shard.resolve_conj()).flatten() if shard.is_complex() else shard.flatten()
    flat = flat.double()
    odd = torch.stack([flat.isnan().sum(), (flat == math.inf).sum(), (flat == -math.inf).sum()])
    flat = flat.nan_to_num(0.0, 0.0, 0.0)
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % _SUMS))
    return torch.cat(((flat.abs() + 1).norm().reshape(1), odd, padded.view(-1, _SUMS).sum(0)))


def differ(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether what is told of two shards differs by more than rounding.

    >>> x = torch.arange(6.0)
    >>> differ(sums(x), sums(x * (1 + 1e-7)), x.dtype), differ(sums(x), sums(x.flip(0)), x.dtype)
    (False, True)
    """
    sizes, apart = torch.stack((one, other))[:, 0], (one - other)[1:]
    return bool(apart[:_ODD].any() or (apart[_ODD:].abs() > _ROUNDS * _tolerance(dtype) * sizes.max()).any())


def _tolerance(dtype: torch.dtype) -> float:
    return math.sqrt(torch.finfo(dtype).eps) if dtype.is_floating_point or dtype.is_complex else 0.0


def are_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two shards are the same, beyond rounding."""
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        return torch.equal(a, b.to(a.device))
    tolerance = _tolerance(a.dtype)
    return torch.allclose(a, b.to(a.device), rtol=tolerance, atol=tolerance, equal_nan=True)


def named(layout: Layout, slot: int) -> str:
    """A device by its number and where it stands.

    >>> from weft.sharding.mesh import make_mesh
    >>> named(Layout(make_mesh({"a": 2}), ((),)), 1)
    'device 1 (a=1)'
    """
    mesh = layout.mesh
    return f"device {slot} ({', '.join(f'{axis}={at}' for axis, at in zip(mesh.axis_names, mesh.coords(slot), strict=True))})"
