"""Reduce-scatter: the tensors of all devices combined, a part of the result to each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from ..context import DeviceContext
from ..element import Element, element
from ..work import KernelWork
from .known import known_call
from .open_collective import OpenCollective, opened
from .operands import check_parts

__all__ = ["DistributedReduceScatter"]

_NAME = "DistributedReduceScatter"


@final
class DistributedReduceScatter:
    """Combine the tensors of all GPUs, element by element, and leave each GPU its part.

    >>> from weft.kernels import DeviceContext, signal_buffer
    >>> contexts = [DeviceContext("cpu")] * 2
    >>> outputs = [torch.empty(2), torch.empty(1)]
    >>> inputs = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])]
    >>> DistributedReduceScatter.execute(outputs, inputs, [signal_buffer("cpu") for _ in contexts], contexts)
    >>> outputs
    [tensor([11., 22.]), tensor([33.])]
    """

    @staticmethod
    def execute(
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        signal_buffers: Sequence[torch.Tensor],
        dev_ctxs_input: Sequence[DeviceContext],
        *,
        axis: int = 0,
        reduce_op: str = "sum",
        target: str | None = None,
        trace_name: str | None = None,
    ) -> None:
        """Write part i of the combined inputs, split along tensor dim `axis` into balanced parts, to output i."""
        known = known_call(_NAME, outputs, inputs, signal_buffers, dev_ctxs_input, axis, reduce_op)
        if known is not None and target is None and trace_name is None and known.repeat():
            return
        with opened(_NAME, dev_ctxs_input, signal_buffers, target, trace_name, known) as call:
            dim, bounds = check_parts(_NAME, outputs, inputs, dev_ctxs_input, axis)
            kind = element(_NAME, inputs[0].dtype, reduce_op)
            _run(
                call,
                [output.movedim(dim, 0) for output in outputs],
                [given.movedim(dim, 0) for given in inputs],
                bounds,
                (reduce_op, kind),
            )


def _run(
    call: OpenCollective,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    bounds: Sequence[int],
    reducing: tuple[str, Element],
) -> None:
    if inputs[0].numel() == 0:
        return
    everyone = range(len(inputs))
    row = inputs[0].nbytes // inputs[0].shape[0]
    places = tuple(bound * row for bound in bounds)
    targets = call.writes(outputs, shared=False)
    sources = call.clear(call.reads(inputs, everyone), everyone, targets, lambda _source, target: places[target])
    read = tuple(source.data_ptr() for source in sources)
    call.launch(
        [
            KernelWork("scatter", read, tuple(targets[i].data_ptr() for i in group.members), places, rows=group.members)
            for group in call.groups
        ],
        reducing,
    )
