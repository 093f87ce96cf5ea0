"""`Destination`: where a call of `Tensor.to` wants a tensor, apart from what else it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch

from ..devices import Device
from ..sharding.mapping import DeviceMapping

__all__ = ["Destination", "destination"]

Where = torch.device | Device | DeviceMapping | None


@final
@dataclass(frozen=True, slots=True)
class Destination:
    """Where to, and the arguments of torch's `to` that come after its device."""

    where: Where
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    names_device: bool = True
    """Whether the form is the one that begins with a device."""

    def before(self, device: torch.device | None) -> tuple[object, ...]:
        """The arguments by position that torch is to be given, with this device."""
        return (device, *self.args) if self.names_device else self.args


def destination(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Destination:
    """Tells apart torch's forms of `to`: `(device, dtype, ...)`, `(dtype, ...)` and `(other, ...)`.

    >>> destination(("cpu", None, False), {}).where, destination(("cpu", None, False), {}).args
    (device(type='cpu'), (None, False))
    >>> destination((torch.zeros(1, dtype=torch.int8), True), {}).args
    (torch.int8, True)
    """
    others = dict(kwargs)
    if args:
        first, rest = args[0], args[1:]
    elif "tensor" in others:
        first, rest = others.pop("tensor"), ()
    else:
        first, rest = others.pop("device", None), ()
    if isinstance(first, torch.Tensor):
        return Destination(first.device, (first.dtype, *rest), others)
    if isinstance(first, (str, int)) and not isinstance(first, bool):
        first = torch.device(first)
    if first is None or isinstance(first, (torch.device, Device, DeviceMapping)):
        return Destination(first, rest, others)
    # A dtype, or nothing that torch takes: torch then says what it would take.
    return Destination(None, args, others, names_device=False)
