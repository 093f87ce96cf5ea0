"""`Tree`: the nested structure of a state, with each tensor replaced by its name; what JSON can say of it.

{"tensor": name}   {"value": 3}   {"list": [node, …]}   {"tuple": [node, …]}   {"dict": [[key, node], …]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch

__all__ = ["Node", "State", "flat_dict", "flattened", "unflattened"]

Node = dict[str, object]
State = object
"""A module, an optimizer, a tensor, a number, a string, None, or dicts, lists and tuples of these."""


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
    elif isinstance(value, torch.optim.Optimizer):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        name = ".".join(path) or "tensor"
        while name in tensors:  # {"a.b": x, "a": {"b": y}}
            name += "'"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise TypeError(
                    f"a checkpoint's dicts have strings or whole numbers as keys, but {_at(path)} has {key!r}"
                )
        return {"dict": [[key, _node(item, (*path, str(key)), tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_node(item, (*path, str(i)), tensors) for i, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(
        f"a checkpoint holds tensors, numbers, strings, None, and dicts, lists and tuples of them, but {_at(path)} is a {type(value).__name__}: "
        "turn it into one of these, or leave it out"
    )


def _at(path: tuple[str, ...]) -> str:
    return repr(".".join(path)) if path else "the state"


def unflattened(node: Node, tensor: Callable[[str], object]) -> object:
    """The structure with each tensor's name replaced by what `tensor` says."""
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensor(cast(str, content))
    if kind == "value":
        return content
    if kind == "dict":
        return {key: unflattened(item, tensor) for key, item in cast("list[tuple[str | int, Node]]", content)}
    items = [unflattened(item, tensor) for item in cast("list[Node]", content)]
    return items if kind == "list" else tuple(items)


def flat_dict(names: list[str]) -> Node:
    """The structure of a plain file: one dict of tensors."""
    return {"dict": [[name, {"tensor": name}] for name in names]}
