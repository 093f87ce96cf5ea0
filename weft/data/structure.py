"""What a batch is made of: dicts, tuples, lists and dataclasses, opened into their parts and put together again."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import NamedTuple

import torch

__all__ = ["Opened", "closed", "has_tensors", "opened"]


class Opened(NamedTuple):
    """What a thing is, and its parts by name or number, in order."""

    kind: str
    parts: list[tuple[object, object]]


def opened(thing: object) -> Opened | None:
    """The parts of a dict, tuple, list or dataclass; None where it is no such thing.

    >>> opened({"a": 1}), opened("ab")
    (Opened(kind='dict', parts=[('a', 1)]), None)
    """
    match thing:
        case Mapping():
            return Opened("dict", list(thing.items()))
        case tuple() if hasattr(thing, "_fields"):
            return Opened("named tuple", list(zip(thing._fields, thing, strict=True)))
        case tuple() | list():
            return Opened("tuple" if isinstance(thing, tuple) else "list", list(enumerate(thing)))
    if is_dataclass(thing) and not isinstance(thing, type):
        return Opened("dataclass", [(each.name, getattr(thing, each.name)) for each in fields(thing)])
    return None


def closed(kind: str, names: Sequence[object], values: Sequence[object], like: object = None) -> object:
    """What such parts make up. `like`: what has them otherwise; where that is not here, its class is not known.

    >>> closed("tuple", [0, 1], ["a", "b"])
    ('a', 'b')
    """
    match kind:
        case "dict":
            return dict(zip(names, values, strict=True))
        case "list":
            return list(values)
        case "tuple":
            return tuple(values)
        case "named tuple":
            made: Callable[..., object] = _named(names) if like is None else type(like)
            return made(*values)
    if like is None:
        return SimpleNamespace(**dict(zip(map(str, names), values, strict=True)))
    found = copy.copy(like)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(found, str(name), value)  # frozen ones too
    return found


def _named(names: Sequence[object]) -> Callable[..., object]:
    return namedtuple("Batch", list(map(str, names)))  # noqa: PYI024 - the fields are known only now


def has_tensors(thing: object) -> bool:
    """Whether there are tensors in it.

    >>> has_tensors([{"a": torch.ones(2)}]), has_tensors(["a"])
    (True, False)
    """
    if isinstance(thing, torch.Tensor):
        return True
    found = opened(thing)
    return found is not None and any(has_tensors(each) for _, each in found.parts)
