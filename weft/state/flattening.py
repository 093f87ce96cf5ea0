"""The tensors of a state by name, and the state again from others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, final

import optree
import torch

from ..checkpoint.tree import Stateful
from ..sharding.types import TensorLayout

__all__ = ["FlatState", "flat_state"]


@final
@dataclass(frozen=True, slots=True)
class FlatState:
    """A state taken apart: its structure, and its leaves by name; a name is the path to the leaf, joined with dots."""

    structure: optree.PyTreeSpec
    leaves: Mapping[str, object]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The leaves that are tensors."""
        return {name: leaf for name, leaf in self.leaves.items() if isinstance(leaf, torch.Tensor)}

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> object:
        """The same state with other tensors."""
        leaves = [tensors.get(name, leaf) for name, leaf in self.leaves.items()]
        whole: object = optree.tree_unflatten(self.structure, leaves)
        return whole


def flat_state(state: object, what: str) -> FlatState:
    """Takes a module, a state dict or any tree of them apart.

    >>> flat = flat_state({"model": torch.nn.Linear(2, 2), "step": 3}, "plan_state")
    >>> list(flat.leaves), list(flat.tensors)
    (['model.weight', 'model.bias', 'step'], ['model.weight', 'model.bias'])
    """
    with optree.dict_insertion_ordered(True, namespace="weft"):
        paths, leaves, structure = _taken_apart(state)
        opened = [_opened(leaf) for leaf in leaves]
        if any(new is not old for new, old in zip(opened, leaves, strict=True)):
            paths, leaves, structure = _taken_apart(optree.tree_unflatten(structure, opened))
    names = [".".join(map(str, path)) or "tensor" for path in paths]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"{what} knows tensors by their path, joined with dots, but two are called {twice!r}: rename one of them"
        )
    return FlatState(structure, dict(zip(names, leaves, strict=True)))


def _taken_apart(tree: object) -> tuple[list[tuple[object, ...]], list[object], optree.PyTreeSpec]:
    """The paths to all leaves, the leaves, and the structure that they stand in."""
    tree_ = cast("optree.PyTree[object]", tree)
    return optree.tree_flatten_with_path(tree_, none_is_leaf=True, namespace="weft")


def _opened(leaf: object) -> object:
    """The state of what has one."""
    if isinstance(leaf, (torch.Tensor, TensorLayout)):
        return leaf
    if isinstance(leaf, torch.nn.Module):
        return dict(leaf.state_dict(keep_vars=True))
    if isinstance(leaf, Stateful):
        return leaf.state_dict()
    return leaf
