"""All rules of Weft's own: importing this module fills the table in `registry`."""

from . import (
    attention,
    convolution,
    diagonals,
    indexing,
    joining,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    reductions,
    scattering,
    slicing,
    sorting,
    views,
)

__all__ = [
    "attention",
    "convolution",
    "diagonals",
    "indexing",
    "joining",
    "losses",
    "matmul",
    "normalization",
    "pointwise",
    "pooling",
    "reductions",
    "scattering",
    "slicing",
    "sorting",
    "views",
]
