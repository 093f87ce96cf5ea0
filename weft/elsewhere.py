"""Names that other libraries have for what is here: whoever asks for one is told what it is called here."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["NAMES", "CalledElsewhere", "called_here"]

NAMES = {
    "ColwiseParallel": 'P("tp") for the weight and bias of a Linear, in weft.nn.shard_module',
    "CommDebugMode": "weft.comm_log()",
    "DTensor": "weft.Tensor",
    "Mesh": "weft.DeviceMesh, or weft.make_mesh",
    "NamedSharding": "weft.NamedMapping",
    "PartitionSpec": "weft.P",
    "Replicate": "weft.Replicated",
    "RowwiseParallel": 'P(None, "tp") for the weight of a Linear, in weft.nn.shard_module',
    "Shard": "weft.Sharded",
    "autoshard": "weft.nn.autoshard",
    "axis_size": "mesh.axis_size(name)",
    "device_put": "weft.shard, or weft.to_device",
    "distribute_module": "weft.nn.shard_module",
    "distribute_tensor": "weft.shard",
    "fully_shard": "weft.nn.fully_shard",
    "init_device_mesh": "weft.make_mesh",
    "parallelize_module": "weft.nn.shard_module",
    "pipeline": "weft.nn.pipeline",
    "pmax": 'weft.all_reduce(x, "max", axis)',
    "pmean": 'weft.all_reduce(x, "mean", axis)',
    "psum": 'weft.all_reduce(x, "sum", axis)',
    "psum_scatter": "weft.reduce_scatter",
    "register_sharding": "weft.register_rule",
    "set_mesh": "weft.mesh_context",
    "shard_map": "weft.local_map",
    "shard_module": "weft.nn.shard_module",
    "visualize_array_sharding": "weft.visualize",
    "visualize_sharding": "weft.visualize",
    "with_sharding_constraint": "weft.shard",
}


def called_here(name: str) -> str:
    """What to add to the message that a module has no such name, or nothing.

    >>> called_here("Shard")
    ': here it is weft.Sharded'
    """
    return f": here it is {NAMES[name]}" if name in NAMES else ""


class CalledElsewhere:
    """An attribute that a class does not have, as `hasattr` says too, and that users of other libraries ask for."""

    __slots__ = ("_here", "_name")

    def __init__(self, here: str) -> None:
        self._here = here
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}: here it is {self._here}")
