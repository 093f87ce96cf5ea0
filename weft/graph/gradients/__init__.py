"""Gradients: the backward graph, appended to the forward one. Of compute ops they are torch's, of movements our own."""

from weft.graph.gradients import movement  # noqa: F401 - fills the rows
from weft.graph.gradients.backward import grad

__all__ = ["grad"]
