"""`tried`: what an op does in a layout, tried on paper once: its kernels, its movements, and where its results and gradients lie.

Ops over split dims are made of others: a norm adds up statistics and divides. What that takes is not guessed. The op runs on
paper as a dry run would run it, and calls of other sizes in the same layouts are priced by what it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast, final

import torch

from ..engine.sharded import ShardedTensor, wrap
from ..paper.dryrun import on_paper, recorded
from ..paper.machine import Machine
from ..paper.showing.report import StepReport
from ..paper.timing import Movement
from ..paper.work import OpWork, tensors_in
from ..planning.costs.axis_cost import axis_cost
from ..rules.call import BoundCall
from ..runtime.holding import holding
from ..runtime.machine import ownership
from ..sharding.layout import Layout
from ..tensor.tensor import public

__all__ = ["Laid", "Sizes", "Tried", "thinking", "tried"]

_GRADIENT = "gradient"
"""The op by which a parameter's gradient comes home: that is priced where the parameter is."""


@dataclass(frozen=True, slots=True)
class Laid:
    """Where a tensor that an op is given lies, and whether its gradient is wanted."""

    layout: Layout
    needs_grad: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """What makes two calls differ that are alike otherwise: bytes of the first tensor on a device, and rows of it in all."""

    held: int
    rows: int


@dataclass(frozen=True, slots=True)
class _TrialMove:
    """A movement: what it takes for however few bytes, and what it takes beyond that for its own."""

    latency: float
    rest: float


@final
@dataclass(frozen=True, slots=True)
class Tried:
    """What an op and its gradient did."""

    sizes: Sizes
    kernels: tuple[OpWork, ...]
    moves: tuple[_TrialMove, ...]
    outputs: tuple[Layout, ...]
    gradients: tuple[Layout | None, ...]
    """Of what the op was given; None where nobody wants it."""

    def seconds(self, machine: Machine, sizes: Sizes) -> float:
        """What a call like it takes that has other sizes."""
        larger, longer = sizes.held / max(1, self.sizes.held), sizes.rows / max(1, self.sizes.rows)
        total = 0.0
        for work in self.kernels:
            # A kernel goes over the tensor, or over statistics of its rows.
            by = larger if 2 * work.nbytes >= self.sizes.held else longer
            total += machine.seconds(OpWork(math.ceil(work.flops * by), math.ceil(work.nbytes * by), work.dtype))
        return total + sum(move.latency + move.rest * longer for move in self.moves)


def thinking() -> AbstractContextManager[None]:
    """Inside, ops can be tried."""
    return nullcontext() if ownership.on_paper else on_paper()


def tried(call: BoundCall, run: Callable[..., object], given: Sequence[Laid], machine: Machine, sizes: Sizes) -> Tried:
    """What a call does on tensors that lie like this; `run` is how the program calls it.

    >>> from weft.devices import Accelerator
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4}, devices=[Accelerator(i) for i in range(4)])
    >>> x, columns = torch.empty(4096, 8192, device="meta"), Layout(mesh, ((), ("tp",)))
    >>> softmax = torch.ops.aten._softmax.default
    >>> with thinking():
    ...     found = tried(
    ...         BoundCall(softmax, (x, 1, False)),
    ...         softmax,
    ...         [Laid(columns, True)],
    ...         Machine.preset("h100"),
    ...         Sizes(1 << 25, 4096),
    ...     )
    >>> len(found.moves), *map(str, found.outputs)
    (3, '(–, tp)')
    """
    with torch.inference_mode(False), torch.enable_grad():
        here = [_on_paper(x, laid) for x, laid in zip(call.tensors, given, strict=True)]
        left = iter(here)
        args, kwargs = _with(call.args, left), cast(dict[str, object], _with(call.kwargs, left))
        made: list[object] = []
        there = recorded(lambda: made.append(run(*cast(tuple[object, ...], args), **kwargs)), machine)
        outputs = tensors_in(made[0])
        wanted = [x for x in here if x.requires_grad]
        back, gradients = _back(outputs[0], wanted, machine)
    found = iter(gradients)
    return Tried(
        sizes,
        tuple(each.work for report in (there, *back) for each in report.operations),
        tuple(
            _move(each, machine)
            for report in (there, *back)
            for each in report.movements
            if each.record.op != _GRADIENT
        ),
        tuple(_layout(x) for x in outputs),
        tuple(next(found) if x.requires_grad else None for x in here),
    )


def _move(movement: Movement, machine: Machine) -> _TrialMove:
    record = movement.record
    latency = min(movement.exposed, axis_cost(record.source, record.target, 0, machine.topology))
    return _TrialMove(latency, movement.exposed - latency)


def _back(
    output: torch.Tensor, wanted: Sequence[torch.Tensor], machine: Machine
) -> tuple[list[StepReport], list[Layout]]:
    """What the backward pass does, and where the gradients lie."""
    if not wanted:
        return [], []
    with torch.no_grad():
        flow = torch.ones_like(output)
    found: list[torch.Tensor] = []
    report = recorded(lambda: found.extend(torch.autograd.grad(output, wanted, flow)), machine)
    return [report], [_layout(x) for x in found]


def _layout(x: torch.Tensor) -> Layout:
    assert isinstance(x, ShardedTensor)
    return x._layout


def _on_paper(x: torch.Tensor, laid: Laid) -> torch.Tensor:
    pieces = holding(laid.layout).empty(x.shape, x.dtype, "meta")
    made = public(wrap(pieces, laid.layout, tuple(x.shape), dtype=x.dtype))
    # What is made by an op gets its gradient as it comes; a leaf would bring it home.
    return made.requires_grad_().view_as(made) if laid.needs_grad else made


def _with(tree: object, tensors: object) -> object:
    """Arguments with other tensors in place of theirs, in order."""
    if isinstance(tree, torch.Tensor):
        return next(tensors)  # type: ignore[call-overload]
    if isinstance(tree, dict):
        return {name: _with(each, tensors) for name, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_with(each, tensors) for each in tree])
    return tree
