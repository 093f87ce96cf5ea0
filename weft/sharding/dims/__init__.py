"""Symbolic sizes: a `Dim` is a number, a name or arithmetic on names; a `Shape` is a tuple of them.

>>> from weft.sharding.dims import Dim, Shape
>>> Shape(["batch", 4]).numel() == Dim("batch") * 4
True
"""

from .dim import AlgebraicDim, Dim, DimLike, StaticDim, SymbolicDim, piece_size, whole_size
from .shape import Shape, ShapeLike

__all__ = [
    "AlgebraicDim",
    "Dim",
    "DimLike",
    "Shape",
    "ShapeLike",
    "StaticDim",
    "SymbolicDim",
    "piece_size",
    "whole_size",
]
