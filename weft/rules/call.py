"""`BoundCall`: one call of a torch op: its arguments by the names of its schema, and its tensors, found once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, final

import torch

from ..caches import cached

__all__ = ["REFUSALS", "Args", "BoundCall", "Known", "Kwargs", "Op", "as_dim", "each_of", "swapped", "text_of"]

Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]
Known = tuple[Any, ...]
"""The arguments of a call like one that was looked at: what stands where is known, and is not asked again."""
REFUSALS = (RuntimeError, IndexError, TypeError, ValueError)
"""What torch raises of a call that it refuses; which kind, differs between its versions."""


@final
class BoundCall:
    """An op and what it was called with. Arguments are asked for by name, as what they are.

    >>> call = BoundCall(torch.ops.aten.slice.Tensor, (torch.ones(4, 3), 1))
    >>> call.tensor("self").shape, call.dim("dim"), call.integer("step"), call.arg("start")
    (torch.Size([4, 3]), 1, 1, None)
    """

    __slots__ = ("_tensors", "afterwards", "args", "func", "is_written_back", "key", "kwargs", "plan", "repeat")

    func: Op
    args: Args
    kwargs: Kwargs
    key: tuple[object, ...] | None
    """All that calls like this one have in common, once that is known."""
    plan: object
    """How the call runs, once that is known."""
    repeat: Callable[[Known, Kwargs], object] | None
    """What gives the results of calls like this one, where whoever ran it knows."""
    afterwards: Callable[[], None] | None
    """What is left to do once what the call has written is where it belongs."""
    is_written_back: bool
    """Whether it is there already."""

    def __init__(self, func: Op, args: Args, kwargs: Kwargs | None = None) -> None:
        self.func, self.args, self.kwargs = func, args, {} if kwargs is None else kwargs
        self.key = None
        self.plan = None
        self.repeat = None
        self.afterwards = None
        self.is_written_back = False
        self._tensors: list[torch.Tensor] | None = None

    def __str__(self) -> str:
        return str(self.func)

    @property
    def name(self) -> str:
        """The op's name, without its overload.

        >>> BoundCall(torch.ops.aten.mm.default, ()).name
        'mm'
        """
        return self.func._schema.name.removeprefix("aten::")

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments, also inside lists, in order."""
        if self._tensors is None:
            self._tensors = []
            _collect(self.args, self._tensors)
            if self.kwargs:
                _collect(self.kwargs, self._tensors)
        return self._tensors

    def has(self, name: str) -> bool:
        """Whether the op has an argument of this name."""
        return name in _places(self.func)

    def arg(self, name: str, default: object = None) -> object:
        """An argument, or its default; `default` where the op has none of this name, or no default for it."""
        place = _places(self.func).get(name)
        if place is None:
            return default
        at, known, value, _ = place
        if at < len(self.args):
            return self.args[at]
        if name in self.kwargs:
            return self.kwargs[name]
        return value if known else default

    def tensor(self, name: str) -> torch.Tensor:
        """An argument that is a tensor."""
        value = self.arg(name)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{self.func}: {name} must be a tensor, but is {value!r}")
        return value

    def optional(self, name: str) -> torch.Tensor | None:
        """An argument that may be a tensor; None where it is none."""
        value = self.arg(name)
        return value if isinstance(value, torch.Tensor) else None

    def tensor_list(self, name: str) -> list[torch.Tensor]:
        """An argument that is a list of tensors."""
        return [x for x in self._sequence(name) if isinstance(x, torch.Tensor)]

    def optional_list(self, name: str) -> list[torch.Tensor | None]:
        """An argument that is a list in which tensors may be missing."""
        return [x if isinstance(x, torch.Tensor) else None for x in self._sequence(name)]

    def integer(self, name: str) -> int:
        """An argument that is a whole number."""
        return _whole(self.scalar(name))

    def optional_integer(self, name: str) -> int | None:
        """An argument that may be a whole number; None where it is none."""
        return None if self.arg(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """An argument that is a real number."""
        return float(self.scalar(name))

    def optional_number(self, name: str) -> float | None:
        """An argument that may be a real number; None where it is none."""
        return None if self.arg(name) is None else self.number(name)

    def scalar(self, name: str) -> float:
        """An argument that is a number of any kind, as it is."""
        value = self.arg(name)
        if isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat)):
            return value  # type: ignore[return-value]
        raise TypeError(f"{self.func}: {name} must be a number, but is {value!r}")

    def flag(self, name: str) -> bool:
        """An argument that is true or not; a missing one is not."""
        return bool(self.arg(name))

    def integers(self, name: str) -> list[int]:
        """An argument that is a list of whole numbers, or one of them; an empty list where it is missing."""
        value = self.arg(name)
        if value is None:
            return []
        return [_whole(n) for n in value] if isinstance(value, (list, tuple)) else [self.integer(name)]

    def flags(self, name: str) -> list[bool]:
        """An argument that is a list of truths."""
        return [bool(flag) for flag in self._sequence(name)]

    def dtype(self, name: str = "dtype") -> torch.dtype | None:
        """An argument that is a dtype, if it is given."""
        value = self.arg(name)
        return value if isinstance(value, torch.dtype) else None

    def dim(self, name: str, rank: int | None = None) -> int:
        """An argument that names a dim, counted from 0; of the first tensor, unless the rank is given."""
        return as_dim(self.integer(name), self.tensors[0].dim() if rank is None else rank)

    def dims(self, name: str) -> list[int]:
        """An argument that names dims, counted from 0."""
        rank = self.tensors[0].dim()
        return [as_dim(dim, rank) for dim in self.integers(name)]

    def replaced(self, /, **named: object) -> BoundCall:
        """The same call with other arguments, by name; itself where they are what it has.

        >>> BoundCall(torch.ops.aten.sum.dim_IntList, ("x", [0])).replaced(keepdim=True).args
        ('x', [0], True)
        """
        if all(self.arg(name) is value for name, value in named.items()):
            return self
        args, kwargs = list(self.args), dict(self.kwargs)
        places = _places(self.func)
        for name in sorted(named, key=lambda name: places[name][0]):
            at = places[name][0]
            if at < len(args):
                args[at] = named[name]
            elif at == len(args) and name not in kwargs and not places[name][3]:
                args.append(named[name])
            else:
                kwargs[name] = named[name]
        return BoundCall(self.func, tuple(args), kwargs)

    def with_tensors(self, tensors: Sequence[object]) -> BoundCall:
        """The same call with each tensor replaced by the next of these."""
        rest = iter(tensors)
        args = _swapped_tuple(self.args, rest)
        return BoundCall(self.func, args, _swapped_dict(self.kwargs, rest) if self.kwargs else {})

    def __call__(self) -> object:
        """Calls the op."""
        return self.func(*self.args, **self.kwargs)

    def result(self) -> torch.Tensor:
        """Calls an op that gives one tensor."""
        value = self()
        assert isinstance(value, torch.Tensor)
        return value

    def results(self) -> tuple[torch.Tensor, ...]:
        """Calls an op that gives several tensors."""
        values = self()
        assert isinstance(values, tuple)
        return values

    def on(self, tensors: Sequence[object]) -> object:
        """What the op gives with each tensor replaced."""
        rest = iter(tensors)
        try:
            if not self.kwargs:
                return self.func(*_swapped_tuple(self.args, rest))
            return self.func(*_swapped_tuple(self.args, rest), **_swapped_dict(self.kwargs, rest))
        except RuntimeError as error:
            # A kernel with threads that asks for memory it may write to, when it only reads, cannot take lazy copies.
            if "COW.cpp" not in str(error) or self.func._schema.is_mutable:
                raise
        return self.with_tensors([x.clone() if isinstance(x, torch.Tensor) else x for x in tensors])()

    def _sequence(self, name: str) -> Sequence[object]:
        value = self.arg(name)
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{self.func}: {name} must be a list, but is {value!r}")
        return value


