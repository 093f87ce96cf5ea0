"""Replacing tensors of a module by sharded ones: a parameter becomes the new one, for whoever else holds it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Mapping

import torch

from ..tensor.tensor import Tensor

__all__ = ["became", "warn_of_optimizers"]


def became(old: torch.Tensor, new: Tensor) -> bool:
    """Makes a parameter what another is, the same object for optimizers that hold it; says whether that could be.

    It cannot be where something refers to the old one weakly, or a graph that is still alive has saved it.
    """
    if not isinstance(old, torch.nn.Parameter):
        return False
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:
        return False
    return True


def warn_of_optimizers(replaced: Mapping[str, torch.Tensor], stacklevel: int) -> None:
    """Warns of optimizers that hold parameters which are no longer those of the module."""
    held = {id(x) for optimizer in _optimizers() for group in optimizer.param_groups for x in group["params"]}
    names = [repr(name) for name, old in replaced.items() if id(old) in held]
    if names:
        warnings.warn(
            f"an optimizer holds the old {', '.join(names)}, which shard_module had to replace, since something else refers "
            "to them (an output that is still to be differentiated, or a weak reference): make the optimizer after "
            "shard_module, this one does not train them",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def _optimizers() -> Iterable[torch.optim.Optimizer]:
    """All that there are. Slow, and asked for only where a parameter had to be replaced."""
    for each in gc.get_objects():
        if issubclass(type(each), torch.optim.Optimizer):
            yield each
