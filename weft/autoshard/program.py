"""`RecordedProgram`: the forward pass of a model as a list of ops on values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from ..rules.call import BoundCall, Op
from .special_ops import SpecialFactors

__all__ = ["RecordedOp", "RecordedProgram", "RecordedValue"]


@dataclass(slots=True)
class RecordedValue:
    """A tensor of the program."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    name: str | None = None
    """Of a parameter or an input of the batch."""
    kind: str = "activation"
    """'parameter', 'input', 'activation', or 'constant': known everywhere, so that it need not lie anywhere."""
    needs_grad: bool = False
    is_weight: bool = False
    """Whether it is a parameter or a view of one."""
    producer: int | None = None
    output: int = 0
    users: list[tuple[int, int]] = field(default_factory=list)
    """The ops that take it, and as which of their inputs."""

    @property
    def nbytes(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape, start=self.dtype.itemsize)


@dataclass(slots=True)
class RecordedOp:
    """A call of an op."""

    number: int
    func: Op
    path: str
    """The name of the module that called it."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    factors: SpecialFactors | None
    flops: int
    is_view: bool
    call: BoundCall | None = None
    """Where it is to be tried what it takes."""

    @property
    def signature(self) -> object:
        """What makes two calls alike, beside where their inputs come from."""
        if self.factors is None:
            return self.func
        known = self.factors.factors
        return self.func, known.inputs, known.outputs, tuple(known.sizes.items()), known.linear


@dataclass(slots=True)
class RecordedProgram:
    """A model's forward pass."""

    ops: list[RecordedOp] = field(default_factory=list)
    values: list[RecordedValue] = field(default_factory=list)
    module_inputs: dict[str, int] = field(default_factory=dict)
    """The value that is a module's first argument."""
    module_outputs: dict[str, int] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    """The names of modules that stand in a row of modules and are made of modules themselves."""
    names: dict[str, int] = field(default_factory=dict)
    """All names of parameters; tied ones have the same value."""

    def add(self, x: torch.Tensor, **known: object) -> RecordedValue:
        """A new value."""
        value = RecordedValue(len(self.values), tuple(x.shape), x.dtype, **known)  # type: ignore[arg-type]
        self.values.append(value)
        return value
