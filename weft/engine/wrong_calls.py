"""Calls that are wrong: rules and handlers are made for right ones; what is wrong with another, torch says."""

from __future__ import annotations

import torch

from ..caches import BoundedCache
from ..rules.call import BoundCall
from ..rules.registry import rule_for
from ..runtime.on_paper import aside
from ..runtime.traced import is_traced
from ..watch.notes import is_watched
from .handlers import handlers
from .memory import memory_of
from .op_kind import kind_of
from .sharded import ShardedTensor
from .strides.whole_results import whole_results

__all__ = ["STUMBLES", "let_torch_say", "refuse_nested", "refuse_wrong"]

STUMBLES = (ValueError, KeyError, ZeroDivisionError, TypeError)
"""What rules and handlers raise when they meet a call that torch refuses; an `IndexError` is mostly torch's own."""


def let_torch_say(call: BoundCall) -> Exception | None:
    """What torch raises for a call, asked with tensors that have no memory; None where it takes it, or cannot say."""
    try:
        whole_results(call)
    except (NotImplementedError, AttributeError):  # some of torch's accounts ask numbers for their shapes
        return None
    except (RuntimeError, IndexError, *STUMBLES) as error:
        return error
    return None


def refuse_wrong(call: BoundCall) -> None:
    """Raises what torch raises for a call that it refuses whatever the elements are, before anything moves for it."""
    if call.key is None or call.key in _right or is_traced() or not _is_asked(call):
        return
    error = let_torch_say(call)
    if error is not None:
        error = _sure(call, error)
    if error is not None:
        raise error
    _right[call.key] = True


_right = BoundedCache[object, bool](1 << 14)
"""Calls that torch does not refuse, by what they are made with."""


def _sure(call: BoundCall, error: Exception) -> Exception | None:
    """What torch says with memory of a call that it refuses without; None where it may take it, as some kernels do."""
    func, kind, is_few = call.func, kind_of(call.func), sum(x.numel() for x in call.tensors) <= _FEW
    if not is_few and not kind.is_pure:
        # Of views, and where ops run by their rules, what it says without memory holds; of `out=` it has other words then.
        is_known = rule_for(func) is not None and not kind.outs
        return error if is_known and (kind.viewed == 0 or func not in handlers) else None
    if torch.Tag.nondeterministic_seeded in func.tags or any(x.device.type != "cpu" for x in call.tensors):
        return None
    return _refused(call, 0, is_few) and _refused(call, 1, is_few)  # not for what elements there are


def _refused(call: BoundCall, element: int, is_few: bool) -> Exception | None:
    """What torch says of a call whose elements are all the same."""
    stand_in = _lying_as if is_few else _all_one
    try:
        with aside():
            made = {id(x): stand_in(x, element) for x in call.tensors}  # a tensor that is given twice is one
            call.on([made[id(x)] for x in call.tensors])
    except (RuntimeError, IndexError, ValueError, TypeError) as told:
        return told
    return None


def _all_one(x: torch.Tensor, element: int) -> torch.Tensor:
    """An element in the shape of a tensor."""
    return torch.full((), element, dtype=x.dtype).expand(x.shape)


_FEW = 1 << 16
"""Elements that stand in for those of a call, lying as they do; for more, one stands in for all."""


def _lying_as(x: torch.Tensor, element: int) -> torch.Tensor:
    """Elements that lie as a tensor does, some of them in one place maybe."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
    return torch.full((reach + 1,), element, dtype=x.dtype).as_strided(x.shape, x.stride())


_OF_MEMORY = frozenset(
    {"as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "copy_", "set_", "resize_"}
)
"""Ops for which it counts what memory a tensor has, not what it shows of it: what is written to itself may have any shape."""


def _is_asked(call: BoundCall) -> bool:
    """Whether torch is asked of a call: where things move, or are said to, and it hangs on nothing but what tensors show."""
    if call.func.namespace != "aten" or call.name in _OF_MEMORY:
        return False
    if any(x.layout is not torch.strided for x in call.tensors):
        return False
    first = next(x for x in call.tensors if isinstance(x, ShardedTensor))
    return is_watched() or memory_of(first._layout).pieces_are_shards


def refuse_nested(x: torch.Tensor) -> None:
    """Raises for a nested tensor, whose rows have lengths of their own, and which torch cannot ask for its sizes.

    >>> refuse_nested(torch.ones(2))
    """
    if x.is_nested:
        raise NotImplementedError(
            "sharded tensors have no nested form: pad the sequences (x.to_padded_tensor(0.0), torch.nn.utils.rnn.pad_sequence), and give a mask"
        )
