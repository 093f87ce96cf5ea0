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
from .dcp_writing import save_dcp
from .errors import CheckpointError
from .keeper import Keeper
from .loading import load
from .pretrained import from_pretrained, save_pretrained
from .recovering import recover
from .saving import save
from .verifying import Verified, verify
from .whole import full_state_dict

__all__ = [
    "CheckpointError",
    "Keeper",
    "Saving",
    "Verified",
    "from_pretrained",
    "full_state_dict",
    "load",
    "recover",
    "save",
    "save_dcp",
    "save_pretrained",
    "verify",
]
