"""The dims of tensors as the factors they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .factors import Dims

__all__ = ["broadcast_into", "numbered", "one_each", "sizes_of"]


def numbered(rank: int) -> list[tuple[str, ...]]:
    """One factor for each dim.

    >>> numbered(2)
    [('d0',), ('d1',)]
    """
    return [(f"d{i}",) for i in range(rank)]


def sizes_of(shape: Iterable[int], letter: str = "d") -> dict[str, int]:
    """The sizes of the factors of numbered dims.

    >>> sizes_of((3, 4))
    {'d0': 3, 'd1': 4}
    """
    return {f"{letter}{i}": size for i, size in enumerate(shape)}


def one_each(factors: Iterable[str | None]) -> Dims:
    """Dims of one factor each; None: a dim without one.

    >>> one_each(["n", None])
    (('n',), ())
    """
    return tuple(() if factor is None else (factor,) for factor in factors)


def broadcast_into(shape: Sequence[int], target: Dims, sizes: Sequence[int]) -> Dims:
    """The dims of a tensor that is broadcast to a result with these dims and sizes.

    >>> broadcast_into((1, 4), (("m",), ("n",)), (3, 4))
    ((), ('n',))
    """
    ahead = len(target) - len(shape)
    return tuple(target[ahead + i] if size == sizes[ahead + i] else () for i, size in enumerate(shape))
