"""`explain`: what a tensor would have to do to get into another layout, as a table and a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..drawing.grid import Palette, drawn_dims
from ..drawing.html import plan_html
from ..drawing.panels import drawing, printed
from ..planning import Plan, Topology, plan
from ..planning.text import bytes_text, shape_text, time_text
from ..sharding.dtype import DTypeLike
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping, NamedMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.named import DimSpec, P, SpecEntry

__all__ = ["Explanation", "explain", "explain_plan"]


@runtime_checkable
class ExplainedTensor(Protocol):
    """What `explain` needs of a tensor."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> DTypeLike: ...


@runtime_checkable
class Mapped(Protocol):
    """What says how a tensor lies on a mesh."""

    @property
    def mapping(self) -> DeviceMapping: ...


@final
@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """A plan that prints itself as a table of steps and a drawing of both layouts.

    >>> from weft.planning import plan_layouts
    >>> from weft.sharding import make_mesh
    >>> layout = Layout(make_mesh({"tp": 2}), (("tp",),))
    >>> print(Explanation(plan_layouts(layout, layout, (8,), 4)))
    (tp) -> (tp) on tp=2: 8, 4 bytes an element
    ...
    nothing to do: the layouts are the same
    ...
    """

    plan: Plan

    def __str__(self) -> str:
        return printed(self)

    def __rich__(self) -> RenderableType:
        return Group(self.head, self.steps, _layouts(self.plan))

    @property
    def head(self) -> Text:
        """What moves and what it costs, in three lines."""
        return _head(self.plan)

    @property
    def steps(self) -> RenderableType:
        """The table of steps."""
        return _steps(self.plan)

    def _repr_html_(self) -> str:
        return plan_html(self.plan)

    __repr__ = __str__


def explain(
    x: ExplainedTensor,
    target: DeviceMapping | Layout | P | Iterable[SpecEntry | DimSpec],
    *,
    topology: Topology | None = None,
    memory_limit: int | None = None,
) -> Explanation:
    """What `x` would have to do to get to `target`: a mapping, or a spec on the mesh of `x`.

    >>> import torch, weft
    >>> from weft import P
    >>> x = weft.shard(torch.ones(8, 8), weft.make_mesh({"tp": 4}), P("tp", None))
    >>> explain(x, P(None, "tp")).plan.bytes_received.max
    48
    """
    mapping = x.mapping if isinstance(x, Mapped) else NamedMapping(DeviceMesh.single(), P())
    if not isinstance(target, (DeviceMapping, Layout)):
        target = NamedMapping(mapping.mesh, target)
    return explain_plan(plan(mapping, target, tuple(x.shape), x.dtype, topology=topology, memory_limit=memory_limit))


def explain_plan(of: Plan) -> Explanation:
    """A plan that prints itself as a table and a drawing.

    >>> from weft.planning import plan_layouts
    >>> from weft.sharding import make_mesh
    >>> mesh = make_mesh({"tp": 2})
    >>> print(explain_plan(plan_layouts(Layout(mesh, (("tp",), ())), Layout(mesh, ((), ("tp",))), (8, 8), 4)))
    (tp, –) -> (–, tp) on tp=2: 8 × 8, 4 bytes an element
    received 64 B on the busiest device, 128 B in all; the least possible
    memory 256 B on the fullest device; time 10 µs
    ...
     1  all_to_all  tp  (tp, –)  (–, tp)  64 B
    ...
    """
    return Explanation(of)


def _head(of: Plan) -> Text:
    received, bound = of.bytes_received, of.lower_bound
    meshes = str(of.source.mesh) if of.source.mesh == of.target.mesh else f"{of.source.mesh} -> {of.target.mesh}"
    parts = "" if of.parts is None else f"; {of.parts.count} parts along dim {of.parts.dim}, one after another"
    least = (
        "the least possible" if received == bound else f"at least {bytes_text(bound.max)}, {bytes_text(bound.total)}"
    )
    return Text(
        f"{of.source} -> {of.target} on {meshes}: {shape_text(of.shape)}, {of.itemsize} bytes an element\n"
        f"received {bytes_text(received.max)} on the busiest device, {bytes_text(received.total)} in all; {least}\n"
        f"memory {bytes_text(of.peak_memory)} on the fullest device; time {time_text(of.estimated_time)}{parts}"
    )


def _steps(of: Plan) -> RenderableType:
    if not of.steps:
        return Text("nothing to do: the layouts are the same")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True)
    for name in ("", "step", "over", "from", "to", "received"):
        table.add_column(name, no_wrap=True)
    for number, step in enumerate(of.steps, 1):
        received = bytes_text(step.bytes_received.max)
        axes = ", ".join(step.axes) or "–"
        table.add_row(str(number), step.described, axes, str(step.source), str(step.target), received)
    return table


def _layouts(of: Plan) -> RenderableType:
    dims, palette = drawn_dims(of.source, of.target), Palette.of(of.source, of.target)
    ends = [
        drawing(layout, of.shape, dims, title, palette) for layout, title in ((of.source, "from"), (of.target, "to"))
    ]
    return Columns(ends, padding=(0, 4))
