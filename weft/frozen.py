"""`Frozen`: values whose fields are set once. What `dataclasses` would give, without the time it takes to import.

`Written`: values that a program can be written with, because what they print makes them.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["Frozen", "Unchanging", "Written"]


class Written:
    """A value that is made by what it prints, and by that stands in programs that a compiler writes.

    >>> class Point(Written):
    ...     def __repr__(self):
    ...         return "Point()"
    >>> text, words = Point().__fx_repr__()
    >>> isinstance(eval(text, words), Point)
    True
    """

    __slots__ = ()

    words: ClassVar[dict[str, type]] = {}
    """By name, all kinds of such values."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Written.words[cls.__name__] = cls

    def __fx_repr__(self) -> tuple[str, dict[str, type]]:
        """For torch.compile: what makes the value, and the names in it."""
        return repr(self), dict(Written.words)


class Unchanging:
    """A value whose fields cannot be set: those who make it set them as `object` does."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot change ({name!r} was set): make a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot change ({name!r} was deleted): make a new one")


class Frozen(Unchanging, Written):
    """A value that cannot change, equal to values of its type with equal fields; `__match_args__` names the fields.

    >>> class Point(Frozen):
    ...     __slots__ = __match_args__ = ("x",)
    ...
    ...     def __init__(self, x):
    ...         self._set(x=x)
    >>> Point(1) == Point(1), Point(1)
    (True, Point(1))
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, Frozen)
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), *self._fields()))

    def __reduce__(self) -> tuple[type[Frozen], tuple[object, ...]]:
        return type(self), self._fields()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._fields()))})"
