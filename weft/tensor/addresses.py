"""Where the memory of a tensor is, for libraries that read tensors by address: safetensors, what finds tied weights.

A value that lies in one memory has an address. One that lies in several of this host is gathered, and the copy's address
is given: for reading. Elsewhere there is none, and that is said; in the memories of accelerators it is 0, as torch has it of
tensors without memory, which are brought to the host by who wants to read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast
from weakref import WeakValueDictionary

import torch
from torch._guards import TracingContext

from ..engine.handlers import handler
from ..engine.memory import held_whole
from ..engine.moves.movement import to_plain
from ..engine.sharded import ShardedTensor
from ..engine.views.copy_views import current
from ..rules.call import BoundCall
from ..runtime.holding import Pieces
from ..runtime.machine import residence
from ..runtime.traced import is_traced

__all__ = ["address", "storage"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(eq=False)
class GatheredCopy:
    """The whole of a tensor, copied for who reads by address; it holds the pieces, so that their memory is no other's."""

    pieces: Pieces
    whole: torch.Tensor


_KNOWN: WeakValueDictionary[object, GatheredCopy] = WeakValueDictionary()
"""Bound: the copies that some tensor holds. Cleared: as they go."""


def address(x: ShardedTensor) -> int:
    """Where the first element of a tensor can be read; 0 where there is nothing to read."""
    if not x.numel() or x.is_meta or _is_traced(x):
        return 0
    if x.device.type != "cpu" and _held_whole(x) is None:
        return 0
    return int(_readable(x).data_ptr())


def storage(x: ShardedTensor) -> torch.UntypedStorage:
    """The memory that `address` points into, as a storage of its own: torch's compiler takes equal ones for one tensor."""
    if not x.numel() or x.is_meta or _is_traced(x):
        return torch.Tensor.untyped_storage(x)
    held = _readable(x).untyped_storage()
    alias = cast(
        torch.UntypedStorage,
        torch._C._construct_storage_from_data_pointer(held.data_ptr(), held.device, held.nbytes()),
    )
    alias._held = held  # type: ignore[attr-defined] # as long as the alias is there, so is what it points to
    return alias


def _is_traced(x: ShardedTensor) -> bool:
    """Whether a compiler looks at the tensor: it asks which tensors are one, not what they hold."""
    if TracingContext.try_get() is not None or is_traced():
        return True
    return x._value.source is None and any(
        type(piece) not in _PLAIN or torch._is_functional_tensor(piece) for piece in x._value.pieces
    )


def _readable(x: ShardedTensor) -> torch.Tensor:
    """A plain tensor whose memory holds the value of `x`, as the strides of `x` say."""
    base = x._base if isinstance(x._base, ShardedTensor) and x._base.dtype is x.dtype else x
    whole = _held_whole(base)
    if whole is None:
        _check_here(base)
        whole = _gathered(base)
    if base is x:
        return whole
    return whole.as_strided(
        x.shape, x.stride(), int(x.storage_offset()) - int(base.storage_offset()) + int(whole.storage_offset())
    )


def _held_whole(x: ShardedTensor) -> torch.Tensor | None:
    """A piece that is the whole value, where one is."""
    if x._layout.pending:
        return None
    pieces = current(x)
    whole = held_whole(x) if x._layout.split_axes or not pieces else pieces[0]
    return whole if whole is not None and (whole.shape, whole.stride()) == (x.shape, x.stride()) else None


def _check_here(x: ShardedTensor) -> None:
    here = residence(x.mesh)
    host = x.device.type == "cpu"
    if host and len(here.owned) == x.mesh.num_devices:
        return
    where = f"{x.mesh.num_devices} devices" + ("" if host else " with memories of their own")
    processes = len(set(here.owners))
    raise NotImplementedError(
        f"a tensor of shape {tuple(x.shape)} has no one place in memory, it lies on {where}"
        + (f" of {processes} processes" if processes > 1 else "")
        + ": to save a model, pass whole tensors, model.save_pretrained(path, state_dict=weft.checkpoint.full_state_dict(model)), "
        "or use weft.checkpoint.save(model, path); for the value use x.full_tensor(), for one shard x.local_shards[i]"
    )


def _gathered(x: ShardedTensor) -> torch.Tensor:
    """The whole of a tensor as it is now; one place for all tensors with these pieces, as long as one of them is there."""
    pieces = current(x)
    places = tuple((piece.untyped_storage()._cdata, piece.storage_offset(), piece.stride()) for piece in pieces)
    key = (places, x._layout, x.shape, x.stride(), x.dtype)
    known = _KNOWN.get(key)
    with torch.inference_mode(False), torch.no_grad():  # what is made in inference mode is never written to again
        if known is None:
            whole = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")
            known = _KNOWN[key] = GatheredCopy(pieces, whole)
        _fill(known.whole, to_plain(cast(ShardedTensor, x.detach())))
    x._value.readable = known
    return known.whole


def _fill(target: torch.Tensor, value: torch.Tensor) -> None:
    """Writes a value; along an expanded dim all elements are one, which is written once."""
    for dim, stride in enumerate(target.stride()):
        if stride == 0:
            target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    target.copy_(value)


@handler(torch.ops.aten._cudnn_rnn_flatten_weight.default)
def _left_where_they_are(call: BoundCall) -> torch.Tensor:
    """The weights of an RNN are not moved into one block, which `nn.LSTM` asks for where they have addresses."""
    return torch.empty(0)
