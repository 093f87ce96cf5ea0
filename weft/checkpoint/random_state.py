"""The state of everything that draws random numbers: Python's, torch's and, where it is used, NumPy's generators."""

from __future__ import annotations

import random
import sys
from typing import cast

import torch

__all__ = ["random_state", "set_random_state"]


def random_state() -> dict[str, object]:
    """What `set_random_state` needs so that the same numbers follow; a state that can be saved.

    >>> kept = random_state()
    >>> first = torch.rand(3)
    >>> set_random_state(kept)
    >>> torch.equal(torch.rand(3), first)
    True
    """
    found: dict[str, object] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, *rest = numpy.get_state()
        found["numpy"] = [name, keys.tolist(), *rest]
    return found


def set_random_state(state: object) -> None:
    """Goes on where `random_state` was asked; generators that are not here now, or were not there then, stay as they are."""
    kept = cast("dict[str, object]", state)
    version, numbers, following = cast("tuple[int, tuple[int, ...], float | None]", kept["python"])
    random.setstate((version, tuple(numbers), following))
    torch.set_rng_state(cast(torch.Tensor, kept["torch"]))
    for i, each in enumerate(cast("list[torch.Tensor]", kept.get("cuda", []))[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(each, i)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and "numpy" in kept:
        numpy.set_state(tuple(cast("list[object]", kept["numpy"])))