def _whole(number: object) -> int:
    """A whole number; one that a compiler leaves open stays open."""
    return cast(int, number if isinstance(number, torch.SymInt) else int(cast(float, number)))


def each_of(result: object) -> Sequence[object]:
    """What an op gives, or what it is given, one by one: several tensors come in a list or a tuple."""
    return result if isinstance(result, (list, tuple)) else (result,)


def as_dim(dim: int, rank: int) -> int:
    """A dim as a number from 0.

    >>> as_dim(-1, 3)
    2
    """
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    return dim % rank


def text_of(value: object) -> str:
    """What arguments say, without tensors: to know a call by, in place of values that have no hash.

    A number that a compiler leaves open has a name, which means another number in another program: `TypeError`, as of a hash.

    >>> text_of(([2, 3], {"dtype": torch.int64}))
    "([2, 3], {'dtype': torch.int64})"
    """
    if _is_open(value):
        raise TypeError("unhashable type: a number that a compiler leaves open")
    return repr(value)


def _is_open(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_open, value))
    if isinstance(value, dict):
        return any(map(_is_open, value.values()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def swapped(value: object, replacements: Iterator[object]) -> object:
    """The same arguments with each tensor replaced by the next replacement."""
    if isinstance(value, torch.Tensor):
        return next(replacements)
    if isinstance(value, (list, tuple)):
        return type(value)([swapped(item, replacements) for item in value])
    if isinstance(value, dict):
        return {name: swapped(item, replacements) for name, item in value.items()}
    return value


def _swapped_tuple(args: Args, replacements: Iterator[object]) -> Args:
    return tuple([swapped(value, replacements) for value in args])


def _swapped_dict(kwargs: Kwargs, replacements: Iterator[object]) -> Kwargs:
    return {name: swapped(value, replacements) for name, value in kwargs.items()}


def _collect(value: object, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)


@cached(8192)
def _places(func: Op) -> dict[str, tuple[int, bool, object, bool]]:
    """For each argument of an op its position, whether it has a default, the default, and whether it is given by name only."""
    return {
        argument.name: (i, argument.has_default_value(), argument.default_value, argument.kwarg_only)
        for i, argument in enumerate(func._schema.arguments)
    }
