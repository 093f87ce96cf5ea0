"""`DeviceMesh`: an N-dimensional logical grid of devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import product
from typing import final

from ..devices import CPU, Device, first_devices
from ..during import during
from ..elsewhere import CalledElsewhere
from ..frozen import Written
from .mesh_arguments import check_axis_names, check_devices, check_mesh_shape

__all__ = ["DeviceMesh", "current_mesh", "make_mesh", "mesh_context"]

Slot = int
"""A position in a mesh: the row-major index of its coordinates."""


@final
class DeviceMesh(Written):
    """An N-dimensional logical grid of devices.

    >>> mesh = DeviceMesh([CPU(i) for i in range(8)], (2, 4), ("dp", "tp"))
    >>> mesh
    DeviceMesh([CPU(i) for i in range(8)], (2, 4), ('dp', 'tp'))
    >>> mesh.axis_size("tp"), mesh.device_coord(5, "tp"), mesh.num_devices
    (4, 1, 8)
    """

    __slots__ = ("__dict__", "__weakref__", "_hash", "axis_names", "devices", "mesh_shape")

    devices: tuple[Device, ...]
    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    _hash: int

    device_type = CalledElsewhere("mesh.devices[0]")
    get_coordinate = CalledElsewhere("mesh.coords(slot): a process may own several devices")
    get_group = CalledElsewhere(
        "not needed: weft.all_reduce and the like take names of axes; mesh.groups(axis) says who is in which"
    )
    get_local_rank = CalledElsewhere(
        "mesh.device_coord(slot, axis) of a device, weft.axis_index(axis) inside of weft.local_map, or "
        "weft.distributed.process_index()"
    )
    get_rank = CalledElsewhere("weft.distributed.process_index()")
    mesh_dim_names = CalledElsewhere("mesh.axis_names")
    size = CalledElsewhere("mesh.num_devices, or mesh.axis_size(axis)")

    def __init__(self, devices: Iterable[Device], mesh_shape: Iterable[int], axis_names: Iterable[str]) -> None:
        if isinstance(axis_names, str):
            raise TypeError(
                f"axis_names is a sequence of names, but got the string {axis_names!r}: use ({axis_names!r},)"
            )
        devices, mesh_shape, axis_names = tuple(devices), tuple(mesh_shape), tuple(axis_names)
        check_axis_names(axis_names)
        check_mesh_shape(mesh_shape, axis_names)
        check_devices(devices, mesh_shape)
        setattr_ = object.__setattr__
        setattr_(self, "devices", devices)
        setattr_(self, "mesh_shape", mesh_shape)
        setattr_(self, "axis_names", axis_names)
        setattr_(self, "_hash", hash((devices, mesh_shape, axis_names)))

    @classmethod
    def single(cls, device: Device | None = None) -> DeviceMesh:
        """A mesh of one device.

        >>> DeviceMesh.single(CPU(3)).devices
        (CPU(3),)
        """
        return cls((CPU(0) if device is None else device,), (1,), ("d",))

    @classmethod
    def default(cls) -> DeviceMesh:
        """The mesh of the innermost `mesh_context`, else a single CPU.

        >>> with mesh_context(make_mesh({"dp": 2})):
        ...     DeviceMesh.default().axis_names
        ('dp',)
        """
        return current_mesh() or cls.single()

    @property
    def ndim(self) -> int:
        """How many axes the mesh has.

        >>> make_mesh({"dp": 2, "tp": 4}).ndim
        2
        """
        return len(self.mesh_shape)

    @property
    def num_devices(self) -> int:
        """How many slots the mesh has.

        >>> make_mesh({"dp": 2, "tp": 4}).num_devices
        8
        """
        return len(self.devices)

    @property
    def shape(self) -> dict[str, int]:
        """Axis sizes by name, in mesh order.

        >>> make_mesh({"dp": 2, "tp": 4}).shape
        {'dp': 2, 'tp': 4}
        """
        return dict(zip(self.axis_names, self.mesh_shape, strict=True))

    @property
    def is_single(self) -> bool:
        """Whether the mesh has one slot.

        >>> DeviceMesh.single().is_single
        True
        """
        return len(self.devices) == 1

    @cached_property
    def is_simulated(self) -> bool:
        """Whether several slots all stand on one and the same device.

        >>> DeviceMesh([CPU(0)] * 4, (4,), ("tp",)).is_simulated
        True
        """
        return len(self.devices) > 1 and len(set(self.devices)) == 1

    @cached_property
    def slot_ids(self) -> tuple[tuple[Device, int], ...]:
        """What tells slots apart across meshes: the device, and which of its repeats."""
        if self.is_simulated:
            return tuple((device, k) for k, device in enumerate(self.devices))
        return tuple((device, 0) for device in self.devices)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """How far apart in row-major order neighbours along each axis stand."""
        return tuple(math.prod(self.mesh_shape[i + 1 :]) for i in range(self.ndim))

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """Axis name to axis index."""
        return {name: i for i, name in enumerate(self.axis_names)}

    def axis_index(self, axis: str | int) -> int:
        """The index of a mesh axis given by name or index.

        >>> make_mesh({"dp": 2, "tp": 4}).axis_index("tp")
        1
        """
        if isinstance(axis, str):
            index = self.index_of.get(axis)
            if index is None:
                raise ValueError(f"unknown mesh axis {axis!r}: this mesh has {listed(self.axis_names)}")
            return index
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(
                f"a mesh axis is a name or an index, but got {axis!r}: use one of {listed(self.axis_names)}"
            )
        if not 0 <= axis < self.ndim:
            raise IndexError(
                f"mesh axis {axis} is out of range for a mesh with {self.ndim} axes {listed(self.axis_names)}: "
                f"use an index from 0 to {self.ndim - 1}, or a name"
            )
        return axis

    def axis_size(self, axis: str | int) -> int:
        """How many devices stand along one axis.

        >>> make_mesh({"dp": 2, "tp": 4}).axis_size("tp")
        4
        """
        return self.mesh_shape[self.axis_index(axis)]

    def group_size(self, axes: Iterable[str]) -> int:
        """How many devices stand along some axes together.

        >>> make_mesh({"dp": 2, "tp": 4}).group_size(["dp", "tp"])
        8
        """
        return math.prod(map(self.axis_size, axes))

    def device_coord(self, device_index: int, axis: str | int) -> int:
        """Where the slot `device_index` stands along one axis.

        >>> make_mesh({"dp": 2, "tp": 4}).device_coord(6, "tp")
        2
        """
        self._check_slot(device_index)
        i = self.axis_index(axis)
        return device_index // self.strides[i] % self.mesh_shape[i]

    def coords(self, device_index: int) -> tuple[int, ...]:
        """The coordinates of a slot, one per axis.

        >>> make_mesh({"dp": 2, "tp": 4}).coords(6)
        (1, 2)
        """
        self._check_slot(device_index)
        return tuple(device_index // stride % size for stride, size in zip(self.strides, self.mesh_shape, strict=True))

    def slot(self, coords: Sequence[int]) -> Slot:
        """The slot at the given coordinates.

        >>> make_mesh({"dp": 2, "tp": 4}).slot((1, 2))
        6
        """
        return sum(c * s for c, s in zip(coords, self.strides, strict=True))

    def groups(self, axes: str | Iterable[str]) -> tuple[tuple[Slot, ...], ...]:
        """Which slots talk to each other along these axes, in the order the axes are named.

        >>> make_mesh({"dp": 2, "tp": 4}).groups("dp")
        ((0, 4), (1, 5), (2, 6), (3, 7))
        """
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        within = [self.axis_index(name) for name in names]
        if len(set(within)) != len(within):
            raise ValueError(f"a mesh axis is named twice in {names!r}: name each axis once")
        across = [i for i in range(self.ndim) if i not in within]

        def offsets(indices: list[int]) -> list[int]:
            ranges = [range(0, self.mesh_shape[i] * self.strides[i], self.strides[i]) for i in indices]
            return [sum(steps) for steps in product(*ranges)]

        inner = offsets(within)
        return tuple(tuple(start + step for step in inner) for start in offsets(across))

    def __getitem__(self, axes: str | tuple[str, ...]) -> DeviceMesh:
        """The submesh over these axes, at coordinate 0 of the others.

        >>> make_mesh({"dp": 2, "tp": 4})["tp"].devices
        (CPU(0), CPU(1), CPU(2), CPU(3))
        """
        names = axes if isinstance(axes, tuple) else (axes,)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(
                    f"a submesh is taken by axis names, but got {name!r}: use mesh[name] with {listed(self.axis_names)}"
                )
        slots = self.groups(names)[0]
        return DeviceMesh((self.devices[s] for s in slots), (self.axis_size(a) for a in names), names)

    def _check_slot(self, device_index: int) -> None:
        if isinstance(device_index, bool) or not isinstance(device_index, int):
            raise TypeError(f"a device index is a whole number, but got {device_index!r}: use for instance 0")
        if not 0 <= device_index < len(self.devices):
            raise IndexError(
                f"device index {device_index} is outside the mesh: it has devices 0 to {len(self.devices) - 1}"
            )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        if self._hash != other._hash or self.mesh_shape != other.mesh_shape or self.axis_names != other.axis_names:
            return False
        if self.devices is not other.devices:
            if self.devices != other.devices:
                return False
            object.__setattr__(other, "devices", self.devices)  # so that they are not compared again
        return True

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a DeviceMesh cannot change ({name!r} was set): make a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a DeviceMesh cannot change ({name!r} was deleted): make a new one")

    def __reduce__(self) -> tuple[type[DeviceMesh], tuple[object, ...]]:
        return DeviceMesh, (self.devices, self.mesh_shape, self.axis_names)

    def __repr__(self) -> str:
        return f"DeviceMesh({_shown_devices(self.devices)}, {self.mesh_shape!r}, {self.axis_names!r})"

    def __str__(self) -> str:
        return " × ".join(f"{name}={size}" for name, size in self.shape.items())


def make_mesh(
    axes: Mapping[str, int] | Sequence[int],
    axis_names: Sequence[str] | None = None,
    *,
    devices: Iterable[Device] | None = None,
) -> DeviceMesh:
    """A mesh with the given axes, over `devices` or over as many of this program's devices as it needs.

    >>> make_mesh({"dp": 2, "tp": 4}).mesh_shape
    (2, 4)
    >>> make_mesh((2, 2), ("x", "y")).axis_names
    ('x', 'y')
    """
    if isinstance(axes, Mapping):
        if axis_names is not None:
            raise TypeError(
                f"make_mesh got names twice, {dict(axes)!r} and {axis_names!r}: give either a mapping or both sequences"
            )
        sizes, names = tuple(axes.values()), tuple(axes)
    elif isinstance(axes, (str, int)) or not isinstance(axes, Iterable):
        raise TypeError(
            f"make_mesh takes the axes by name, but got {axes!r}{'' if axis_names is None else f' and {axis_names!r}'}: "
            f"use {_example_call(axes, axis_names)}"
        )
    else:
        if axis_names is None:
            raise TypeError(
                f"make_mesh needs a name for each axis of {tuple(axes)!r}: use make_mesh({{'dp': 2, 'tp': 4}})"
            )
        sizes, names = tuple(axes), tuple(axis_names)
    check_axis_names(names)
    check_mesh_shape(sizes, names)
    if devices is None:
        return DeviceMesh(first_devices(math.prod(sizes)), sizes, names)
    return DeviceMesh(devices, sizes, names)


def _example_call(axes: object, axis_names: object) -> str:
    """A call of `make_mesh` that is right, with the numbers of one that is not."""
    sizes = [size for size in (axes, axis_names) if isinstance(size, int)] or [2, 4]
    return f"make_mesh({dict(zip(('dp', 'tp'), sizes, strict=False))!r})"


_current: ContextVar[DeviceMesh | None] = ContextVar("weft_mesh", default=None)


def current_mesh() -> DeviceMesh | None:
    """The mesh of the innermost `mesh_context`, or `None`.

    >>> current_mesh() is None
    True
    """
    return _current.get()


@contextmanager
def mesh_context(mesh: DeviceMesh) -> Iterator[DeviceMesh]:
    """Makes `mesh` the default mesh inside the block.

    >>> with mesh_context(make_mesh({"tp": 2})) as mesh:
    ...     current_mesh() == mesh
    True
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh_context needs a DeviceMesh, but got {mesh!r}: use make_mesh({{'dp': 2}})")
    with during(_current, mesh):
        yield mesh


def listed(names: Iterable[str]) -> str:
    """Names as they stand in an error.

    >>> listed(["dp", "tp"])
    "'dp', 'tp'"
    """
    return ", ".join(repr(name) for name in names) or "no axes"


def _shown_devices(devices: tuple[Device, ...]) -> str:
    first = devices[0]
    kind = type(first).__name__
    if len(devices) > 1 and len(set(devices)) == 1:
        return f"[{first!r}] * {len(devices)}"
    if len(devices) > 2 and all(d == type(first)(first.id + k) for k, d in enumerate(devices)):
        if first.id == 0:
            return f"[{kind}(i) for i in range({len(devices)})]"
        return f"[{kind}(i) for i in range({first.id}, {first.id + len(devices)})]"
    return repr(list(devices))
