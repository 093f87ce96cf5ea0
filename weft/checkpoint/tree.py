"""The nested structure of a state, with each tensor replaced by its name: what JSON can say of it.

{"tensor": name}   {"value": 3}   {"list": [node, …]}   {"tuple": [node, …]}   {"dict": [[key, node], …]}

Files of others may also have {"unread": "what it is"}: a value that only code of theirs could make.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch

from .errors import CheckpointError

__all__ = [
    "DEEPEST",
    "Node",
    "State",
    "Stateful",
    "check_depth",
    "check_keys",
    "children",
    "entries",
    "flat_dict",
    "flattened",
    "is_leaf",
    "plain_number",
    "structure_fault",
    "unflattened",
]

Node = dict[str, object]
State = object
"""A module, an optimizer, a tensor, a number, a string, None, or dicts, lists and tuples of these."""

DEEPEST = 100
"""How many dicts and lists may stand inside each other."""


@runtime_checkable
class Stateful(Protocol):
    """What says its state and takes it back: modules, optimizers, schedulers, loaders that know their place in the data."""

    def state_dict(self) -> dict[str, object]:
        """What there is to save."""

    def load_state_dict(self, state_dict: dict[str, object]) -> object:
        """Takes it back."""


def flattened(state: State) -> tuple[Node, dict[str, torch.Tensor]]:
    """A state's structure and its tensors by name; a name is the path to the tensor, joined with dots.

    >>> node, tensors = flattened({"a": {"b": torch.ones(1)}, "n": 2})
    >>> list(tensors), unflattened(node, lambda name: name)
    (['a.b'], {'a': {'b': 'a.b'}, 'n': 2})
    """
    tensors: dict[str, torch.Tensor] = {}
    return _node(state, (), tensors), tensors


def _node(value: object, path: tuple[str, ...], tensors: dict[str, torch.Tensor]) -> Node:
    if isinstance(value, torch.nn.Module):
        value = value.state_dict(keep_vars=True)  # the parameters themselves, so that tied ones are seen to be one
    elif not isinstance(value, torch.Tensor) and isinstance(value, Stateful):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        name = ".".join(path) if path else "tensor"
        while name in tensors:  # {"a.b": x, "a": {"b": y}}
            name += "'"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, (Mapping, list, tuple)):
        check_depth(path)
    if isinstance(value, Mapping):
        check_keys(value, path)
        return {"dict": [[key, _node(item, (*path, str(key)), tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_node(item, (*path, str(i)), tensors) for i, item in enumerate(value)]}
    value = plain_number(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(
        f"a checkpoint holds tensors, numbers, strings, None, and dicts, lists and tuples of them, but {_at(path)} is a {type(value).__name__}: "
        "turn it into one of these, or leave it out"
    )


def check_depth(path: tuple[str, ...]) -> None:
    """Raises for what lies deeper than files say, as what holds itself does."""
    if len(path) >= DEEPEST:
        raise TypeError(
            f"a checkpoint's dicts and lists stand at most {DEEPEST} inside each other, but {_at(path)} is deeper"
        )


def check_keys(kept: Mapping[object, object], path: tuple[str, ...]) -> None:
    """Raises for a key that no file says as it is."""
    for key in kept:
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise TypeError(f"a checkpoint's dicts have strings or whole numbers as keys, but {_at(path)} has {key!r}")


def plain_number(value: object) -> object:
    """A number of NumPy's as one of Python's; anything else as it is."""
    number = getattr(value, "item", None)
    return number() if callable(number) and getattr(value, "shape", None) == () else value


def _at(path: tuple[str, ...]) -> str:
    return repr(".".join(path)) if path else "the state"


def structure_fault(node: object, tensors: Container[str], depth: int = 0) -> str | None:
    """What is wrong with a structure that a file gives; None if it is one.

    >>> structure_fault({"list": [{"value": 1}, {"tensor": "x"}]}, {"x"})
    >>> structure_fault({"list": [{"value": 1}, {"tensor": "y"}]}, {"x"})
    "the structure names the tensor 'y', which is not there"
    """
    if depth > DEEPEST:
        return f"the structure is more than {DEEPEST} levels deep"
    match node:
        case {"tensor": str(name), **rest} if not rest:
            return None if name in tensors else f"the structure names the tensor {name!r}, which is not there"
        case {"value": value, **rest} if not rest:
            plain = value is None or isinstance(value, (bool, int, float, str))
            return None if plain else f"the structure has a {type(value).__name__} for a value"
        case {"list": list(items), **rest} | {"tuple": list(items), **rest} if not rest:
            faults = (structure_fault(item, tensors, depth + 1) for item in items)
            return next(filter(None, faults), None)
        case {"dict": list(items), **rest} if not rest:
            return _dict_fault(items, tensors, depth)
    return f"the structure has what is no tensor, value, list, tuple or dict: {str(node)[:80]}"


def _dict_fault(items: list[object], tensors: Container[str], depth: int) -> str | None:
    keys: set[str | int] = set()
    for item in items:
        match item:
            case [str() | int() as key, below] if not isinstance(key, bool):
                if key in keys:
                    return f"the structure has the key {key!r} twice in one dict"
                keys.add(key)
                fault = structure_fault(below, tensors, depth + 1)
                if fault:
                    return fault
            case _:
                return f"the structure has a dict with what is no key and value: {str(item)[:80]}"
    return None


def unflattened(node: Node, tensor: Callable[[str], object]) -> object:
    """The structure with each tensor's name replaced by what `tensor` says."""
    match node:
        case {"tensor": str(name)}:
            return tensor(name)
        case {"dict": list(items)}:
            return {key: unflattened(item, tensor) for key, item in items}
        case {"list": list(items)}:
            return [unflattened(item, tensor) for item in items]
        case {"tuple": list(items)}:
            return tuple(unflattened(item, tensor) for item in items)
        case {"unread": str(what)}:
            raise CheckpointError(f"{what}: leave it out of `like`, with strict=False, to load the rest")
    return node["value"]


def children(node: Node) -> dict[str | int, Node]:
    """What stands under a node, by key; nothing for a leaf.

    >>> children({"list": [{"value": 1}]})
    {0: {'value': 1}}
    """
    match node:
        case {"dict": list(items)}:
            return dict(items)
        case {"list": list(items)} | {"tuple": list(items)}:
            return dict(enumerate(items))
    return {}


def is_leaf(node: Node) -> bool:
    """Whether nothing can stand under a node.

    >>> is_leaf({"value": 1}), is_leaf({"dict": []})
    (True, False)
    """
    return not node.keys() & {"dict", "list", "tuple"}


def entries(node: Node, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of what a structure has in its dicts; a list is one entry.

    >>> list(entries({"dict": [["a", {"dict": [["b", {"value": 1}]]}], ["c", {"list": []}]]}))
    ['a.b', 'c']
    """
    if "dict" in node:
        for key, below in children(node).items():
            yield from entries(below, (*path, str(key)))
    else:
        yield ".".join(path)


def flat_dict(names: list[str]) -> Node:
    """The structure of a plain file: one dict of tensors."""
    return {"dict": [[name, {"tensor": name}] for name in names]}
