"""Names: which tensors of a state become which of another, where these have other names, or are fused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

__all__ = ["Fused", "Names", "Renamed", "Side", "renamed"]


@final
@dataclass(frozen=True, slots=True)
class Fused:
    """Names of tensors that are one tensor elsewhere, put together along a dim; `sizes` where parts differ in size.

    >>> Fused(("q", "k", "v"), sizes=(64, 16, 16))
    Fused(names=('q', 'k', 'v'), dim=0, sizes=(64, 16, 16))
    """

    names: tuple[str, ...]
    dim: int = 0
    sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        given: object = self.names
        if not isinstance(given, tuple) or not given or not all(isinstance(name, str) for name in given):
            raise TypeError(f"Fused takes the names of its parts, but got {self.names!r}: use Fused(('q', 'k', 'v'))")
        if self.sizes is not None:
            object.__setattr__(self, "sizes", tuple(self.sizes))
            if len(self.sizes) != len(self.names):
                raise ValueError(
                    f"Fused needs a size for each of its {len(self.names)} parts, but got {self.sizes}: give as many sizes as names"
                )


Side = str | tuple[str, ...] | Fused
Names = Mapping[Side, Side]
"""New names and old ones; `*` stands for the same text in all names of a row."""


@final
@dataclass(frozen=True, slots=True)
class Renamed:
    """Old tensors that become new ones: one becomes one, one becomes several, or several become one."""

    new: tuple[str, ...]
    old: tuple[str, ...]
    dim: int = 0
    sizes: tuple[int, ...] | None = None


def renamed(names: Iterable[tuple[Side, Side]] | None, known: Sequence[str]) -> list[Renamed]:
    """What becomes of each name; those that no row mentions stay as they are.

    >>> rows = renamed([("*.qkv", ("*.q", "*.k"))], ["0.q", "0.k", "1.q", "1.k", "head"])
    >>> [(row.new, row.old) for row in rows]
    [(('0.qkv',), ('0.q', '0.k')), (('1.qkv',), ('1.q', '1.k')), (('head',), ('head',))]
    """
    if not names:
        return [Renamed((name,), (name,)) for name in known]
    rows = [row for new, old in names for row in _row(new, old, known)]
    used = {name for row in rows for name in row.old}
    rows += [Renamed((name,), (name,)) for name in known if name not in used]
    order = {name: at for at, name in enumerate(known)}
    rows.sort(key=lambda row: min(order[name] for name in row.old))
    seen: dict[str, Renamed] = {}
    for row in rows:
        for name in row.new:
            if name in seen:
                raise ValueError(
                    f"two tensors would be called {name!r}, one from {_listed(seen[name].old)}, one from {_listed(row.old)}: "
                    "give one of them another name"
                )
            seen[name] = row
    return rows


def _row(new: Side, old: Side, known: Sequence[str]) -> Iterator[Renamed]:
    """One row for each name that fits the first of the old ones."""
    after, before = _fused(new), _fused(old)
    if len(after.names) > 1 and len(before.names) > 1:
        raise ValueError(
            f"a row of names makes one tensor of several, or several of one, but got {new!r}: {old!r}: write a row for each new name"
        )
    several = after if len(after.names) > 1 else before
    stars = {name.count("*") for name in (*after.names, *before.names)}
    if len(stars) > 1:
        raise ValueError(f"all names of a row have as many *, but {new!r}: {old!r} differ: a * stands for one text")
    pattern = re.compile("(.*)".join(map(re.escape, before.names[0].split("*"))))
    found = False
    for name in known:
        match = pattern.fullmatch(name)
        if match is not None:
            found = True
            olds = tuple(_filled(each, match.groups()) for each in before.names)
            missing = [each for each in olds if each not in known]
            if missing:
                raise ValueError(f"{new!r} is made of {_listed(olds)}, but the state has no {_listed(missing)}")
            news = tuple(_filled(each, match.groups()) for each in after.names)
            yield Renamed(news, olds, several.dim, several.sizes)
    if not found:
        shown = ", ".join(map(repr, known[:8])) + (", …" if len(known) > 8 else "")
        raise ValueError(f"the name {before.names[0]!r} fits no tensor of the state. The names are: {shown}")


def _fused(side: Side) -> Fused:
    if isinstance(side, Fused):
        return side
    if isinstance(side, (str, tuple)):
        return Fused((side,) if isinstance(side, str) else side)
    raise TypeError(f"a row of names has names, or tuples of them, but got {side!r}: use 'q' or ('q', 'k', 'v')")


def _filled(pattern: str, texts: Sequence[str]) -> str:
    first, *rest = pattern.split("*")
    return first + "".join(text + after for text, after in zip(texts, rest, strict=True))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
