"""What a mesh is made of, checked: the names and sizes of its axes, and its devices."""

from __future__ import annotations

import math

from ..devices import Device

__all__ = ["check_axis_names", "check_devices", "check_mesh_shape"]


def check_axis_names(names: tuple[str, ...]) -> None:
    """Raises unless there are names, each a word, each once."""
    if not names:
        raise ValueError("a mesh needs at least one axis: use DeviceMesh.single(device) for one device")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a mesh axis name is a string, but got {name!r} in {names!r}: use for instance 'dp'")
        if not name:
            raise ValueError(f"a mesh axis name is empty in {names!r}: name every axis, for instance 'dp'")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"mesh axis name {twice!r} stands twice in {names!r}: every axis needs its own name")


def check_mesh_shape(shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Raises unless every axis has one size, 1 or more."""
    if len(shape) != len(names):
        raise ValueError(
            f"a mesh needs one name per axis, but mesh_shape {shape!r} has {len(shape)} and axis_names {names!r} "
            f"has {len(names)}: give as many names as sizes"
        )
    for name, size in zip(names, shape, strict=True):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"the size of mesh axis {name!r} is a whole number, but got {size!r}: use for instance 2")
        if size < 1:
            raise ValueError(
                f"mesh axis {name!r} has size {size}: every axis needs size 1 or more, so drop it or set it to 1"
            )


def check_devices(devices: tuple[Device, ...], shape: tuple[int, ...]) -> None:
    """Raises unless there is a device for each slot: all different, or one for all."""
    for device in devices:
        if not isinstance(device, Device):
            raise TypeError(f"a mesh is made of devices, but got {device!r}: use CPU(0) or Accelerator(0)")
    needed = math.prod(shape)
    if len(devices) != needed:
        sizes = " × ".join(map(str, shape))
        raise ValueError(
            f"mesh_shape {shape!r} needs {sizes} = {needed} devices, but got {len(devices)}: change the shape or the devices"
        )
    distinct = len(set(devices))
    if distinct not in (1, len(devices)):
        twice = next(d for d in devices if devices.count(d) > 1)
        raise ValueError(
            f"devices are partly repeated: {twice!r} stands {devices.count(twice)} times among {len(devices)}. "
            "Use every device once, or one device for all slots (a simulated mesh)"
        )
