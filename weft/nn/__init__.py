"""Modules on a mesh: parameters are laid out by name, and training goes on as in plain torch.

>>> import torch, weft
>>> from weft import P
>>> mesh = weft.make_mesh({"dp": 2, "tp": 4})
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
>>> model = weft.nn.shard_module(model, mesh, {"0.*": P("tp"), "2.weight": P(None, "tp")})
>>> model[0].weight.mapping.spec, weft.nn.sharding_report(model).unmatched
(P('tp'), ('2.bias',))
"""

from .autoshard import autoshard
from .autoshard_choice import AutoshardChoice, ChosenLayout
from .fully_sharded.fully_shard import fully_shard, no_sync
from .pipelines.pipeline import Pipeline, pipeline
from .report import ShardingReport, sharding_report
from .shard_activations import shard_activations
from .shard_cache import shard_cache
from .shard_module import shard_module
from .shard_optimizer import shard_optimizer

__all__ = [
    "AutoshardChoice",
    "ChosenLayout",
    "Pipeline",
    "ShardingReport",
    "autoshard",
    "fully_shard",
    "no_sync",
    "pipeline",
    "shard_activations",
    "shard_cache",
    "shard_module",
    "shard_optimizer",
    "sharding_report",
]
