"""Senders and receivers agree, near holders come first, and replicas share the work."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings

from weft.devices import CPU
from weft.planning import Topology, receives, sends
from weft.sharding import DeviceMesh, make_mesh
from weft.sharding.geometry import box
from weft.sharding.layout import Layout

from .strategies import crossings, transitions
from .test_bounds import laid


def agree(source: Layout, target: Layout, shape: tuple[int, ...], topology: Topology | None = None) -> None:
    arriving = Counter(
        t for s in range(target.mesh.num_devices) for t in receives(source, target, shape, s, topology=topology)
    )
    leaving = Counter(
        t for s in range(source.mesh.num_devices) for t in sends(source, target, shape, s, topology=topology)
    )
    assert arriving == leaving


@settings(max_examples=50, deadline=None)
@given(transitions())
def test_both_sides_agree_on_one_mesh(case):
    agree(*case, topology=Topology(devices_per_host=3, hosts_per_rack=2))


@settings(max_examples=50, deadline=None)
@given(crossings())
def test_both_sides_agree_across_meshes(case):
    agree(*case, topology=Topology(devices_per_host=2, hosts_per_rack=2))


@settings(max_examples=50, deadline=None)
@given(transitions())
def test_what_a_device_holds_it_takes_from_itself(case):
    source, target, shape = case
    for slot in range(source.mesh.num_devices):
        held = box(source, shape, slot)
        for transfer in receives(source, target, shape, slot):
            inside = all(a <= x and y <= b for (x, y), (a, b) in zip(transfer.box, held, strict=True))
            assert (transfer.source_slot == slot) == inside


def loads(source: Layout, target: Layout, shape: tuple[int, ...]) -> list[int]:
    given_ = []
    for slot in range(source.mesh.num_devices):
        others = [t for t in sends(source, target, shape, slot) if t.target_slot != slot or source.mesh != target.mesh]
        given_.append(sum((t.box[0][1] - t.box[0][0]) for t in others))
    return given_


def test_replicas_share_the_sending_across_meshes():
    here = make_mesh({"a": 2, "b": 4})
    there = DeviceMesh([CPU(i) for i in range(8, 16)], (8,), ("x",))
    assert set(loads(laid(here, "a"), Layout(there, ((),)), (64,))) == {64}
    assert set(loads(laid(here, ""), Layout(there, (("x",),)), (64,))) == {8}


def test_crowded_replicas_share_the_sending_on_one_mesh():
    mesh = make_mesh({"a": 2, "b": 4})
    assert max(loads(laid(mesh, "b"), laid(mesh, "a"), (64,))) == 32  # by their own coordinates it would be 48


def test_near_holders_come_first():
    here = DeviceMesh([CPU(i) for i in (0, 4)], (2,), ("a",))
    there = DeviceMesh([CPU(i) for i in (1, 5)], (2,), ("x",))
    near = Topology(devices_per_host=4)
    chosen = [
        receives(laid(here, ""), Layout(there, ((),)), (8,), slot, topology=near)[0].source_slot for slot in (0, 1)
    ]
    assert chosen == [0, 1]


def test_a_simulated_mesh_tells_its_slots_apart():
    mesh = DeviceMesh([CPU(0)] * 4, (4,), ("a",))
    assert [t.source_slot for t in receives(laid(mesh, "a"), laid(mesh, ""), (8,), 2)] == [2, 0, 1, 3]
    other = DeviceMesh([CPU(0)] * 4, (2, 2), ("x", "y"))
    assert [t.source_slot for t in receives(laid(mesh, "a"), laid(other, "x"), (8,), 3)] == [3, 2]
