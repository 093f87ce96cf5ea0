"""Meshes: coordinates, groups, submeshes, and the text of every refusal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharding.strategies import meshes
from weft.devices import CPU, Accelerator
from weft.sharding import DeviceMesh, make_mesh, mesh_context
from weft.sharding.mesh import current_mesh

MESH = make_mesh({"dp": 2, "tp": 4})


@given(meshes())
def test_slots_and_coordinates_are_the_same_thing(mesh):
    for slot in range(mesh.num_devices):
        coords = mesh.coords(slot)
        assert mesh.slot(coords) == slot
        for axis, name in enumerate(mesh.axis_names):
            assert mesh.device_coord(slot, name) == mesh.device_coord(slot, axis) == coords[axis]
            assert 0 <= coords[axis] < mesh.axis_size(name)


@given(meshes(), st.data())
def test_groups_partition_the_mesh(mesh, data):
    axes = data.draw(st.permutations(mesh.axis_names))[: data.draw(st.integers(0, mesh.ndim))]
    groups = mesh.groups(axes)
    assert sorted(slot for group in groups for slot in group) == list(range(mesh.num_devices))
    others = [axis for axis in mesh.axis_names if axis not in axes]
    for group in groups:
        assert len(group) == math.prod(mesh.axis_size(axis) for axis in axes)
        for axis in others:
            assert len({mesh.device_coord(slot, axis) for slot in group}) == 1
        # Within a group, the first axis named is the major one.
        inner = [tuple(mesh.device_coord(slot, axis) for axis in axes) for slot in group]
        assert inner == sorted(inner)


@given(meshes(), st.data())
def test_a_submesh_is_the_first_group(mesh, data):
    axes = tuple(data.draw(st.permutations(mesh.axis_names))[: data.draw(st.integers(1, mesh.ndim))])
    part = mesh[axes]
    assert part.axis_names == axes
    assert part.mesh_shape == tuple(mesh.axis_size(axis) for axis in axes)
    assert part.devices == tuple(mesh.devices[slot] for slot in mesh.groups(axes)[0])


def test_what_a_mesh_says_of_itself():
    assert (MESH.ndim, MESH.num_devices, MESH.mesh_shape, MESH.axis_names) == (2, 8, (2, 4), ("dp", "tp"))
    assert MESH.axis_size("tp") == MESH.axis_size(1) == 4
    assert MESH.shape == {"dp": 2, "tp": 4}
    assert str(MESH) == "dp=2 × tp=4"
    assert repr(MESH) == "DeviceMesh([CPU(i) for i in range(8)], (2, 4), ('dp', 'tp'))"
    assert MESH["tp"] == make_mesh({"tp": 4})
    assert MESH["tp", "dp"].devices == tuple(CPU(i) for i in (0, 4, 1, 5, 2, 6, 3, 7))
    assert MESH.groups("dp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert not MESH.is_single
    assert not MESH.is_simulated


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ([CPU(0)], "[CPU(0)]"),
        ([CPU(0)] * 4, "[CPU(0)] * 4"),
        ([Accelerator(i) for i in range(4)], "[Accelerator(i) for i in range(4)]"),
        ([CPU(i) for i in range(2, 6)], "[CPU(i) for i in range(2, 6)]"),
        ([CPU(1), CPU(0)], "[CPU(1), CPU(0)]"),
        ([CPU(0), Accelerator(0)], "[CPU(0), Accelerator(0)]"),
        ([CPU(0), CPU(2), CPU(1)], "[CPU(0), CPU(2), CPU(1)]"),
    ],
)
def test_a_mesh_prints_its_devices_briefly(devices, shown):
    mesh = DeviceMesh(devices, (len(devices),), ("x",))
    assert repr(mesh) == f"DeviceMesh({shown}, ({len(devices)},), ('x',))"
    assert eval(repr(mesh)) == mesh


def test_one_device_and_simulated_meshes():
    assert DeviceMesh.single(Accelerator(3)).devices == (Accelerator(3),)
    assert DeviceMesh.single().is_single
    assert not DeviceMesh.single().is_simulated
    assert DeviceMesh([CPU(0)] * 4, (2, 2), ("x", "y")).is_simulated
    assert make_mesh({"x": 1}).is_single


def test_the_default_mesh_is_the_innermost_context():
    assert current_mesh() is None
    assert DeviceMesh.default() == DeviceMesh.single()
    with mesh_context(MESH) as outer:
        assert outer is DeviceMesh.default() is MESH
        with mesh_context(MESH["tp"]):
            assert DeviceMesh.default() == MESH["tp"]
        assert DeviceMesh.default() is MESH
    assert current_mesh() is None
    with pytest.raises(KeyError), mesh_context(MESH):
        raise KeyError
    assert current_mesh() is None


def test_make_mesh_takes_devices_and_sequences():
    devices = [Accelerator(i) for i in range(6)]
    assert make_mesh({"x": 2, "y": 3}, devices=devices) == DeviceMesh(devices, (2, 3), ("x", "y"))
    assert make_mesh((2, 3), ("x", "y"), devices=devices) == DeviceMesh(devices, (2, 3), ("x", "y"))


CPUS = [CPU(i) for i in range(8)]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: DeviceMesh(CPUS, (2, 3), ("dp", "tp")),
            ValueError,
            "mesh_shape (2, 3) needs 2 × 3 = 6 devices, but got 8: change the shape or the devices",
        ),
        (
            lambda: DeviceMesh(CPUS, (2, 4), ("dp", "dp")),
            ValueError,
            "mesh axis name 'dp' stands twice in ('dp', 'dp'): every axis needs its own name",
        ),
        (
            lambda: DeviceMesh(CPUS, (2, 4), ("dp", "")),
            ValueError,
            "a mesh axis name is empty in ('dp', ''): name every axis, for instance 'dp'",
        ),
        (
            lambda: DeviceMesh(CPUS, (2, 4), ("dp", 3)),
            TypeError,
            "a mesh axis name is a string, but got 3 in ('dp', 3): use for instance 'dp'",
        ),
        (
            lambda: DeviceMesh(CPUS, (8,), "dp"),
            TypeError,
            "axis_names is a sequence of names, but got the string 'dp': use ('dp',)",
        ),
        (
            lambda: DeviceMesh(CPUS, (2, 4), ("dp",)),
            ValueError,
            "a mesh needs one name per axis, but mesh_shape (2, 4) has 2 and axis_names ('dp',) has 1: give as many names as sizes",
        ),
        (
            lambda: DeviceMesh([], (0, 4), ("dp", "tp")),
            ValueError,
            "mesh axis 'dp' has size 0: every axis needs size 1 or more, so drop it or set it to 1",
        ),
        (
            lambda: DeviceMesh(CPUS, (-2, -4), ("dp", "tp")),
            ValueError,
            "mesh axis 'dp' has size -2: every axis needs size 1 or more",
        ),
        (
            lambda: DeviceMesh(CPUS, (2.0, 4), ("dp", "tp")),
            TypeError,
            "the size of mesh axis 'dp' is a whole number, but got 2.0: use for instance 2",
        ),
        (
            lambda: DeviceMesh(CPUS, (True, 8), ("dp", "tp")),
            TypeError,
            "the size of mesh axis 'dp' is a whole number, but got True",
        ),
        (
            lambda: DeviceMesh([], (), ()),
            ValueError,
            "a mesh needs at least one axis: use DeviceMesh.single(device) for one device",
        ),
        (
            lambda: DeviceMesh([CPU(0), CPU(1), CPU(0), CPU(2)], (4,), ("dp",)),
            ValueError,
            "devices are partly repeated: CPU(0) stands 2 times among 4. "
            "Use every device once, or one device for all slots (a simulated mesh)",
        ),
        (
            lambda: DeviceMesh(["cpu"], (1,), ("dp",)),
            TypeError,
            "a mesh is made of devices, but got 'cpu': use CPU(0) or Accelerator(0)",
        ),
        (lambda: make_mesh({"dp": 0}), ValueError, "mesh axis 'dp' has size 0"),
        (lambda: make_mesh({3: 2}), TypeError, "a mesh axis name is a string, but got 3"),
        (lambda: make_mesh({"dp": 2}, devices=CPUS), ValueError, "mesh_shape (2,) needs 2 = 2 devices, but got 8"),
        (
            lambda: make_mesh(2, 4),
            TypeError,
            "make_mesh takes the axes by name, but got 2 and 4: use make_mesh({'dp': 2, 'tp': 4})",
        ),
        (lambda: make_mesh(8), TypeError, "make_mesh takes the axes by name, but got 8: use make_mesh({'dp': 8})"),
        (
            lambda: make_mesh("dp", 8),
            TypeError,
            "make_mesh takes the axes by name, but got 'dp' and 8: use make_mesh({'dp': 8})",
        ),
        (
            lambda: make_mesh((2, 4)),
            TypeError,
            "make_mesh needs a name for each axis of (2, 4): use make_mesh({'dp': 2, 'tp': 4})",
        ),
        (
            lambda: make_mesh({"dp": 2}, ["x"]),
            TypeError,
            "make_mesh got names twice, {'dp': 2} and ['x']: give either a mapping or both sequences",
        ),
        (lambda: MESH.axis_size("pp"), ValueError, "unknown mesh axis 'pp': this mesh has 'dp', 'tp'"),
        (lambda: MESH["pp"], ValueError, "unknown mesh axis 'pp': this mesh has 'dp', 'tp'"),
        (lambda: MESH[0], TypeError, "a submesh is taken by axis names, but got 0: use mesh[name] with 'dp', 'tp'"),
        (lambda: MESH["dp", "dp"], ValueError, "a mesh axis is named twice in ('dp', 'dp'): name each axis once"),
        (lambda: MESH.groups("pp"), ValueError, "unknown mesh axis 'pp': this mesh has 'dp', 'tp'"),
        (lambda: MESH.groups(["dp", "dp"]), ValueError, "a mesh axis is named twice in ('dp', 'dp')"),
        (
            lambda: MESH.axis_size(2),
            IndexError,
            "mesh axis 2 is out of range for a mesh with 2 axes 'dp', 'tp': use an index from 0 to 1, or a name",
        ),
        (lambda: MESH.axis_size(-1), IndexError, "mesh axis -1 is out of range for a mesh with 2 axes"),
        (lambda: MESH.device_coord(0, -1), IndexError, "mesh axis -1 is out of range for a mesh with 2 axes"),
        (
            lambda: MESH.axis_size(1.5),
            TypeError,
            "a mesh axis is a name or an index, but got 1.5: use one of 'dp', 'tp'",
        ),
        (lambda: MESH.device_coord(8, "dp"), IndexError, "device index 8 is outside the mesh: it has devices 0 to 7"),
        (
            lambda: MESH.device_coord("0", "dp"),
            TypeError,
            "a device index is a whole number, but got '0': use for instance 0",
        ),
        (
            lambda: mesh_context({"dp": 2}).__enter__(),
            TypeError,
            "mesh_context needs a DeviceMesh, but got {'dp': 2}: use make_mesh({'dp': 2})",
        ),
    ],
)
def test_a_bad_mesh_says_what_is_wrong(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)
