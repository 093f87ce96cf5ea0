"""`visualize` draws what each device holds: the drawing says the same as the geometry, whatever the layout."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from rich.console import Console

import weft
from tests.planning.strategies import crossings, transitions
from tests.sharding.strategies import mapped_shapes
from weft import CPU, P
from weft.drawing import grid
from weft.drawing.grid import drawn_dims, grids
from weft.drawing.traffic import traffic
from weft.inspect.visualize import visualize
from weft.planning import plan_layouts
from weft.sharding import DeviceMesh, DistributedTensorType, NamedMapping, ReduceOp, Sharded, make_mesh
from weft.sharding.geometry import box
from weft.sharding.layout import Layout


@given(transitions(pending=True))
def test_a_cell_names_the_slots_that_hold_its_box_and_every_slot_is_named_once(ends):
    layout, _, shape = ends
    found, left_out = grids(layout, shape, drawn_dims(layout))
    cells = [cell for each in found for row in each.cells for cell in row]
    slots = [slot for cell in cells for replicas in cell.holders for slot in replicas]
    assert all(box(layout, shape, slot) == cell.box for cell in cells for replicas in cell.holders for slot in replicas)
    if layout.mesh.num_devices <= grid.MOST_SLOTS:
        assert (sorted(slots), left_out) == (list(range(layout.mesh.num_devices)), 0)


@given(mapped_shapes())
def test_any_layout_can_be_drawn_in_text_and_in_html(mapped):
    mapping, shape = mapped
    for picture in (visualize(mapping, shape), visualize(mapping)):
        assert max(map(len, str(picture).splitlines())) <= 100
        ElementTree.fromstring(picture._repr_html_())


@given(transitions(pending=True))
def test_any_plan_can_be_drawn_in_text_and_in_html(ends):
    source, target, shape = ends
    picture = visualize(plan_layouts(source, target, shape, 4))
    assert str(picture.plan.source) in str(picture)
    ElementTree.fromstring(picture._repr_html_())


@given(crossings())
def test_what_is_drawn_as_sent_is_what_the_plan_receives(ends):
    source, target, shape = ends
    plan = plan_layouts(source, target, shape, 4)
    found = traffic(plan)
    if found is not None:
        assert [sum(column) for column in zip(*found.rows, strict=True)] == [
            plan.received(slot) for slot in range(target.mesh.num_devices)
        ]


def test_three_split_dims_are_drawn_as_several_grids():
    mesh = make_mesh({"a": 2, "b": 2, "c": 2})
    text = str(visualize(weft.shard(torch.ones(10, 3, 8), mesh, P("a", "b", "c"))))
    assert text.splitlines()[1].split() == ["[0:5,", ":,", ":]", "[5:10,", ":,", ":]"]
    assert text.splitlines()[-1] == (
        "dim 1 goes down, dim 2 across; each device holds at most 5 × 2 × 4 (160 B of 960 B)"
    )


def test_more_than_fits_is_dots():
    mesh = make_mesh({"a": 64, "b": 64})
    text = str(visualize(NamedMapping(mesh, P("a", "b")), (1024, 1000)))
    assert text.splitlines()[1].count("┬") == 10
    assert "…" in text
    deep = NamedMapping(make_mesh({"a": 64, "b": 2, "c": 2}), P("a", "b", "c"))
    assert "… and 56 more" in str(visualize(deep, (64, 2, 2)))


def test_devices_are_named_not_slots():
    mesh = DeviceMesh([CPU(4), CPU(5)], (2,), ("tp",))
    assert "│ 4 │ 5 │" in str(visualize(mesh))
    simulated = DeviceMesh([CPU(4)] * 2, (2,), ("tp",))
    assert "│ 0 │ 1 │" in str(visualize(simulated))
    mixed = DeviceMesh([CPU(0), weft.Accelerator(0)], (2,), ("tp",))
    assert "│ cpu:0 │ gpu:0 │" in str(visualize(mixed))


def test_contributions_have_a_plus_between():
    mapping = NamedMapping(make_mesh({"a": 2, "b": 2}), P(None), unreduced={"b": ReduceOp.MAX})
    text = str(visualize(mapping, (4,)))
    assert text.startswith("(–) max@b on a=2 × b=2\n")
    assert "│ 0 2 + 1 3 │" in text


def test_types_and_sizes_that_are_names_can_be_drawn():
    kind = DistributedTensorType("bf16", ["batch", 8], make_mesh({"dp": 2}), [Sharded(0)])
    assert str(visualize(kind)).splitlines() == [
        "bf16[batch@dp, 8] on dp=2",
        "┌───┐",
        "│ 0 │",
        "├───┤",
        "│ 1 │",
        "└───┘",
    ]


def test_a_plan_shows_who_sends_to_whom():
    mesh = make_mesh({"tp": 2})
    plan = plan_layouts(Layout(mesh, (("tp",), ())), Layout(mesh, ((), ("tp",))), (8, 8), 4)
    text = str(visualize(plan))
    assert "who sends how much to whom" in text
    assert [line.split() for line in text.splitlines()[-2:]] == [["0", "64", "B"], ["1", "64", "B"]]
    assert "64 B" in plan._repr_html_()
    nothing = plan_layouts(plan.source, plan.source, (8, 8), 4)
    assert "who sends" not in str(visualize(nothing)) + nothing._repr_html_()


def test_a_terminal_gets_colours_and_a_file_does_not():
    picture = visualize(NamedMapping(make_mesh({"a": 2}), P("a")), (4,))
    terminal = Console(force_terminal=True, color_system="truecolor", width=80)
    with terminal.capture() as capture:
        terminal.print(picture)
    assert "\x1b[30;48;2;" in capture.get()
    assert "\x1b" not in str(picture)


def test_print_colours_where_the_output_is_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[30;48;2;" in str(visualize(NamedMapping(make_mesh({"a": 2}), P("a")), (4,)))


def test_a_notebook_shows_the_values_and_who_holds_them():
    x = weft.shard(torch.arange(4), make_mesh({"dp": 2}), P("dp"))
    shown = ElementTree.fromstring(f"<div>{x._repr_html_()}</div>")
    assert shown.find("pre").text.splitlines() == ["Tensor(i64[4@dp] on dp=2)", "[0, 1, 2, 3]"]
    assert [cell.text for cell in shown.iter("td")] == ["0", "1"]
    assert "<table" not in weft.ones(2)._repr_html_()


@pytest.mark.parametrize("x", ["dp", 3, None, [1, 2]])
def test_what_cannot_be_drawn_is_told(x):
    with pytest.raises(TypeError, match="visualize draws a tensor, a mapping, a mesh, a plan or a schedule, but got "):
        visualize(x)


def test_a_shape_of_another_rank_is_told():
    with pytest.raises(ValueError, match=r"the layout \(a\) is for 1 dims, but the shape \(2, 3\) has 2"):
        visualize(Layout(make_mesh({"a": 2}), (("a",),)), (2, 3))


def test_a_plan_has_a_picture_without_torch():
    code = "import sys, weft; print(hasattr(weft.Plan, '_repr_html_'), 'torch' in sys.modules, 'rich' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True False False\n"
