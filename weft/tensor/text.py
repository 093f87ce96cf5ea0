"""How a tensor is printed: `Tensor(f32[512@dp, 4096@tp] on dp=2 × tp=4)`, with the values below where it is small."""

from __future__ import annotations

from typing import cast

import torch

from ..engine.moves.movement import to_plain
from ..engine.sharded import ShardedTensor
from ..engine.writes.turned import is_stale
from ..runtime.holding import holding
from ..runtime.processes import world
from ..runtime.processes.mesh_processes import leaves_out
from ..runtime.traced import is_open
from ..sharding.layout import Layout
from ..watch.comm_log import paused

__all__ = ["short_dtype", "short_form", "text"]

_SHOWN = 1000
"""Elements up to which values are printed."""

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def short_dtype(dtype: torch.dtype) -> str:
    """A dtype in a few letters.

    >>> short_dtype(torch.bfloat16), short_dtype(torch.int64), short_dtype(torch.bool)
    ('bf16', 'i64', 'bool')
    """
    name = str(dtype).removeprefix("torch.")
    letters = name.rstrip("0123456789")
    return _SHORT[letters] + name[len(letters) :] if letters in _SHORT else name


def _dims(x: torch.Tensor) -> str:
    splits = x._layout.splits if isinstance(x, ShardedTensor) else ((),) * x.dim()
    sizes = (f"{size}@{'·'.join(axes)}" if axes else str(size) for size, axes in zip(x.shape, splits, strict=True))
    return f"{short_dtype(x.dtype)}[{', '.join(sizes)}]"


def _waiting(x: ShardedTensor) -> str:
    return "".join(f", pending {op}@{axis}" for axis, op in x._layout.pending)


def short_form(x: torch.Tensor) -> str:
    """A tensor in a few words.

    >>> short_form(torch.ones(2, 3))
    'f32[2, 3], plain'
    """
    return _dims(x) + (_waiting(x) if isinstance(x, ShardedTensor) else ", plain")


def text(x: ShardedTensor) -> str:
    """What `print(x)` shows. Values that lie in other processes are not fetched for it."""
    layout = x._layout
    grad = (
        ", requires_grad=True"
        if x.requires_grad and (x.is_leaf or is_stale(x))
        else f", grad_fn={x.grad_fn.name()}"
        if x.grad_fn is not None
        else ""
    )
    where = str(layout.mesh) if not layout.mesh.is_single else str(layout.mesh.devices[0])
    head = f"Tensor({_dims(x)} on {where}{_waiting(x)}{grad})"
    if is_open(x.shape):  # a compiler has no values, and is not to learn that they are few
        return head
    if x.numel() > _SHOWN or not x._value.pieces or not _is_known(layout):
        return head
    if any(isinstance(piece, torch._subclasses.FakeTensor) or piece.is_meta for piece in x._value.pieces):
        return head
    with paused():  # several processes print no values that would have to move
        values = repr(to_plain(cast(ShardedTensor, x.detach())).cpu())
    return f"{head}\n{values[len('tensor(') : -1] if values.startswith('tensor(') else values}"


def _is_known(layout: Layout) -> bool:
    """Whether every process has the values, so that all print the same and none waits for another to print."""
    if world.current().count == 1:
        return len(holding(layout).residence.owned) == layout.mesh.num_devices
    return layout.is_replicated and not leaves_out(layout.mesh)
