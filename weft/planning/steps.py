"""The kinds of steps that plans are made of.

All of them can be executed from the boxes of their two layouts alone. A *group* is the slots that differ only
along the step's `axes`, in the order in which these are named.

| kind            | what a device has afterwards                                                      |
|-----------------|-----------------------------------------------------------------------------------|
| local_slice     | its target box, cut from its source box                                           |
| fill_partial    | what it holds of its target box if it `keeps` it, the neutral element elsewhere   |
| all_gather      | its target box, the union of the source boxes of its group                        |
| permute         | the whole shard of one other device                                               |
| all_to_all      | what each member of its group holds of its target box                             |
| exchange        | the boxes of `step.receives(slot)`                                                |
| all_reduce      | the reduction of the source boxes of its group, which are one and the same        |
| reduce_scatter  | the reduction of its target box, a part of its source box, over its group         |
| reduce_exchange | the boxes that owners reduced: `step.owners`, a `Reduction`                       |
| reduce_across   | the boxes of `step.work`, on another mesh                                         |

An exchange, reduce_exchange or reduce_across after which a reduction is pending that was not (`step.begun`) multiplies what it
brings by `step.scale` and leaves the neutral element of `step.neutral` where it brings nothing.
"""

from .across.reduce_across import ReduceAcross
from .moving_steps import AllGather, AllToAll, Exchange, LocalSlice, Permute
from .reducing_steps import AllReduce, FillPartial, ReduceExchange, ReduceScatter
from .step import Bytes, Step, dual, register, step_between

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Bytes",
    "Exchange",
    "FillPartial",
    "LocalSlice",
    "Permute",
    "ReduceAcross",
    "ReduceExchange",
    "ReduceScatter",
    "Step",
    "dual",
    "step_between",
]

register(
    LocalSlice,
    FillPartial,
    AllGather,
    Permute,
    AllToAll,
    AllReduce,
    ReduceScatter,
    Exchange,
    ReduceExchange,
    ReduceAcross,
)  # the more special first
