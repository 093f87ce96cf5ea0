"""`AutoshardChoice`: layouts that were chosen for a model, why, and how far from the best they can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch

from ..planning.text import bytes_text, table, time_text
from ..sharding.mesh import DeviceMesh
from ..sharding.named import P
from ..tensor.movements import shard
from .shard_activations import shard_activations
from .shard_module import shard_module

__all__ = ["AutoshardChoice", "ChosenLayout"]


@final
@dataclass(frozen=True, slots=True)
class ChosenLayout:
    """The layout of parameters, of an activation or of an input, and why it was chosen.

    >>> ChosenLayout("0.weight", "parameter", P("tp"), (8, 4), 0.0, 16, otherwise=P("dp"), more=2e-6).why
    "P('dp') would take 2 µs more"
    """

    name: str
    kind: str
    """'parameter', 'activation' or 'input'."""
    spec: P
    shape: tuple[int, ...]
    seconds: float
    """What its movements take in a step, those of its gradient included."""
    nbytes: int
    """What a device holds of it, of parameters with gradients and optimizer states; all layers together."""
    otherwise: P | None = None
    """The next best layout, where it was looked for."""
    more: float = 0.0
    """What the step would take more in that layout."""

    @property
    def why(self) -> str:
        """What would be, were it laid out otherwise."""
        if self.otherwise is None:
            return "a movement that pays off" if self.kind == "activation" else ""
        return f"{self.otherwise!r} would take {time_text(self.more)} more"


@final
@dataclass(frozen=True, slots=True)
class AutoshardChoice:
    """What `autoshard` found; prints as a table.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 2})
    >>> choice = weft.nn.autoshard(torch.nn.Linear(4, 4), mesh, torch.ones(1024, 4), topology="h100")
    >>> choice.gap, choice.seconds == choice.bound, choice.binding
    (0.0, True, None)
    >>> choice.apply()(choice.shard_batch(torch.ones(1024, 4))).shape
    torch.Size([1024, 4])
    """

    mesh: DeviceMesh
    patterns: Mapping[str, P]
    """What `shard_module` takes."""
    activations: Mapping[str, Mapping[str, P]]
    """What `shard_activations` takes: 'inputs' and 'outputs', each with patterns of modules."""
    batch: object
    """A spec for each tensor of the batch, in its structure."""
    seconds: float
    """What a step takes in these layouts, by the model."""
    bound: float
    """What a step takes at least, in whatever layouts."""
    memory: int
    """What a device holds of parameters, gradients, optimizer states and what is kept for the backward pass."""
    memory_limit: int
    binding: str | None
    """The limit without which a better choice would have been found: 'memory', or None."""
    rows: tuple[ChosenLayout, ...]
    model: torch.nn.Module = field(repr=False, compare=False)

    @property
    def gap(self) -> float:
        """How much of the time a better choice could save at most: 0.05 is a twentieth."""
        return 0.0 if not self.seconds else max(0.0, self.seconds - self.bound) / self.seconds

    @property
    def next_best(self) -> ChosenLayout | None:
        """The parameter that could be laid out otherwise at the least price."""
        others = [row for row in self.rows if row.otherwise is not None]
        return min(others, key=lambda row: row.more, default=None)

    def apply(self) -> torch.nn.Module:
        """Lays the model out as chosen, in place, and returns it."""
        shard_module(self.model, self.mesh, self.patterns)
        if any(self.activations.values()):
            shard_activations(self.model, self.mesh, **self.activations)
        return self.model

    def shard_batch(self, batch: object) -> object:
        """A batch of the structure of the example, laid out as chosen."""
        return _laid(batch, self.batch, self.mesh)

    def __str__(self) -> str:
        limit = f" of {bytes_text(self.memory_limit)}" + (", which binds" if self.binding else "")
        head = [
            f"Layouts on {self.mesh}",
            f"  time      {time_text(self.seconds)} a step, at most {self.gap:.1%} more than the best",
            f"  memory    {bytes_text(self.memory)} a device{limit}",
        ]
        if self.next_best is not None:
            row = self.next_best
            head.append(f"  next best {row.name} as {row.otherwise!r}: {time_text(row.more)} more")
        rows = [
            (row.name, row.kind, repr(row.spec), bytes_text(row.nbytes), time_text(row.seconds), row.why)
            for row in self.rows
        ]
        return "\n".join([*head, "", *table([("name", "kind", "layout", "a device", "moved in", "why"), *rows])])


def _laid(batch: object, specs: object, mesh: DeviceMesh) -> object:
    if isinstance(batch, torch.Tensor):
        if not isinstance(specs, P):
            raise ValueError(f"the batch has a tensor where the example had {specs!r}: give it the example's structure")
        return shard(batch, mesh, specs)
    if isinstance(batch, Mapping):
        known = specs if isinstance(specs, Mapping) else {}
        for name, each in batch.items():
            if isinstance(each, torch.Tensor) and known.get(name) is None:
                raise ValueError(f"the batch has a tensor {name!r}, which the example had not: it had {sorted(known)}")
        return {name: _laid(each, known.get(name), mesh) for name, each in batch.items()}
    if isinstance(batch, (list, tuple)):
        if not isinstance(specs, tuple) or len(specs) != len(batch):
            raise ValueError(f"the batch has {len(batch)} parts, but the example had {specs!r}")
        parts = [_laid(each, spec, mesh) for each, spec in zip(batch, specs, strict=True)]
        make = getattr(type(batch), "_make", type(batch))  # a named tuple takes its parts one by one
        return make(parts)
    return batch
