"""`visualize`: which device holds what, and what a plan moves; in colours in a terminal, as HTML in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import final

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..drawing.grid import Palette, drawn_dims, slot_name
from ..drawing.html import layout_html, plan_html
from ..drawing.panels import panels, printed
from ..drawing.schedules import SchedulePicture
from ..drawing.traffic import Traffic, traffic
from ..planning import Plan
from ..planning.costs.bounds import largest
from ..planning.text import bytes_text
from ..schedules import Schedule
from ..sharding.dims import Shape
from ..sharding.dtype import DType
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping, NamedMapping, PlacementMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.named import P
from ..sharding.placements import Sharded
from ..sharding.types import TensorLayout
from .explain import ExplainedTensor, Explanation, Mapped

__all__ = ["LayoutPicture", "PlanPicture", "visualize"]


@final
@dataclass(frozen=True, slots=True, repr=False)
class LayoutPicture:
    """A drawing of which device holds which part of a tensor; without a shape, of equal parts without numbers.

    >>> from weft.sharding import make_mesh
    >>> print(LayoutPicture("a vector", Layout(make_mesh({"a": 2}), (("a",),)), None, None))
    a vector
    ┌───┬───┐
    │ 0 │ 1 │
    └───┴───┘
    """

    title: str
    layout: Layout
    shape: tuple[int, ...] | None
    itemsize: int | None

    def __str__(self) -> str:
        return printed(self)

    def __rich__(self) -> RenderableType:
        layout, sizes = self.layout, self._sizes
        picture = panels(layout, sizes, drawn_dims(layout), Palette.of(layout), labelled=self.shape is not None)
        return Group(Text(self.title), picture, *[Text(self._note)] * bool(self._note))

    def _repr_html_(self) -> str:
        return layout_html(self.title, self.layout, self._sizes, self._note, labelled=self.shape is not None)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.shape if self.shape is not None else tuple(map(self.layout.split_count, range(self.layout.rank)))

    @property
    def _note(self) -> str:
        if self.shape is None:
            return ""
        down, across = drawn_dims(self.layout) if self.layout.rank > 2 else (0, 0)
        drawn = f"dim {down} goes down, dim {across} across; " if across else ""
        local = largest(self.layout, self.shape)
        sizes = " × ".join(map(str, local)) or "one element"
        most = "at most " if any(s % self.layout.split_count(d) for d, s in enumerate(self.shape)) else ""
        if self.itemsize is None:
            return f"{drawn}each device holds {most}{sizes}"
        held, whole = (bytes_text(prod(size) * self.itemsize) for size in (local, self.shape))
        return f"{drawn}each device holds {most}{sizes} ({held} of {whole})"

    __repr__ = __str__


@final
@dataclass(frozen=True, slots=True, repr=False)
class PlanPicture:
    """A drawing of what a plan moves: its steps, both layouts, and how much goes from which device to which.

    >>> from weft.planning import plan_layouts
    >>> from weft.sharding import make_mesh
    >>> mesh = make_mesh({"a": 2})
    >>> print(PlanPicture(plan_layouts(Layout(mesh, (("a",),)), Layout(mesh, ((),)), (8,), 4)))
    (a) -> (–) on a=2: 8, 4 bytes an element
    ...
    who sends how much to whom
    ...
      0                   16 B
      1            16 B
    """

    plan: Plan

    def __str__(self) -> str:
        return printed(self)

    def __rich__(self) -> RenderableType:
        of, found = self.plan, traffic(self.plan)
        dims, palette = drawn_dims(of.source, of.target), Palette.of(of.source, of.target)
        ends = [
            Group(Text(f"{word} {layout}"), panels(layout, of.shape, dims, palette, labelled=True))
            for word, layout in (("from", of.source), ("to", of.target))
        ]
        explained = Explanation(of)
        moved = [] if found is None or not found.most else [_matrix(found, of)]
        return Group(explained.head, explained.steps, Columns(ends, padding=(0, 4)), *moved)

    def _repr_html_(self) -> str:
        return plan_html(self.plan)

    __repr__ = __str__


def visualize(
    x: Plan | Schedule | DeviceMesh | DeviceMapping | Layout | ExplainedTensor, shape: Sequence[int] | None = None
) -> LayoutPicture | PlanPicture | SchedulePicture:
    """A drawing of which device holds which part of a tensor, a mapping or a mesh, of what a plan moves, or of a schedule.

    Show it in a notebook, or print it. A mapping alone has no sizes; `shape` gives them.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 2})
    >>> print(visualize(weft.shard(torch.ones(4, 6), mesh, weft.P("tp", None))))
    f32[4@tp, 6] on dp=2 × tp=2
    ┌─────┬─────┐
    │     │ 0:6 │
    ├─────┼─────┤
    │ 0:2 │ 0 2 │
    ├─────┼─────┤
    │ 2:4 │ 1 3 │
    └─────┴─────┘
    each device holds 2 × 6 (48 B of 96 B)
    """
    match x:
        case Plan():
            return PlanPicture(x)
        case Schedule():
            return SchedulePicture(x)
        case DeviceMesh():
            return LayoutPicture(str(x), Layout(x, [(axis,) for axis in x.axis_names]), None, None)
        case Layout():
            return _of_layout(x, shape)
        case DeviceMapping():
            return _of_layout(x.layout(_rank(x) if shape is None else len(shape)), shape)
        case ExplainedTensor():
            return _of_tensor(x)
    raise TypeError(
        f"visualize draws a tensor, a mapping, a mesh, a plan or a schedule, but got {x!r}: "
        "use weft.shard(x, mesh, spec), or weft.plan(source, target, shape, dtype)"
    )


def _of_layout(layout: Layout, shape: Sequence[int] | None) -> LayoutPicture:
    title = f"{layout} on {layout.mesh}"
    if shape is None:
        return LayoutPicture(title, layout, None, None)
    if len(shape) != layout.rank:
        raise ValueError(
            f"the layout {layout} is for {layout.rank} dims, but the shape {tuple(shape)} has {len(shape)}: give one size per dim"
        )
    return LayoutPicture(title, layout, tuple(shape), None)


def _of_tensor(x: ExplainedTensor) -> LayoutPicture:
    mapping = x.mapping if isinstance(x, Mapped) else NamedMapping(DeviceMesh.single(), P())
    known = TensorLayout(x.dtype, Shape(x.shape), mapping)
    sizes = known.shape.sizes if known.shape.is_static else None
    return LayoutPicture(str(known), known.layout, sizes, DType.of(x.dtype).itemsize)


def _rank(mapping: DeviceMapping) -> int:
    """The least rank that a mapping can be for."""
    if isinstance(mapping, NamedMapping):
        return len(mapping.spec)
    assert isinstance(mapping, PlacementMapping)
    dims = [p.axis for p in mapping.placements if isinstance(p, Sharded)]
    return max((dim + 1 if dim >= 0 else -dim for dim in dims), default=0)


def _matrix(found: Traffic, of: Plan) -> Table:
    """Senders down, receivers across."""
    table = Table(title="who sends how much to whom", title_justify="left", title_style="", box=box.SIMPLE_HEAD)
    table.add_column("from \\ to", no_wrap=True)
    for slot in range(of.target.mesh.num_devices):
        table.add_column(slot_name(of.target.mesh, slot), justify="right", no_wrap=True)
    for slot, sizes in enumerate(found.rows):
        cells = [Text(bytes_text(size) if size else "", style="bold" * (size == found.most)) for size in sizes]
        table.add_row(slot_name(of.source.mesh, slot), *cells)
    return table
