"""The transitions that planners are compared on: a mesh, a source and a target, in words that every peer can read."""

from __future__ import annotations

from dataclasses import dataclass

SHAPE = (8192, 8192)
ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class Case:
    """Splits are one string of mesh axes per dim, major first; `pending` are the axes that hold a sum."""

    sizes: tuple[int, ...]
    source: tuple[str, str]
    target: tuple[str, str]
    pending: str = ""
    target_pending: str = ""

    @property
    def axes(self) -> dict[str, int]:
        """Axis sizes by name."""
        return dict(zip("abc", self.sizes, strict=False))

    @property
    def mesh(self) -> str:
        """The mesh in a word."""
        return "×".join(map(str, self.sizes))

    @property
    def name(self) -> str:
        """The transition in a word."""
        return f"{_said(self.source, self.pending)}→{_said(self.target, self.target_pending)}"


def _said(splits: tuple[str, str], pending: str) -> str:
    said = "(" + ", ".join(axes or "–" for axes in splits) + ")"
    return said + "".join(f" sum@{axis}" for axis in pending)


def cases() -> list[Case]:
    """Movements first, then pending sums."""
    one, grid, square, cube = (8,), (2, 4), (4, 4), (2, 2, 2)
    return [
        Case(one, ("a", ""), ("", "a")),
        Case(one, ("a", ""), ("", "")),
        Case(grid, ("ab", ""), ("ba", "")),
        Case(grid, ("ab", ""), ("b", "")),
        Case(grid, ("ab", ""), ("a", "")),
        Case(grid, ("ab", ""), ("", "ab")),
        Case(grid, ("ab", ""), ("a", "b")),
        Case(grid, ("ab", ""), ("b", "a")),
        Case(grid, ("a", "b"), ("b", "a")),
        Case(grid, ("a", "b"), ("", "ab")),
        Case(grid, ("a", "b"), ("ba", "")),
        Case(grid, ("a", ""), ("b", "")),
        Case(grid, ("a", ""), ("", "b")),
        Case(grid, ("a", ""), ("ba", "")),
        Case(square, ("ab", ""), ("", "ab")),
        Case(square, ("a", "b"), ("b", "a")),
        Case(square, ("ab", ""), ("ba", "")),
        Case(cube, ("ab", "c"), ("c", "ab")),
        Case(cube, ("abc", ""), ("", "abc")),
        Case(cube, ("abc", ""), ("c", "b")),
        Case(cube, ("a", "b"), ("b", "c")),
        Case(one, ("", ""), ("a", ""), pending="a"),
        Case(one, ("", ""), ("", ""), pending="a"),
        Case(grid, ("", ""), ("b", "a"), pending="ab"),
        Case(grid, ("b", ""), ("b", ""), pending="a"),
        Case(grid, ("b", ""), ("", "a"), pending="a"),
        Case(square, ("", ""), ("a", ""), pending="a"),
        Case(square, ("", ""), ("", ""), pending="a"),
        Case(square, ("b", ""), ("a", "b"), pending="a"),
        Case(cube, ("", ""), ("b", ""), pending="a"),
        Case(cube, ("c", ""), ("", "c"), pending="a"),
    ]
