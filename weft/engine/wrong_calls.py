"""Calls that are wrong: rules and handlers are made for right ones; what is wrong with another, torch says."""

from __future__ import annotations

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ..caches import BoundedCache
from ..rules.call import BoundCall, each_of
from ..rules.registry import bounds_of, rule_for
from ..runtime.on_paper import aside
from ..runtime.processes import world
from ..runtime.traced import is_open, is_traced
from ..watch.notes import is_watched
from .handlers import handlers
from .index_bounds import refuse_whole_indices
from .memory import memory_of
from .op_kind import is_elementwise, kind_of
from .running.refusals import all_have_some, refuse_whole
from .sharded import ShardedTensor
from .strides.stand_ins import FEW, OF_DTYPE, UntoldError, given_by_kernels
from .strides.whole_results import whole_results
from .writes.overlapping import refuse_overlaps

__all__ = [
    "LENIENT",
    "OF_PROCESSES",
    "STUMBLES",
    "let_torch_say",
    "refuse_nested",
    "refuse_wrong",
    "refused_collective",
]

STUMBLES = (ValueError, KeyError, ZeroDivisionError, TypeError)
"""What rules and handlers raise when they meet a call that torch refuses; an `IndexError` is mostly torch's own."""


OF_PROCESSES = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "c10d_functional", "fsdp"}
)
"""The libraries of torch's ops that send what each process has by itself."""


def refused_collective(call: BoundCall) -> NotImplementedError:
    """Why torch's collectives are refused: they would send copies of the whole, and what they write there would be lost."""
    given = next(x for x in call.tensors if isinstance(x, ShardedTensor))
    return NotImplementedError(
        f"torch.distributed's {call.func} sends what each process has by itself, but was given a sharded tensor of shape "
        f"{tuple(given.shape)}, which is one value, the same in all processes. Read it as it is (x.item(), x.full_tensor()), or use "
        "weft.all_reduce, weft.all_gather, weft.shard. A sharded model needs no DistributedDataParallel, nor torch's FSDP and "
        'ZeroRedundancyOptimizer: split the batch, weft.shard(x, mesh, P("dp")), and use weft.nn.fully_shard, weft.nn.shard_optimizer'
    )


def let_torch_say(call: BoundCall) -> Exception | None:
    """What torch raises for a call, asked with tensors that have no memory; None where it takes it, or cannot say."""
    try:
        whole_results(call)
    except UntoldError:
        return None
    except (RuntimeError, IndexError, *STUMBLES) as error:
        return error
    return None


def refuse_wrong(call: BoundCall) -> None:
    """Raises what torch raises for a call that it refuses whatever the elements are, before anything moves for it."""
    if call.key is None or is_traced() or not _is_asked(call):
        return
    if any(is_open(x.shape) for x in call.tensors):  # which a compiler asks outside of what it traces, too
        return
    if call.key not in _right:
        _refuse_asked(_with_new_outs(call))
        if call.func in handlers and world.current().count > 1 and not all(map(all_have_some, call.tensors)):
            refuse_whole(call)  # everywhere, as those without elements have to: others may wait for each other
        _right[call.key] = True
    if is_watched() or world.current().count > 1:  # else nobody sees that something was brought before
        _refuse_indices(call)


def _refuse_indices(call: BoundCall) -> None:
    """Refuses indices that are known everywhere; of what a call reads where it writes, torch speaks first."""
    bounds = bounds_of(call)
    if not bounds:
        return
    for at in kind_of(call.func).written:
        x = call.args[at] if at < len(call.args) else None
        if isinstance(x, ShardedTensor):
            refuse_overlaps(call.func, x, [y for y in call.tensors if y is not x])
    refuse_whole_indices(bounds, call.tensors)


def _refuse_asked(call: BoundCall) -> None:
    """Raises what torch says to a call, asked without memory and then, where it may be, its kernels."""
    error = let_torch_say(call)
    if error is not None and _is_sure(call) and not _is_taken_of_nothing(call):
        raise error
    if 0 < sum(x.numel() for x in call.tensors) <= FEW and _may_be_asked(call):
        with aside():
            given = given_by_kernels(call)
        if isinstance(given, Exception) and _is_of_kernels(call, given):
            raise given


