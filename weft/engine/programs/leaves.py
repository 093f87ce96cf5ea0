"""What is compared of sharded parameters before each run of a compiled program: that none of them has become another.

Torch takes the parameters of a module for what they were as long as a tag of each dict on the way to them is the same, and asks
what it knows of each only where one has changed. Of inputs of a class of its own it asked all before every run, 1 to 2 µs each.
Sharded parameters change in ways that tags do not show; one pass over those that torch has asked for says whether any did, and
then lets torch ask again.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from itertools import chain, compress
from operator import attrgetter, call
from types import ModuleType
from typing import Protocol, final
from weakref import ref

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...runtime.machine import forget_with_residences
from ...watch.notes import is_watched
from ...watch.setting import Setting
from ..sharded import ShardedTensor, requires_grad
from ..value import Value

__all__ = ["compare_at_once"]

_OF_MODULE = re.compile(r"L\['(\w+)'\](\._modules\['[^']*'\])*\._parameters\['[^']*'\]")
"""How torch calls a parameter of a module that a function is given: the first group is the module's name there."""

_value_of: Callable[[torch.Tensor], Value] = attrgetter("_value")
_Parameters = dict[str, torch.nn.Parameter]
_parameters_of: Callable[[torch.nn.Module | None], _Parameters] = attrgetter("_parameters")
_values_in: Callable[[_Parameters], Iterable[torch.Tensor]] = dict.values


class GuardNode(Protocol):
    """Torch's account of one object that a program uses: what is asked of it, and of what is reached from it."""

    def get_key_value_managers(self) -> Mapping[int, tuple[GuardNode | None, GuardNode | None]]: ...

    def get_source(self) -> str: ...
    def get_type_of_guarded_value(self) -> type: ...
    def get_child_managers(self) -> list[GuardNode]: ...
    def is_guarded_value_immutable(self) -> bool: ...
    def has_object_aliasing_guard(self) -> bool: ...
    def mark_tag_safe(self) -> None: ...
    def add_lambda_guard(self, question: Callable[..., bool], said: list[str], stack: None) -> None:
        """Adds a question to what is asked."""


class GuardTree(Protocol):
    """All that a program asks before it runs."""

    root: GuardNode


def compare_at_once(guards: ModuleType) -> None:
    """Lets dynamo ask for sharded parameters as it asks for plain ones; `guards` is where it makes what it asks."""
    manager = getattr(guards, "GuardManagerWrapper", None)
    find = getattr(manager, "find_tag_safe_roots", None)
    if manager is None or find is None:
        return  # it asks for everything each time

    @functools.wraps(find)
    def found(self: GuardTree) -> None:
        asked: dict[str, _Questions] = {}
        for node, name in _parameters(self.root, guards.DictGuardManager):
            each = asked.setdefault(name, _Questions(name))
            node.add_lambda_guard(each.note, ["a sharded parameter is what it was"], None)
            node.mark_tag_safe()
        for each in asked.values():
            self.root.add_lambda_guard(each.look, ["sharded parameters are what they were"], None)
        find(self)

    manager.find_tag_safe_roots = found


def _parameters(node: GuardNode | None, of_dicts: type) -> Iterator[tuple[GuardNode, str]]:
    """The sharded parameters of modules below a node, each with the name that the module has in the program."""
    if node is None:
        return
    if isinstance(node, of_dicts):
        for pair in node.get_key_value_managers().values():
            for each in pair:
                yield from _parameters(each, of_dicts)
        return
    of_module = _OF_MODULE.fullmatch(node.get_source())
    if of_module is not None and issubclass(node.get_type_of_guarded_value(), ShardedTensor):
        if node.is_guarded_value_immutable() and not node.has_object_aliasing_guard():
            yield node, of_module[1]
        return
    for each in node.get_child_managers():
        yield from _parameters(each, of_dicts)


@final
class _State:
    """What torch has been told of a module's parameters, when it asked for all of them.

    Held are modules that have some, weakly: torch swaps no tensors that are held so, and held otherwise, what was replaced would stay.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._told = _told()
        self._owners = [ref(each) for each in module.modules() if each._parameters]
        found = self._found()
        self._is_sharded = [isinstance(x, ShardedTensor) for x in found]
        leaves = [x for x in found if isinstance(x, ShardedTensor)]
        self._values, self._flags = [ref(x._value) for x in leaves], list(map(requires_grad, leaves))

    def _found(self) -> list[torch.Tensor]:
        """The parameters that there are now, and None for each that there is not."""
        return list(chain.from_iterable(map(_values_in, map(_parameters_of, map(call, self._owners)))))

    def holds(self) -> bool:
        """Whether all are what they were."""
        if self._told != _told():
            return False
        try:
            leaves = list(compress(self._found(), self._is_sharded))
            values = list(map(_value_of, leaves))
        except AttributeError:  # of a module that is gone, or of a parameter that is plain now
            return False
        return values == list(map(call, self._values)) and list(map(requires_grad, leaves)) == self._flags


@final
class _Questions:
    """What one program asks for parameters of the modules that it is given under a name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._states: MutableMapping[torch.nn.Module, _State] = WeakIdKeyDictionary()
        """By module, as which no other counts, be it equal."""
        self._here = threading.local()
        """`module`: the one that this thread is to run, until torch has asked for a parameter of it."""

    def look(self, given: Mapping[str, object]) -> bool:
        """Called before each run; lets torch ask for all parameters where one has become another."""
        module = given.get(self._name)
        if not isinstance(module, torch.nn.Module):
            return True  # which torch says itself: the program is for modules
        self._here.module = module
        state = self._states.get(module)
        if state is not None and not state.holds():
            del self._states[module]
            _change_tags(module)
        return True

    def note(self, _: ShardedTensor) -> bool:
        """Called where torch asks for a parameter, as for all others that it has to ask for before this run."""
        module, self._here.module = self._here.module, None
        if module is not None:
            self._states[module] = _State(module)
        return True


def _told() -> object:
    """What tells how all parameters go into programs: whether somebody watches, and where devices lie."""
    return Setting.is_used and is_watched(), _residences.count


@final
class _Residences:
    """How often devices have come to lie elsewhere."""

    count = 0

    def change(self) -> None:
        self.count += 1


_residences = _Residences()
forget_with_residences(_residences.change)


def _change_tags(module: torch.nn.Module) -> None:
    """Lets torch see that something of a module has changed."""
    for each in module.modules():
        own = vars(each)
        own[_TAG] = None
        del own[_TAG]


_TAG = "_weft_parameters_changed"
