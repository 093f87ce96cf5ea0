"""Few patterns for many names: layers that are laid out alike share a `*`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from ..sharding.layout import Layout

__all__ = ["general_name", "patterns_of"]


def patterns_of(
    laid: Mapping[str, Layout | None], layers: Collection[str], *, keep_replicated: bool = False
) -> dict[str, Layout]:
    """Patterns, the first of which that matches gives a name its layout; names without a layout match none.

    `layers` are the names of modules of which there are several alike. What is replicated is said only where another pattern
    would match it, or with `keep_replicated`.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 2})
    >>> rows, whole = Layout(mesh, (("tp",), ())), Layout(mesh, ((), ()))
    >>> names = {f"layers.{i}.up.weight": rows for i in range(4)} | {"layers.0.norm": whole, "head": rows}
    >>> {name: str(layout) for name, layout in patterns_of(names, {f"layers.{i}" for i in range(4)}).items()}
    {'layers.*.up.weight': '(tp, –)', 'head': '(tp, –)'}
    """
    groups: dict[str, list[str]] = {}
    for name in laid:
        groups.setdefault(general_name(name, layers), []).append(name)
    patterns: dict[str, Layout] = {}
    for pattern, names in groups.items():
        layouts = Counter(laid[name] for name in names)
        most = layouts.most_common(1)[0][0]
        if most is None or None in layouts:  # what is not laid out has no pattern, so there can be none for all
            patterns |= {name: layout for name in names if (layout := laid[name]) is not None}
        elif keep_replicated or not most.is_replicated:
            patterns[pattern if len(names) > 1 else names[0]] = most
    return _corrected(laid, patterns, keep_replicated)


def general_name(name: str, layers: Collection[str]) -> str:
    """A name with a `*` for the number of each layer.

    >>> general_name("layers.3.up.0.weight", {"layers.3"})
    'layers.*.up.0.weight'
    """
    parts = name.split(".")
    return ".".join("*" if ".".join(parts[: at + 1]) in layers else part for at, part in enumerate(parts))


def _matched(name: str, patterns: Mapping[str, Layout]) -> Layout | None:
    return next((layout for pattern, layout in patterns.items() if fnmatchcase(name, pattern)), None)


def _corrected(
    laid: Mapping[str, Layout | None], patterns: dict[str, Layout], keep_replicated: bool
) -> dict[str, Layout]:
    """The patterns, after those of names that they would give to another: a `*` stands for dots too."""
    wrong: dict[str, Layout] = {}
    for name, layout in laid.items():
        found = _matched(name, patterns)
        if layout is None:
            if found is not None:
                return {each: known for each, known in laid.items() if known is not None}
        elif found is not layout and (found is not None or keep_replicated or not layout.is_replicated):
            wrong[name] = layout
    return {**wrong, **patterns}
