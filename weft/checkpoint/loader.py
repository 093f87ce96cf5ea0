"""`Loader`: goes through a saved structure and what it is loaded into, side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from difflib import get_close_matches

import torch
from torch.nn.parameter import is_lazy

from ..sharding.mapping import DeviceMapping, named_mapping
from ..tensor.tensor import Tensor
from .errors import CheckpointError
from .reading import Reader
from .shares import has_memory
from .tree import Node, State, Stateful, children, is_leaf, unflattened

__all__ = ["Loader"]

_OF_SCHEDULES = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}
"""What torch's schedulers keep in the groups of an optimizer, which need not be there yet."""


class Loader:
    """Goes through the saved structure and what it is loaded into, side by side."""

    def __init__(self, reader: Reader, strict: bool, cast: bool) -> None:
        self.reader, self.strict, self.cast = reader, strict, cast

    def filled(self, node: Node, like: State, path: tuple[str, ...]) -> State:
        """The saved state under `node`, in the form that `like` asks for."""
        if isinstance(like, torch.nn.Module):
            self._fill_module(node, like, path)
            return like
        if isinstance(like, torch.optim.Optimizer):
            self._fill_optimizer(node, like, path)
            return like
        if isinstance(like, (torch.Tensor, DeviceMapping)):
            return self._tensor(node, like, path)
        if isinstance(like, Stateful):
            state = self._laid_as_there(node, like)
            if not isinstance(state, dict):
                raise CheckpointError(
                    f"{self._at(path)} is no dict in the checkpoint, which {type(like).__name__}.load_state_dict takes: "
                    "load it into what it was saved from"
                )
            self.reader.then(lambda: like.load_state_dict(state))
            return like
        if isinstance(like, (dict, list, tuple)) and not like and self.strict and _is_plain_of(node, like):
            found = unflattened(node, self.reader.whole)  # a history, say, that has not begun here
            return type(like)(found) if isinstance(found, (list, tuple)) else _in_kind(found, like)
        if isinstance(like, Mapping):
            saved = self._matched(node, "dict", like, path)
            return {key: self.filled(saved[key], item, (*path, str(key))) for key, item in like.items()}
        if isinstance(like, (list, tuple)):
            saved = self._matched(node, "list", range(len(like)), path)
            items = [self.filled(saved[i], item, (*path, str(i))) for i, item in enumerate(like)]
            make: Callable[[list[State]], State] = getattr(like, "_make", type(like))  # named tuples take no list
            return make(items)
        return unflattened(node, self.reader.whole)

    def _laid_as_there(self, node: Node, like: Stateful) -> State:
        """The saved state of an object of its own kind: tensors that lie on a mesh there, averages of parameters say, lie alike again."""
        kept = like.state_dict()
        there = dict(self._laid_there(node, kept))
        made: dict[tuple[object, DeviceMapping], Tensor] = {}

        def tensor(name: str) -> torch.Tensor:
            if name not in there:
                return self.reader.whole(name)
            key = (self.reader.index.tensors[name], there[name])
            if key not in made:  # what was one tensor under several names is one again
                made[key] = self.reader.laid(name, there[name])
            return made[key]

        return _in_kind(unflattened(node, tensor), kept)

    def _laid_there(self, node: Node, there: object) -> Iterator[tuple[str, DeviceMapping]]:
        """The mappings of tensors, by their names in the checkpoint, that have their place and their shape in what is there."""
        if isinstance(there, torch.Tensor):
            name = node.get("tensor")
            saved = self.reader.index.tensors[name] if isinstance(name, str) else None
            if isinstance(there, Tensor) and saved is not None and saved.shape == tuple(there.shape):
                yield str(name), _settled(there)
            return
        if isinstance(there, Stateful):
            there = there.state_dict()
        items = (
            there if isinstance(there, Mapping) else dict(enumerate(there)) if isinstance(there, (list, tuple)) else {}
        )
        for key, item in children(node).items():
            if key in items:
                yield from self._laid_there(item, items[key])

    def _matched(
        self, node: Node, what: str, wanted: Iterable[str | int], path: tuple[str, ...]
    ) -> dict[str | int, Node]:
        """The children of a node, which must be those that are wanted."""
        saved = children(node)
        wanted = dict.fromkeys(wanted)
        if is_leaf(node):
            raise CheckpointError(
                f"{self._at(path)} is no {what} in the checkpoint, but {next(iter(node))} {next(iter(node.values()))!r}"
            )
        missing = [key for key in wanted if key not in saved]
        if missing:
            close = get_close_matches(str(missing[0]), list(map(str, saved)), n=3, cutoff=0.5)
            hint = (
                f" Close names there: {', '.join(map(repr, close))}."
                if close
                else f" It has {_listed(saved) or 'nothing'}."
            )
            raise CheckpointError(f"{self._at(path)} has no {_listed(missing)} in the checkpoint.{hint}")
        extra = [key for key in saved if key not in wanted]
        if extra and self.strict:
            raise CheckpointError(
                f"{self._at(path)} has {_listed(extra)} in the checkpoint, which nothing is waiting for: add them to `like`, or pass strict=False to leave them unread. "
                "None in the place of a dict or list takes all of it"
            )
        return saved

    def _tensor(self, node: Node, like: torch.Tensor | DeviceMapping, path: tuple[str, ...]) -> torch.Tensor:
        if isinstance(like, DeviceMapping):
            return self.reader.laid(self._name(node, path), like)
        name = self._checked(node, like, path)
        if isinstance(like, Tensor):
            return self.reader.laid(name, _settled(like), like.dtype)
        if like.is_meta:
            raise CheckpointError(
                f"{self._at(path)} is on the meta device and can hold nothing: give a tensor on the device that it is to be on, a mapping, or None"
            )
        target = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        self.reader.want(name, target)
        return target

    def _name(self, node: Node, path: tuple[str, ...]) -> str:
        name = node.get("tensor")
        if not isinstance(name, str):
            raise CheckpointError(
                f"{self._at(path)} is no tensor in the checkpoint, but {next(iter(node))} {next(iter(node.values()))!r}"
            )
        return name

    def _check_has_shape(self, x: torch.Tensor, path: tuple[str, ...]) -> None:
        if is_lazy(x):
            raise CheckpointError(
                f"{self._at(path)} has no shape yet and can hold nothing: call the module once first, on any input"
            )

    def _checked(self, node: Node, like: torch.Tensor, path: tuple[str, ...]) -> str:
        """The name of the saved tensor, which must fit a tensor."""
        self._check_has_shape(like, path)
        name = self._name(node, path)
        saved = self.reader.index.tensors[name]
        if saved.shape != tuple(like.shape):
            raise CheckpointError(
                f"{self._at(path)} has shape {saved.shape} in the checkpoint, but {tuple(like.shape)} here: load it into a model of the saved size"
            )
        if saved.dtype != like.dtype and not (self.cast and saved.dtype.is_floating_point and like.is_floating_point()):
            fix = f"convert the model first (model.to({saved.dtype})), and back after loading"
            if saved.dtype.is_floating_point and like.is_floating_point():
                fix = f"pass cast=True to convert it, or convert the model first (model.to({saved.dtype}))"
            raise CheckpointError(f"{self._at(path)} is {saved.dtype} in the checkpoint, but {like.dtype} here: {fix}")
        return name

    def _fill_module(self, node: Node, module: torch.nn.Module, path: tuple[str, ...]) -> None:
        state = module.state_dict(keep_vars=True)
        named = children(node)
        there = {id(target) for name, target in state.items() if name in named}
        # Files of other libraries have one of the names of a tied parameter.
        state = {name: x for name, x in state.items() if name in named or id(x) not in there}
        saved = self._matched(node, "module", state, path)
        others: dict[str, object] = {}
        filled: set[int] = set()
        for name, target in state.items():
            where = (*path, name)
            if not isinstance(target, torch.Tensor):
                others[name] = _in_kind(self.filled(saved[name], None, where), target)
                continue
            self._check_has_shape(target, where)
            if target.is_meta:
                raise CheckpointError(
                    f"{self._at(where)} is on the meta device and can hold nothing: use weft.nn.shard_module(module, mesh, patterns) first"
                )
            if isinstance(target, Tensor) and target._layout.pending:
                raise CheckpointError(
                    f"{self._at(where)} has a pending reduction and cannot be loaded into: all_reduce it first"
                )
            dense = target.layout == torch.strided and not target.is_nested
            if not dense or not has_memory(target):
                kind = f"{type(target).__name__} that has no memory of its own" if dense else f"{target.layout} tensor"
                raise CheckpointError(
                    f"{self._at(where)} is a {kind}, and cannot be loaded into: put a plain tensor in its place, or load that and convert it"
                )
            if any(not stride and size > 1 for size, stride in zip(target.shape, target.stride(), strict=True)):
                raise CheckpointError(
                    f"{self._at(where)} is expanded, several of its elements are one, and it cannot be loaded into: clone() it first"
                )
            read = self._checked(saved[name], target, where)
            if id(target) not in filled:  # of several names of a tied parameter, the first that is there counts
                filled.add(id(target))
                self.reader.into(read, target)
        if others:
            self.reader.then(lambda: module.load_state_dict(others, strict=False))

    def _fill_optimizer(self, node: Node, optimizer: torch.optim.Optimizer, path: tuple[str, ...]) -> None:
        """State that has a parameter's shape takes its layout; the rest (step counts) is plain."""
        named = children(node)
        if "param_groups" in named and "state" not in named:  # torch's checkpoints leave out what is empty
            node = {"dict": [["state", {"dict": []}], *map(list, named.items())]}
        parts = self._matched(node, "optimizer", ("state", "param_groups"), path)
        self._check_groups(parts["param_groups"], optimizer, path)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state: dict[str | int, object] = {}
        for key, entry in children(parts["state"]).items():
            index = (
                int(key) if isinstance(key, str) and key.isdecimal() else key
            )  # torch's checkpoints have words for all keys
            if not isinstance(index, int) or not 0 <= index < len(parameters):
                raise CheckpointError(
                    f"{self._at(path)} has state for parameter {index} in the checkpoint, but this optimizer has {len(parameters)} parameters: give it the same ones"
                )
            state[index] = {
                key: self._moment(item, optimizer, parameters[index], (*path, "state", str(index), str(key)))
                for key, item in children(entry).items()
            }
        groups = unflattened(parts["param_groups"], self.reader.whole)
        self.reader.then(lambda: optimizer.load_state_dict({"state": state, "param_groups": groups}))

    def _check_groups(self, node: Node, optimizer: torch.optim.Optimizer, path: tuple[str, ...]) -> None:
        """The parameters are known by their places in the groups, which must be as they were."""
        saved = [len(children(children(group).get("params", {"list": []}))) for group in children(node).values()]
        here = [len(group["params"]) for group in optimizer.param_groups]
        if saved != here:
            raise CheckpointError(
                f"{self._at(path)} has parameter groups of {saved} parameters in the checkpoint, but of {here} here: make the optimizer with the groups that were saved"
            )
        for group, own in zip(children(node).values(), optimizer.param_groups, strict=True):
            foreign, missing = children(group).keys() - own.keys() - _OF_SCHEDULES, own.keys() - children(group).keys()
            if foreign and missing & optimizer.defaults.keys():  # either alone is another version of torch
                raise CheckpointError(
                    f"{self._at(path)} is of another kind than {type(optimizer).__name__}: its groups have {_listed(sorted(map(str, foreign)))} in the "
                    f"checkpoint, but no {_listed(sorted(missing))}. Make the optimizer that was saved"
                )

    def _moment(
        self, node: Node, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, path: tuple[str, ...]
    ) -> State:
        name = node.get("tensor")
        if not isinstance(name, str):
            return self.filled(node, None, path)
        shape = self.reader.index.tensors[name].shape
        if not _fits(shape, optimizer.state.get(parameter, {}).get(path[-1]), optimizer, parameter):
            raise CheckpointError(
                f"{self._at(path)} has shape {shape} in the checkpoint, but its parameter has {tuple(parameter.shape)} here: "
                "load it into the optimizer of a model of the saved size"
            )
        if isinstance(parameter, Tensor) and shape == tuple(parameter.shape):
            return self.reader.laid(name, parameter.mapping)
        return self.reader.whole(name)

    def _at(self, path: tuple[str, ...]) -> str:
        return repr(".".join(path)) if path else "the state"


