"""Decisions: from a source layout, a target layout and a shape to a `Plan` that moves the fewest bytes.

>>> from weft.planning import plan_layouts
>>> from weft.sharding import make_mesh
>>> from weft.sharding.layout import Layout
>>> mesh = make_mesh({"dp": 2, "tp": 4})
>>> plan = plan_layouts(Layout(mesh, (("dp",), ("tp",))), Layout(mesh, (("tp",), ("dp",))), (8192, 8192), 4)
>>> [step.kind for step in plan.steps], plan.bytes_received.max >> 20
(['exchange'], 32)
"""

from .boxes.transfers import Transfer, receives, sends
from .costs.bounds import lower_bound
from .planner import plan
from .plans import Plan, move_cost, plan_layouts
from .steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Bytes,
    Exchange,
    FillPartial,
    LocalSlice,
    Permute,
    ReduceAcross,
    ReduceExchange,
    ReduceScatter,
    Step,
    dual,
    step_between,
)
from .topology import Link, Processor, Tier, Topology, current_topology, use_topology

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Bytes",
    "Exchange",
    "FillPartial",
    "Link",
    "LocalSlice",
    "Permute",
    "Plan",
    "Processor",
    "ReduceAcross",
    "ReduceExchange",
    "ReduceScatter",
    "Step",
    "Tier",
    "Topology",
    "Transfer",
    "current_topology",
    "dual",
    "lower_bound",
    "move_cost",
    "plan",
    "plan_layouts",
    "receives",
    "sends",
    "step_between",
    "use_topology",
]
