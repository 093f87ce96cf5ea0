"""All-reduce: the tensors of all devices combined, to every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from ..context import DeviceContext
from ..element import Element, element
from .known import known_call
from .open_collective import OpenCollective, opened
from .operands import check_operands, check_shape
from .shots import shots

__all__ = ["DistributedAllReduce"]

_NAME = "DistributedAllReduce"


@final
class DistributedAllReduce:
    """Combine the tensors of all GPUs, element by element, on every GPU.

    >>> from weft.kernels import DeviceContext, signal_buffer
    >>> contexts = [DeviceContext("cpu")] * 2
    >>> outputs = [torch.empty(2) for _ in contexts]
    >>> inputs = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    >>> DistributedAllReduce.execute(outputs, inputs, [signal_buffer("cpu") for _ in contexts], contexts)
    >>> outputs[1]
    tensor([11., 22.])
    """

    @staticmethod
    def execute(
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        signal_buffers: Sequence[torch.Tensor],
        dev_ctxs_input: Sequence[DeviceContext],
        *,
        reduce_op: str = "sum",
        target: str | None = None,
        trace_name: str | None = None,
    ) -> None:
        """Write the combination of the inputs, taken in the order of the devices, to every output.

        Outputs are the same bit for bit, and so are those of the same call made again. bfloat16 and float16 are
        combined in float32 and rounded once. An output may be its device's input.
        """
        known = known_call(_NAME, outputs, inputs, signal_buffers, dev_ctxs_input, reduce_op)
        if known is not None and target is None and trace_name is None and known.repeat():
            return
        with opened(_NAME, dev_ctxs_input, signal_buffers, target, trace_name, known) as call:
            check_operands(_NAME, "inputs", inputs, dev_ctxs_input)
            check_operands(_NAME, "outputs", outputs, dev_ctxs_input)
            for word, tensors in (("inputs", inputs), ("outputs", outputs)):
                for i, tensor in enumerate(tensors):
                    check_shape(_NAME, f"{word}[{i}]", tensor, inputs[0].shape, inputs[0].dtype)
            _run(call, outputs, inputs, reduce_op, element(_NAME, inputs[0].dtype, reduce_op))


def _run(
    call: OpenCollective, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], reduce_op: str, kind: Element
) -> None:
    if outputs[0].numel() == 0:
        return
    everyone = range(len(inputs))
    targets = call.writes(outputs, shared=True)
    sources = call.clear(call.reads(inputs, everyone), everyone, targets, lambda _source, _target: 0)
    read = [source.data_ptr() for source in sources]
    written = [target.data_ptr() for target in targets]
    in_place = not set(read).isdisjoint(written)
    works = shots("combine", call.groups, read, written, sources[0].nbytes, in_place=in_place)
    call.launch(works, (reduce_op, kind))