def _is_taken_of_nothing(call: BoundCall) -> bool:
    """Whether kernels take a call that torch refuses without memory: of tensors without elements, some look at nothing more."""
    if any(x.numel() for x in call.tensors) or not kind_of(call.func).is_pure:
        return False
    with aside():
        return not isinstance(given_by_kernels(call), Exception)


def _with_new_outs(call: BoundCall) -> BoundCall:
    """The call with new tensors for `out`, where that is read by nothing: of one that gets another shape, torch would warn."""
    outs = kind_of(call.func).outs
    if not outs:
        return call
    read = {id(x) for x in BoundCall(call.func, call.args, {}).tensors}
    new = [
        torch.empty(0, dtype=x.dtype, device=x.device) if id(x) not in read and _is_out(x, call) else x
        for x in call.tensors
    ]
    return call.with_tensors(new)


_right = BoundedCache[object, bool](1 << 14)
"""Calls that torch does not refuse, by what they are made with."""


aten = torch.ops.aten
LENIENT = frozenset(
    {
        aten.bucketize.Tensor,
        aten.complex.default,
        aten.convolution.default,
        aten.diagonal_scatter.default,
        aten.gather.default,
        aten.index_add.default,
        aten.index_add_.default,
        aten.index_copy.default,
        aten.index_copy_.default,
        aten.index_reduce.default,
        aten.index_reduce_.default,
        aten.index_select.default,
        aten.linalg_lstsq.default,
        aten.masked_scatter.default,
        aten.multi_margin_loss.default,
        aten.multinomial.default,
        aten.put.default,
        aten.put_.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
        aten.scatter_.src,
        aten.scatter_add_.default,
        aten.scatter_reduce.two,
        aten.scatter_reduce_.two,
        aten.aminmax.out,
        aten.complex.out,
        aten.multinomial.out,
        aten._histogramdd_bin_edges.default,
    }
)
"""Ops with indices or truths whose account without memory takes what their kernels refuse, whatever the elements are."""


_INDEXED = frozenset({aten.index.Tensor, aten.index_put.default, aten.index_put_.default})
"""Ops whose indices may be masks, of which the elements say how many are named."""


def _may_be_asked(call: BoundCall) -> bool:
    """Whether kernels can be asked with other elements: some trust numbers that another op has given them, and read where these say."""
    func = call.func
    if func in LENIENT or func in _INDEXED or is_elementwise(func):
        return True
    return "backward" not in func.name() and all(_is_read(x) or x.dtype is torch.bool for x in _beside(call))


def _is_of_kernels(call: BoundCall, error: Exception) -> bool:
    """Whether kernels refuse a call whatever the elements are, as they do for dtypes, and where nothing is an index, a mask or a length."""
    if isinstance(error, LinAlgError) or (call.kwargs.get("check_errors") and OF_DTYPE not in str(error)):
        return False
    if call.func in LENIENT or OF_DTYPE in str(error):
        return True
    if call.func in _INDEXED:
        return not any(x.dtype in (torch.bool, torch.uint8) for x in call.tensors[1:])
    return torch.Tag.dynamic_output_shape not in call.func.tags and all(map(_is_read, _beside(call)))


def _beside(call: BoundCall) -> list[torch.Tensor]:
    """What a call reads beside its first tensor."""
    return [x for x in call.tensors[1:] if not _is_out(x, call)]


def _is_out(x: torch.Tensor, call: BoundCall) -> bool:
    """Whether a tensor is given as `out`."""
    return any(x is out for name in kind_of(call.func).outs for out in each_of(call.kwargs[name]))


def _is_read(x: torch.Tensor) -> bool:
    """Whether the elements of a tensor are values, and no indices, truths or lengths."""
    return x.is_floating_point() or x.is_complex()


def _is_sure(call: BoundCall) -> bool:
    """Whether kernels refuse a call that torch refuses without memory, as it was asked: some take it."""
    func, kind = call.func, kind_of(call.func)
    if sum(x.numel() for x in call.tensors) > FEW and not kind.is_pure:
        # Of views, and where ops run by their rules, what it says without memory holds; of `out=` it has other words then.
        return rule_for(func) is not None and not kind.outs and (kind.viewed == 0 or func not in handlers)
    return torch.Tag.nondeterministic_seeded not in func.tags and all(x.device.type == "cpu" for x in call.tensors)


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
