"""Whole states at once: a model or an optimizer goes from one mesh to another, in other layouts, dtypes and names.

>>> import torch, weft
>>> from weft import NamedMapping, P
>>> trainer, server = weft.make_mesh({"dp": 4}), weft.make_mesh({"tp": 2})
>>> model = weft.nn.shard_module(torch.nn.Linear(8, 8), trainer, {"*": P("dp")})
>>> served = weft.transfer_state(model, {"weight": NamedMapping(server, P("tp", None))}, torch.bfloat16)
>>> served["weight"].mapping.spec, served["bias"].dtype
(P('tp', None), torch.bfloat16)
"""

from ..planning.states import StatePlan
from .planning import plan_state
from .renaming import Fused
from .transferring import transfer_state

__all__ = ["Fused", "StatePlan", "plan_state", "transfer_state"]
