"""Broadcast: one tensor to every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from ..context import DeviceContext
from .known import known_call
from .open_collective import OpenCollective, opened
from .operands import check_operands, check_shape
from .shots import shots

__all__ = ["DistributedBroadcast"]

_NAME = "DistributedBroadcast"


@final
class DistributedBroadcast:
    """Copy a tensor from the root GPU to all GPUs.

    >>> from weft.kernels import DeviceContext, signal_buffer
    >>> contexts = [DeviceContext("cpu")] * 3
    >>> outputs = [torch.empty(2) for _ in contexts]
    >>> DistributedBroadcast.execute(
    ...     outputs, torch.tensor([1.0, 2.0]), [signal_buffer("cpu") for _ in contexts], contexts
    ... )
    >>> outputs[2]
    tensor([1., 2.])
    """

    @staticmethod
    def execute(
        outputs: Sequence[torch.Tensor],
        input: torch.Tensor,  # noqa: A002 - the contract's name
        signal_buffers: Sequence[torch.Tensor],
        dev_ctxs_input: Sequence[DeviceContext],
        *,
        root: int | None = None,
        target: str | None = None,
        trace_name: str | None = None,
    ) -> None:
        """Copy `input`, which lies on device `root`, into every output; one call serves all devices.

        `root` is the first device that the input lies on unless given. `target` and `trace_name` name the call in a
        profile.
        """
        known = known_call(_NAME, outputs, [input], signal_buffers, dev_ctxs_input, root)
        if known is not None and target is None and trace_name is None and known.repeat():
            return
        with opened(_NAME, dev_ctxs_input, signal_buffers, target, trace_name, known) as call:
            check_operands(_NAME, "outputs", outputs, dev_ctxs_input)
            for i, output in enumerate(outputs):
                check_shape(_NAME, f"outputs[{i}]", output, input.shape, input.dtype)
            _run(call, outputs, input, _root(input, dev_ctxs_input, root))


def _run(call: OpenCollective, outputs: Sequence[torch.Tensor], given: torch.Tensor, root: int) -> None:
    if given.numel() == 0:
        return
    targets = call.writes(outputs, shared=True)
    (source,) = call.clear(call.reads([given], [root]), [root], targets, lambda _source, _target: 0)
    here = source.data_ptr()
    # An output that is the input holds its result already.
    places = [None if target.data_ptr() == here else target.data_ptr() for target in targets]
    call.launch(shots("multicast", call.groups, [here], places, source.nbytes, in_place=False))


def _root(given: torch.Tensor, contexts: Sequence[DeviceContext], root: int | None) -> int:
    devices = [context.device for context in contexts]
    if root is None:
        if given.device not in devices:
            raise ValueError(
                f"{_NAME}: the input is on {given.device}, but the devices are {', '.join(map(str, devices))}. "
                f"Move it to one of them."
            )
        return devices.index(given.device)
    if not 0 <= root < len(devices):
        raise ValueError(f"{_NAME}: root is the index of one of the {len(devices)} devices, but got {root}.")
    if given.device != devices[root]:
        raise ValueError(f"{_NAME}: the input is on {given.device}, but root {root} is {devices[root]}.")
    return root
