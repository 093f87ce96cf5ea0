"""Gradients: the backward graph, appended to the forward one. Of compute ops they are torch's, of movements our own."""

from . import movement  # noqa: F401 - fills the rows
from .backward import grad

__all__ = ["grad"]
