"""Labels of `ctc_loss` that are no classes: its kernel does not look, and reads what is not there.

Only labels that a sequence has are looked at: what follows may be anything. Split ones are gathered for the op, and looked at then.
"""

from __future__ import annotations

import torch

from ...engine.execute import brought, run_by_rule
from ...engine.handlers import handler
from ...engine.index_bounds import is_known_whole
from ...engine.running.refusals import tell_others
from ...engine.sharded import ShardedTensor
from ...rules.call import BoundCall
from ...runtime.traced import is_traced
from ...sharding.layout import Layout

aten = torch.ops.aten


@handler(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def _ctc_loss(call: BoundCall) -> object:
    for name in ("targets", "target_lengths"):
        x = call.arg(name)
        if isinstance(x, ShardedTensor) and not is_known_whole(x):
            call = call.replaced(
                **{name: brought(x, Layout.replicated(x.mesh, x.dim()), str(call), False, is_read=True)}
            )
    _refuse_labels(call, call.tensor("targets"))
    return run_by_rule(call)


def _refuse_labels(call: BoundCall, targets: torch.Tensor) -> None:
    given, lengths = _here(targets), call.arg("target_lengths")
    counts = _here(lengths) if isinstance(lengths, torch.Tensor) else torch.tensor(lengths)
    if (
        given is None
        or counts is None
        or is_traced()
        or any(x.is_meta or x.device.type != "cpu" for x in (given, counts))
    ):
        return
    if given.dim() == 2:
        if given.shape[0] != counts.numel():  # which torch refuses
            return
        given = given[torch.arange(given.shape[1]) < counts.reshape(-1, 1)]
    classes = call.tensor("log_probs").shape[-1]
    wrong = given[(given < 0) | (given >= classes)]
    if not wrong.numel():
        return
    error = IndexError(
        f"ctc_loss: target {int(wrong[0])} is out of bounds: log_probs has {classes} classes, so labels are 0 to {classes - 1}. "
        "Give log_probs a class for each label; what stands behind the length of a target may be anything."
    )
    tell_others(error, [targets])
    raise error


def _here(x: torch.Tensor) -> torch.Tensor | None:
    """The value of a tensor that is whole everywhere, plain; None in a process that has none of it."""
    if not isinstance(x, ShardedTensor):
        return x
    return next(iter(x._value.pieces), None) if is_known_whole(x) else None
