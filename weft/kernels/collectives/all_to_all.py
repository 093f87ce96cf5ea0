"""All-to-all: part j of device i's tensor becomes part i of device j's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from ..context import DeviceContext
from ..work import KernelWork
from .known import known_call
from .open_collective import OpenCollective, opened
from .operands import check_parts

__all__ = ["DistributedAllToAll"]

_NAME = "DistributedAllToAll"


@final
class DistributedAllToAll:
    """Give each GPU its part of every GPU's tensor.

    >>> from weft.kernels import DeviceContext, signal_buffer
    >>> contexts = [DeviceContext("cpu")] * 2
    >>> outputs = [torch.empty(2) for _ in contexts]
    >>> inputs = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    >>> DistributedAllToAll.execute(outputs, inputs, [signal_buffer("cpu") for _ in contexts], contexts)
    >>> outputs
    [tensor([1., 3.]), tensor([2., 4.])]
    """

    @staticmethod
    def execute(
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        signal_buffers: Sequence[torch.Tensor],
        dev_ctxs_input: Sequence[DeviceContext],
        *,
        axis: int = 0,
        target: str | None = None,
        trace_name: str | None = None,
    ) -> None:
        """Write part j of every input, in the order of the devices, to output j.

        Inputs have one shape and are split along tensor dim `axis` into balanced parts; output j has as many of part j
        as there are devices.
        """
        known = known_call(_NAME, outputs, inputs, signal_buffers, dev_ctxs_input, axis)
        if known is not None and target is None and trace_name is None and known.repeat():
            return
        with opened(_NAME, dev_ctxs_input, signal_buffers, target, trace_name, known) as call:
            dim, bounds = check_parts(_NAME, outputs, inputs, dev_ctxs_input, axis, times=len(inputs))
            _run(call, [o.movedim(dim, 0) for o in outputs], [given.movedim(dim, 0) for given in inputs], bounds)


def _run(
    call: OpenCollective, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], bounds: Sequence[int]
) -> None:
    if inputs[0].numel() == 0:
        return
    everyone = range(len(inputs))
    row = inputs[0].nbytes // inputs[0].shape[0]
    places = tuple(bound * row for bound in bounds)
    targets = call.writes(outputs, shared=False)
    sources = call.clear(call.reads(inputs, everyone), everyone, targets, lambda _source, _target: None)
    written = tuple(target.data_ptr() for target in targets)
    call.launch(
        [
            KernelWork(
                "exchange", tuple(sources[i].data_ptr() for i in group.members), written, places, rows=group.members
            )
            for group in call.groups
        ]
    )
