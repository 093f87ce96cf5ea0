"""Views of elements as larger ones, which have to begin where a larger one may: of a part, its device cannot tell."""

from __future__ import annotations

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.op_plan import NOT_REPEATED, Repeat
from ...engine.running.repeating import repeat_by_rule
from ...engine.sharded import as_sharded, begins_at
from ...engine.views.copy_views import remember_counted_alone
from ...rules.call import Args, BoundCall, Kwargs
from ...runtime.on_paper import aside

aten = torch.ops.aten


@handler(aten.view_as_complex.default, aten.view.dtype)
def _view(call: BoundCall) -> object:
    x, dtype = call.tensor("self"), call.dtype() if call.func is aten.view.dtype else None
    every = 2 if dtype is None else dtype.itemsize // x.dtype.itemsize
    if every > 1 and begins_at(x) % every:
        _refuse(call, x)
    result = run_by_rule(call)
    if torch.is_inference_mode_enabled() and not x.is_inference():
        return remember_counted_alone(as_sharded(result), as_sharded(x))
    again = repeat_by_rule(call, result)
    call.repeat = _again_where_it_may_begin(again, every) if again is not None and every > 1 else again
    return result


def _refuse(call: BoundCall, x: torch.Tensor) -> None:
    """Has torch say what is wrong with where a tensor begins."""
    with aside():
        memory = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        call.on([memory.as_strided(x.shape, x.stride(), begins_at(x))])


def _again_where_it_may_begin(again: Repeat, every: int) -> Repeat:
    def repeat(args: Args, kwargs: Kwargs) -> object:
        return NOT_REPEATED if begins_at(as_sharded(args[0])) % every else again(args, kwargs)

    return repeat
