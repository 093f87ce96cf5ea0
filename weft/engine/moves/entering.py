"""Plain tensors that become sharded ones: nothing that others hold of their memory shows through, unless that is asked for.

Memory is shared lazily, until somebody writes to it through torch. Writes through NumPy or DLPack are not seen, so that
memory that may have been handed out is copied at once.
"""

from __future__ import annotations

import torch

from ...runtime.holding import holding, slices
from ...sharding.geometry import whole_box
from ...sharding.mapping import DeviceMapping
from ..sharded import ShardedTensor, wrap
from ..wrong_calls import refuse_nested
from .movement import is_recorded, is_transformed

__all__ = ["entering", "shared"]


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def entering(x: torch.Tensor) -> torch.Tensor:
    """A plain tensor whose memory nobody else can write to unseen: itself, or a copy."""
    if isinstance(x, ShardedTensor) or torch.compiler.is_compiling() or is_transformed():
        return x
    refuse_nested(x)
    if type(x) not in _PLAIN and hasattr(x, "__tensor_flatten__"):
        raise TypeError(
            f"only plain tensors can be sharded, but got a {type(x).__module__}.{type(x).__qualname__}, which has a form of its own "
            "inside: shard first and convert then (weft.nn.shard_module(model, ...), then torchao's quantize_(model, ...), say)"
        )
    if x.is_quantized:
        raise TypeError(
            f"only plain tensors can be sharded, but got one of {x.dtype}, whose scale torch keeps beside it: shard x.dequantize(), "
            "or x.int_repr() and the scale"
        )
    if x.is_meta or x.layout is not torch.strided or torch._C._len_torch_dispatch_stack():
        return x
    return x if _is_held_alone(x) else x.clone()


def _is_held_alone(x: torch.Tensor) -> bool:
    """Whether only this tensor, and the one it is a view of, hold its memory.

    What NumPy holds is not told by counts: torch marks such memory as not resizable, and does not share it lazily.
    """
    base = x._base
    holders = 2 if base is None else 3  # the tensor, the object that is asked here, and the tensor it is a view of
    if torch._C._storage_Use_Count(x.untyped_storage()._cdata) > holders:
        return False
    # A DLPack capsule holds the tensor that it was made of. One that requires a gradient has none: it is held by the graph.
    if base is not None and base._use_count() > 2 and not base.requires_grad:  # type: ignore[attr-defined]
        return False
    return x.requires_grad or bool(x._use_count() == 1)  # type: ignore[attr-defined]


def shared(x: torch.Tensor, mapping: DeviceMapping) -> ShardedTensor:
    """A plain tensor in the layout that a mapping says, in the very memory that it has."""
    layout = mapping.layout(x.dim())
    here = holding(layout)
    boxes = [here.box(piece, x.shape) for piece in range(here.count)]
    reason = None
    if isinstance(x, ShardedTensor):
        reason = "it is a weft.Tensor already: x.detach() shares its memory, in its layout"
    elif is_recorded(x):
        reason = "it requires a gradient, which would be that of another tensor: detach() it first"
    elif layout.pending:
        reason = (
            f"a reduction over {', '.join(layout.pending_axes)} is to be pending, so that devices hold other values"
        )
    elif any(device != x.device for device in here.devices):
        reason = f"it lies on {x.device}, and the mesh on {', '.join(sorted({str(d) for d in here.devices}))}"
    elif len(set(boxes)) < len(boxes):
        reason = f"the layout {layout} has replicas, and each device of {layout.mesh} has memory of its own"
    if reason is not None:
        raise ValueError(
            f"shard with copy=False cannot share the memory of a tensor of shape {tuple(x.shape)}: {reason}"
        )
    whole = x.detach()
    pieces = tuple(whole if box == whole_box(x.shape) else whole[slices(box)] for box in boxes)
    return wrap(
        pieces, layout, x.shape, asked=mapping, dtype=x.dtype, strides=x.stride(), offset=int(x.storage_offset())
    )
