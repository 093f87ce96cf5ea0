"""All rules of Weft's own: importing this module fills the table in `registry`."""

from . import indexing, matmul, normalization, pointwise, reductions, slicing, views

__all__ = ["indexing", "matmul", "normalization", "pointwise", "reductions", "slicing", "views"]
