"""All-gather: every device's tensor, one after the other, to every device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import final

import torch

from ..context import DeviceContext
from ..work import KernelWork
from .known import known_call
from .open_collective import OpenCollective, opened
from .operands import check_dim, check_operands, check_shape

__all__ = ["DistributedAllGather"]

_NAME = "DistributedAllGather"


@final
class DistributedAllGather:
    """Concatenate the tensors of all GPUs on every GPU.

    >>> from weft.kernels import DeviceContext, signal_buffer
    >>> contexts = [DeviceContext("cpu")] * 2
    >>> outputs = [torch.empty(3) for _ in contexts]
    >>> inputs = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    >>> DistributedAllGather.execute(outputs, inputs, [signal_buffer("cpu") for _ in contexts], contexts)
    >>> outputs[1]
    tensor([1., 2., 3.])
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
        """Write the inputs, concatenated along tensor dim `axis`, to every output; sizes along it may differ."""
        known = known_call(_NAME, outputs, inputs, signal_buffers, dev_ctxs_input, axis)
        if known is not None and target is None and trace_name is None and known.repeat():
            return
        with opened(_NAME, dev_ctxs_input, signal_buffers, target, trace_name, known) as call:
            check_operands(_NAME, "inputs", inputs, dev_ctxs_input)
            check_operands(_NAME, "outputs", outputs, dev_ctxs_input)
            dim = check_dim(_NAME, inputs[0], axis)
            for i, given in enumerate(inputs):
                alike = [*inputs[0].shape]
                alike[dim] = given.shape[dim] if given.dim() == len(alike) else alike[dim]
                check_shape(_NAME, f"inputs[{i}]", given, alike, inputs[0].dtype)
            whole = [*inputs[0].shape]
            whole[dim] = sum(given.shape[dim] for given in inputs)
            for i, output in enumerate(outputs):
                check_shape(_NAME, f"outputs[{i}]", output, whole, inputs[0].dtype)
            _run(call, [o.movedim(dim, 0) for o in outputs], [given.movedim(dim, 0) for given in inputs])


def _run(call: OpenCollective, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    if outputs[0].numel() == 0:
        return
    everyone = range(len(inputs))
    bounds = (0, *itertools.accumulate(given.nbytes for given in inputs))
    targets = call.writes(outputs, shared=True)
    sources = call.clear(call.reads(inputs, everyone), everyone, targets, lambda source, _target: -bounds[source])
    places = tuple(dict.fromkeys(target.data_ptr() for target in targets))
    call.launch(
        [
            KernelWork(
                "multicast", tuple(sources[i].data_ptr() for i in group.members), places, bounds, rows=group.members
            )
            for group in call.groups
        ]
    )
