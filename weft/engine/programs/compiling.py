"""What `torch.compile` and Weft have to know of each other.

Weft's own functions are called while a program is traced, not traced into. Those that users call to communicate stand in the
traced program as they are, and so do the values that they take: meshes, mappings, specs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ...caches import cached
from ...devices import Device
from ...frozen import Written
from ...runtime.machine import forget_with_residences
from ...runtime.processes.mesh_processes import leaves_out, owners_of
from ...sharding.mapping import DeviceMapping
from ...sharding.mesh import DeviceMesh
from ...sharding.named import DimSpec, P
from ...sharding.placements import Placement
from ..sharded import ShardedTensor
from .leaves import compare_at_once
from .taking_apart import read_strides_behind_sizes, take_apart_at_once

__all__ = ["announce", "check_compilable", "left_mode", "stands_in_programs", "state_of_code"]

_CALLED = (
    "weft.sharding",
    "weft.planning",
    "weft.rules",
    "weft.runtime",
    "weft.watch",
    "weft.engine",
    "weft.handlers",
    "weft.tensor",
    "weft.local.lane_communication",
    "weft.local.local_map",
    "weft.nn.fully_sharded",
    "weft.nn.gathering",
)
"""Not `weft.graph`, which generates what is made to be compiled, nor `weft.local.untraced`, which says what cannot be."""

_VALUES = (Device, DeviceMesh, DeviceMapping, DimSpec, P, Placement)
_HAS_VALUES = torch.__version__ >= "2.13"
"""Whether traced programs can have values of others in them; where not, the graph breaks at functions that take them."""

Function = TypeVar("Function", bound=Callable[..., object])

_in_programs: list[Callable[..., object]] = []
"""Functions that dynamo has not been told of. Bound: the functions that are marked. Cleared: by `announce`."""
_announced = False


def announce() -> bool:
    """Tells dynamo, once it is there, what to do with Weft's functions; importing it only for that takes seconds.

    Whether functions that are marked stand in traced programs.
    """
    global _announced  # noqa: PLW0603 - said once per process
    if _announced:
        return _HAS_VALUES
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo, "trace_rules"):
        _announced = True
        for package in _CALLED:
            dynamo.trace_rules.add(package)
        if not _HAS_VALUES:  # it asks sizes that change for their memory, to see whether it can be given up
            torch._functorch.config.donated_buffer = False
            take_apart_at_once(sys.modules["torch._functorch._aot_autograd.runtime_wrappers"])
            read_strides_behind_sizes(sys.modules["torch._functorch._aot_autograd.schemas"].SubclassCreationMeta)
        compare_at_once(sys.modules["torch._dynamo.guards"])
        while _in_programs:
            _tell(_in_programs.pop())
        _open_pieces(dynamo.variables.builder)
    return _HAS_VALUES


def _tell(function: Callable[..., object]) -> None:
    """What torch._dynamo.nonstrict_trace does, without another function around it."""
    if _HAS_VALUES:
        rules = sys.modules["torch._dynamo"].trace_rules
        rules._allowed_callable_ids.add(id(function))
        rules._nonstrict_trace_callable_ids.add(id(function))


def _open_pieces(builder: ModuleType) -> None:
    """Lets dynamo leave sizes of pieces open wherever it leaves those of the whole open.

    It looks at each piece by itself, and takes a size for settled that it has seen twice: of five rows and of six, the first of two devices
    has three. The next batch would be compiled anew for that, in each process at another time.
    """
    choose = getattr(builder, "_automatic_dynamic", None)
    if choose is None:
        return

    @functools.wraps(choose)
    def chosen(x: torch.Tensor, *args: object, **kwargs: object) -> object:
        found = choose(x, *args, **kwargs)
        if isinstance(x, ShardedTensor):
            for piece in getattr(found, "inner_contexts", {}).values():
                pairs = zip(piece.dynamic_sizes, found.dynamic_sizes, strict=True)
                piece.dynamic_sizes[:] = [whole if size is builder.DimDynamic.STATIC else size for size, whole in pairs]
        return found

    vars(builder)["_automatic_dynamic"] = chosen


announce._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch._dynamo.assume_constant_result does


@cached(1)
def state_of_code() -> tuple[int, int]:
    """What tells one state of this package from another, so that programs compiled by an older one are not taken for those of this.

    >>> state_of_code() == state_of_code()
    True
    """
    written = [file.stat().st_mtime_ns for file in Path(__file__).parents[2].rglob("*.py")]
    return len(written), max(written, default=0)


def left_mode(tensors: Iterable[torch.Tensor]) -> FakeTensorMode | None:
    """The mode that a compiler has left although tensors stand for others there: it makes views of them anew, as its inputs were made."""
    for x in tensors:
        pieces = x._value.__dict__.get("pieces") if isinstance(x, ShardedTensor) else None
        if pieces and isinstance(pieces[0], FakeTensor):
            return pieces[0].fake_mode
    return None


@cached(1024, cleared_by=forget_with_residences)
def check_compilable(mesh: DeviceMesh) -> None:
    """Raises where tensors have pieces in some processes only: compiled programs are written with pieces, and need some."""
    if leaves_out(mesh):
        owners = ", ".join(map(str, owners_of(mesh)))
        raise NotImplementedError(
            f"torch.compile needs a part of each tensor in every process, but of the mesh {mesh} "
            f"only the processes {owners} have a device. Compile the parts of the program that each process takes part in, or lay "
            "the tensor out on a mesh of all processes"
        )


def stands_in_programs(function: Function) -> Function:
    """Lets a function be called in compiled code, and its call be a node of the traced program."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        if torch.compiler.is_dynamo_compiling() and announce():
            return call(*args, **kwargs)  # which is known by now, and not traced into
        return function(*args, **kwargs)

    if _announced:  # a module that is loaded while a program is traced
        _tell(call)
    else:
        _in_programs.append(call)
    return cast(Function, call)


def _let_stand(kind: type[Written]) -> None:
    """Lets values of a kind stand in traced programs; what they are asked there is asked of the value itself."""
    from torch._library import opaque_object

    asked = [name for name in dir(kind) if hasattr(kind, name) and (not name.startswith("_") or name in _ASKED)]
    members = dict.fromkeys(asked, opaque_object.MemberType.USE_REAL)
    if hasattr(opaque_object, "register_custom_class"):  # its name since torch 2.15
        opaque_object.register_custom_class(kind, typ="constant", members=members)
    else:
        opaque_object.register_opaque_type(kind, typ="value", members=members)


_ASKED = ("__contains__", "__eq__", "__getitem__", "__len__", "__ne__", "__str__", "__repr__")

if _HAS_VALUES:
    for each in _VALUES:
        _let_stand(each)
