"""Plans for many tensors at once: which part of which tensor goes where, and what all of it takes."""

from .passage import Passage
from .state_plan import StateEntry, StatePlan

__all__ = ["Passage", "StateEntry", "StatePlan"]
