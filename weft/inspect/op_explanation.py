"""`explain_op`: in which ways an op could be computed, what each would cost, and which one is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from ..engine.dispatch import planned
from ..engine.form import form_of
from ..engine.op_plan import OpPlan
from ..engine.sharded import ShardedTensor, made
from ..engine.strategy import Considered, considering
from ..engine.value import value_of
from ..planning.text import bytes_text, table, time_text
from ..rules.call import BoundCall, each_of
from ..runtime.holding import holding
from ..tensor.text import short_form
from ..watch.comm_log import CommLog, comm_log
from ..watch.policy import reshard_policy

__all__ = ["OpExplanation", "explain_op"]


@final
@dataclass(frozen=True, slots=True)
class OpExplanation:
    """How a call is computed; prints itself."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    considered: tuple[Considered, ...]
    """The decisions on the way, in order: what was proposed with seconds and bytes, and what was chosen."""
    log: CommLog
    """What moves for it."""
    runs: str

    @property
    def bytes_received(self) -> int:
        """What the busiest device of each movement receives, added up."""
        return self.log.bytes_received

    def __str__(self) -> str:
        lines = [self.op, *(f"  takes  {text}" for text in self.inputs), *(f"  gives  {text}" for text in self.outputs)]
        moves = [f"{r.kind} over {', '.join(r.axes)}, {bytes_text(r.bytes_received)} a device" for r in self.log]
        lines += [f"  moves  {text}" for text in moves or ["nothing"]]
        lines.append(f"  runs   {self.runs}")
        for decision in dict.fromkeys(self.considered):
            rows = [
                ("*" if k == decision.chosen else "", name, bytes_text(size), time_text(seconds))
                for k, (name, seconds, size) in enumerate(decision.rows)
            ]
            lines += ["", *table([("", "strategy", "to bring", "time"), *rows])]
        return "\n".join(lines)


def explain_op(
    op: torch._ops.OpOverload | torch._ops.OpOverloadPacket, *args: object, **kwargs: object
) -> OpExplanation:
    """How a torch op on sharded tensors would be computed, found without computing it.

    Time is what the cost model says of movements and of computing, with what is left pending resolved afterwards.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> x = weft.shard(torch.ones(8, 64), mesh, P(None, "tp"))
    >>> w = weft.shard(torch.ones(64, 8), mesh, P("tp", None))
    >>> print(weft.explain_op(torch.ops.aten.mm.default, x, w))
    aten.mm.default
      takes  f32[8, 64@tp]
      takes  f32[64@tp, 8]
      gives  f32[8, 8], pending sum@tp
      moves  nothing
      runs   once, on whole values: all devices share one memory
    <BLANKLINE>
       strategy   to bring  time
    *  k over tp  0 B       20 µs
    """
    func = getattr(op, "default", op) if isinstance(op, torch._ops.OpOverloadPacket) else op
    if not isinstance(func, torch._ops.OpOverload):
        raise TypeError(f"explain_op takes a torch op such as torch.ops.aten.mm.default, but got {op!r}")
    call = BoundCall(func, args, dict(kwargs))
    if not any(isinstance(x, ShardedTensor) for x in call.tensors):
        raise TypeError(
            f"explain_op takes sharded tensors, but none of the arguments of {func} is one: weft.shard them"
        )
    call = call.with_tensors([_hollow(x) for x in call.tensors])
    with torch.no_grad(), considering() as considered, comm_log() as log, reshard_policy("silent"):
        result = planned(call)
    results = each_of(result)
    return OpExplanation(
        str(func),
        tuple(short_form(x) for x in call.tensors),
        tuple(short_form(x) for x in results if isinstance(x, torch.Tensor)),
        tuple(considered),
        log,
        _runs(call),
    )


def _hollow(x: torch.Tensor) -> torch.Tensor:
    """A tensor that lies the same way, without memory."""
    if not isinstance(x, ShardedTensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    form = x._form
    pieces = holding(form.layout).empty(form.shape, form.dtype, "meta")
    meta = form_of(form.layout, form.shape, form.strides, form.dtype, torch.device("meta"))
    return made(meta, value_of(pieces), int(x.storage_offset()))


def _runs(call: BoundCall) -> str:
    """Where the op itself runs."""
    plan = call.plan
    if not isinstance(plan, OpPlan):
        return "as other ops, each of which is planned in turn"
    if plan.once:
        return "in every process, on whole values"
    if plan.whole or plan.total is not None:
        return "once, on whole values: all devices share one memory"
    count = 0 if plan.schedule is None else len(plan.schedule.places)
    return f"on the pieces of each device: {count} here" if count else "on a whole copy in each memory"
