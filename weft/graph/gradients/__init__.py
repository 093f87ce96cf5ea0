"""Gradients: the backward graph, appended to the forward one."""

from weft.graph.gradients import elementwise, linear, movement, shaping  # noqa: F401 - fill the table
from weft.graph.gradients.backward import grad

__all__ = ["grad"]
