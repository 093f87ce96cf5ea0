"""What users hold: `Tensor`, creation, communication, transfer, dispatch."""

from ..rules import indexing, matmul, normalization, pointwise, reductions, views  # noqa: F401 - fill the table of rules
from ..runtime.host_memory import keep_freed_memory
from . import dispatch, handlers, text  # noqa: F401 - Tensor's ops and its print
from .tensor import Tensor

__all__ = ["Tensor"]

keep_freed_memory()
