"""Checkpoints: saved in one layout, loaded in any other, as safetensors files.

>>> import torch, weft
>>> from weft import P
>>> mesh = weft.make_mesh({"dp": 2, "tp": 4})
>>> x = weft.shard(torch.arange(8.0), mesh, P("tp"))
>>> weft.checkpoint.save({"x": x, "step": 3}, "checkpoint")
>>> state = weft.checkpoint.load("checkpoint", {"x": weft.NamedMapping(mesh, P(("tp", "dp"))), "step": None})
>>> state["x"].mapping.spec, state["x"].sum().item(), state["step"]
(P(('tp', 'dp')), 28.0, 3)
"""

from .background import Saving
from .errors import CheckpointError
from .files.verifying import Verified, verify
from .foreign.dcp_writing import save_dcp
from .foreign.pretrained import from_pretrained, save_pretrained
from .foreign.whole import full_state_dict
from .keeper import Keeper
from .loading import load
from .plans import CheckpointPlan, plan_load, plan_save
from .recovering import recover
from .saving import save

__all__ = [
    "CheckpointError",
    "CheckpointPlan",
    "Keeper",
    "Saving",
    "Verified",
    "from_pretrained",
    "full_state_dict",
    "load",
    "plan_load",
    "plan_save",
    "recover",
    "save",
    "save_dcp",
    "save_pretrained",
    "verify",
]
