"""The state of everything that draws random numbers: Python's, torch's and, where it is used, NumPy's generators.

Processes may draw different numbers, so each saves a row of its own: one tensor, split over the processes. Its rows are JSON
of one length, which nobody has to be asked for.
"""

from __future__ import annotations

import json
import random
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NotRequired, TypedDict

import torch

from ..devices import list_devices
from ..runtime.processes import world
from ..sharding.mapping import NamedMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.named import P
from ..tensor.creation import from_local
from .errors import CheckpointError

__all__ = ["random_states", "set_random_state"]

_ROW = 1 << 15
"""Bytes of a row; the generators of Python, torch and NumPy need about 20,000, and each GPU some 30 more."""


class _Generators(TypedDict):
    """The states of the generators, in words that JSON has."""

    python: tuple[int, Sequence[int], float | None]
    torch: str
    cuda: NotRequired[list[str]]
    numpy: NotRequired[list[object]]


def random_states() -> torch.Tensor:
    """What `set_random_state` needs so that the same numbers follow: a row of each process, of which each holds its own.

    >>> kept = random_states()
    >>> first = torch.rand(3)
    >>> set_random_state(kept)
    >>> torch.equal(torch.rand(3), first)
    True
    """
    text = json.dumps(_state()).encode()
    assert len(text) <= _ROW, f"the state of the random generators has {len(text)} bytes"
    row = torch.frombuffer(bytearray(text.ljust(_ROW)), dtype=torch.uint8).view(1, _ROW)
    here = world.current()
    if here.count == 1:
        return row
    mesh = DeviceMesh(list_devices()[:: here.devices_per_process], (here.count,), ("process",))
    return from_local([row], NamedMapping(mesh, P("process")), shape=(here.count, _ROW), dtype=torch.uint8)


def set_random_state(states: torch.Tensor) -> None:
    """Goes on where `random_states` was asked; generators that are not here now, or were not there then, stay as they are.

    Of other numbers of processes, those that are new begin with the state of an old one.
    """
    kept = _row(states, world.current().process)
    version, numbers, following = kept["python"]
    random.setstate((version, tuple(numbers), following))
    torch.set_rng_state(_tensor(kept["torch"]))
    for i, each in enumerate(kept.get("cuda", [])[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_tensor(each), i)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and "numpy" in kept:
        numpy.set_state(tuple(kept["numpy"]))


def _state() -> _Generators:
    found: _Generators = {"python": random.getstate(), "torch": _text(torch.get_rng_state())}
    if torch.cuda.is_available():
        found["cuda"] = [_text(each) for each in torch.cuda.get_rng_state_all()]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, *rest = numpy.get_state()
        found["numpy"] = [name, keys.tolist(), *rest]
    return found


def _row(states: torch.Tensor, process: int) -> _Generators:
    try:
        row: _Generators = json.loads(bytes(states[process % len(states)].tolist()))
    except (ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        raise CheckpointError(f"the checkpoint's states of random generators are none ({error})") from error
    return row


def _text(state: torch.Tensor) -> str:
    return b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)
