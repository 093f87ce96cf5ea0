"""What Adam and AdamW collect for a step, read at once.

Their classes ask each parameter three times for its gradient, whether it is complex, and whether the gradient is sparse: most of the
host's time of a fused step. From the second step on all that they collect is in states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import torch
from torch import optim

from ...engine.held_gradient import held
from ...engine.sharded import ShardedTensor

__all__ = ["collect_known"]

_is_sparse: Callable[[torch.Tensor], bool] = vars(torch._C.TensorBase)["is_sparse"].__get__
_OF_STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
"""What is collected after parameters and gradients, each where the state of every parameter has it."""


def collect_known(optimizer: optim.Optimizer, group: dict[str, object], lists: Sequence[list[torch.Tensor]]) -> bool:
    """Fills the lists with what the optimizer's class would, where all parameters are sharded and real and have states.

    Says whether it did. If so, the class would say as well that there is nothing complex.
    """
    if type(optimizer) not in (optim.Adam, optim.AdamW) or isinstance(group["lr"], torch.Tensor):
        return False
    every = group["params"]
    if len(lists) != 2 + len(_OF_STATES):  # of another version of torch
        return False
    if (
        not isinstance(every, list)
        or set(map(type, every)) != {ShardedTensor.final}
        or any(x._form.dtype.is_complex for x in every)
    ):
        return False
    found = [(x, gradient) for x, gradient in zip(every, map(held, every), strict=True) if gradient is not None]
    parameters, gradients = [x for x, _ in found], [gradient for _, gradient in found]
    states = [state for state in map(optimizer.state.get, parameters) if state]
    if len(states) < len(parameters) or any(map(_is_sparse, gradients)):
        return False
    names = [name for name in _OF_STATES if name != "max_exp_avg_sq" or group["amsgrad"]]
    try:
        columns = {name: list(map(itemgetter(name), states)) for name in names}
    except KeyError:
        return False
    collected = (parameters, gradients, *(columns.get(name, ()) for name in _OF_STATES))
    for each, column in zip(lists, collected, strict=True):
        each.extend(column)
    return True
