"""Weft: sharded tensors for PyTorch.

One `weft.Tensor` is a whole tensor laid out over a mesh of devices.

>>> import torch, weft
>>> from weft import P
>>> mesh = weft.make_mesh({"dp": 2, "tp": 4})
>>> x = weft.shard(torch.ones(512, 1024), mesh, P("dp", None))
>>> w = weft.shard(torch.ones(1024, 4096), mesh, P(None, "tp"))
>>> (x @ w).relu()
Tensor(f32[512@dp, 4096@tp] on dp=2 × tp=4)
"""

from importlib import import_module
from types import ModuleType

from .elsewhere import called_here

__version__ = "0.1.0"

_WORDS = {
    "devices": "Accelerator CPU Device local_devices",
    "errors": "ConversionError MismatchError PaperError PlanError ReshardError ScheduleError WeftError",
    "sharding": (
        "DeviceMapping DeviceMesh DimSpec DistributedBufferType DistributedTensorType DistributedType NamedMapping P Partial Placement "
        "PlacementMapping ReduceOp Replicated Sharded SpecEntry TensorLayout make_mesh mesh_context"
    ),
    "sharding.mapping": "ShardingSpec",
    "planning": "Link Plan Topology current_topology plan use_topology",
    "inspect.explain": "explain",
    "inspect.visualize": "visualize",
}
_TORCH = {
    "runtime.machine": "accelerator_count",
    "runtime.memory.host_memory": "empty_cache",
    "tensor": "Tensor",
    "tensor.collectives": "all_gather all_reduce all_to_all ppermute reduce_scatter",
    "tensor.movements": "accelerator cpu distributed_broadcast gpu reshard shard to_device transfer_to",
    "tensor.creation": (
        "arange empty empty_like eye from_local full full_like ones ones_like rand rand_like randint randn randn_like zeros zeros_like"
    ),
    "tensor.process_local": "from_process_local",
    "watch.comm_log": "comm_log",
    "local.local_map": "axis_index local_map",
    "watch.policy": "DriftWarning ReshardWarning reshard_policy",
    "rules.registry": "register_rule",
    "engine.strategy": "prefer",
    "distributed": "on_main",
    "inspect.op_explanation": "explain_op",
    "inspect.profiling": "profile",
    "inspect.trace": "trace",
    "graph.recording.capture": "capture",
    "state": "Fused StatePlan plan_state transfer_state",
    "paper.dryrun": "dryrun",
    "paper.machine": "Machine",
    "paper.values": "assume",
}
# What a notebook shows of plans comes from a layer below theirs, so it is attached from here.
_PICTURES = {"planning": "drawing.html", "schedules": "drawing.schedules"}
_MODULES = (
    "checkpoint",
    "data",
    "devices",
    "distributed",
    "errors",
    "graph",
    "inspect",
    "kernels",
    "nn",
    "ops",
    "planning",
    "schedules",
    "sharding",
    "state",
    "tensor",
)
_HOME = {name: module for table in (_WORDS, _TORCH) for module, names in table.items() for name in names.split()}

__all__ = sorted(_HOME)  # noqa: PLE0605 - built from the tables above


def __getattr__(name: str) -> object:
    """Imports what a name needs when it is first touched, so that the words alone never import torch."""
    if name in _HOME:
        if name in ("make_mesh", "local_devices"):
            import_module("weft.runtime.machine")
        value = getattr(_loaded(_HOME[name]), name)
        if name in _TORCH_NAMES:
            import_module("weft.tensor")
        globals()[name] = value
        return value
    if name in _MODULES:
        return _loaded(name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}{called_here(name)}")


def _loaded(name: str) -> ModuleType:
    module = import_module(f"weft.{name}")
    picture = _PICTURES.get(name.partition(".")[0])
    if picture:
        import_module(f"weft.{picture}")
    return module


_TORCH_NAMES = frozenset(name for names in _TORCH.values() for name in names.split())


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