def _fits(shape: tuple[int, ...], there: object, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
    """Whether saved state of a parameter can be its state here: it is shaped as what is there, if anything is.

    What torch's own optimizers keep is a number or has the parameter's shape, but for two that keep sums of its rows or what
    belongs to all parameters. Those of other libraries may keep anything.
    """
    if shape in ((), (1,)):
        return True
    if isinstance(there, torch.Tensor) and there.ndim:
        return shape == tuple(there.shape)
    odd = isinstance(optimizer, (torch.optim.Adafactor, torch.optim.LBFGS))
    return odd or not type(optimizer).__module__.startswith("torch.optim.") or shape == tuple(parameter.shape)


def _is_plain_of(node: Node, like: dict[str, object] | list[object] | tuple[object, ...]) -> bool:
    """Whether a dict or list of no tensors was saved, as `like` is one."""
    kind = {"dict"} if isinstance(like, dict) else {"list", "tuple"}
    return not kind.isdisjoint(node) and not _has_tensors(node)


def _has_tensors(node: Node) -> bool:
    return "tensor" in node or any(map(_has_tensors, children(node).values()))


def _in_kind(value: object, there: object) -> object:
    """A loaded value with the kinds of dicts and tuples that are there: a counter, say, can do what a dict cannot.

    >>> from collections import Counter
    >>> _in_kind({"milestones": {2: 1, 4: 2}}, {"milestones": Counter([3])})
    {'milestones': Counter({4: 2, 2: 1})}
    """
    if isinstance(value, dict) and isinstance(there, dict):
        if there and all(isinstance(key, int) for key in there):
            value = _with_numbers(value)
        items = {key: _in_kind(item, there.get(key)) for key, item in value.items()}
        if type(there) is dict:
            return items
        made = copy(there)
        made.clear()
        made.update(items)
        return made
    if isinstance(value, (list, tuple)) and isinstance(there, (list, tuple)):
        others = (*there, *[None] * len(value))
        listed = [_in_kind(item, other) for item, other in zip(value, others, strict=False)]
        make: Callable[[list[object]], object] = getattr(there, "_make", type(value))
        return make(listed)
    return value


def _with_numbers(value: dict[str | int, object]) -> dict[str | int, object]:
    """A dict whose keys are whole numbers, if all may have been: torch's checkpoints have words for all keys.

    >>> _with_numbers({"4": "a", "-1": "b"}), _with_numbers({"4": "a", "b": "c"})
    ({4: 'a', -1: 'b'}, {'4': 'a', 'b': 'c'})
    """
    words = [key for key in value if isinstance(key, str) and re.fullmatch("-?[0-9]{1,18}", key)]
    return {int(key): item for key, item in value.items()} if len(words) == len(value) else value


def _settled(x: Tensor) -> DeviceMapping:
    return named_mapping(x._layout.resolved) if x._layout.pending else x.mapping


def _listed(keys: Iterable[str | int]) -> str:
    keys = list(keys)
    return ", ".join(map(repr, keys[:6])) + (f" and {len(keys) - 6} more" if len(keys) > 6 else "")
