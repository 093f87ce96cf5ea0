"""Calls for which torch reads memory itself, asking nobody: done on the whole value, or refused.

A sharded tensor has pieces and no memory of its own; where torch looks for one, it finds an address that is nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

import torch

from .handling import handler
from .tensor import Tensor

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]
Number = bool | int | float | complex


def _shared(x: Tensor) -> NoReturn:
    """Memory that processes share holds one whole tensor."""
    raise RuntimeError(
        f"share_memory_ cannot share {Tensor._text(x).splitlines()[0]}, which lies in pieces: start the processes with torchrun, each of "
        "which then holds its own pieces, or share the whole, x.full_tensor().share_memory_()"
    )


def _applied(x: Tensor, function: Callable[..., Number]) -> Tensor:
    """As in torch: replaces each element by what a Python function gives for it, the same in every process."""
    return _written(x, "apply_", lambda whole: whole.apply_(function))


def _mapped(x: Tensor, y: torch.Tensor, function: Callable[[Number, Number], Number]) -> Tensor:
    """As in torch: replaces each element by what a Python function gives for it and that of another tensor."""
    return _written(x, "map_", lambda whole: whole.map_(_whole(y), function))


def _mapped_two(x: Tensor, y: torch.Tensor, z: torch.Tensor, function: Callable[..., Number]) -> Tensor:
    """As in torch: replaces each element by what a Python function gives for it and those of two other tensors."""
    return _written(x, "map2_", lambda whole: whole.map2_(_whole(y), _whole(z), function))


def _written(x: Tensor, name: str, change: Callable[[torch.Tensor], object]) -> Tensor:
    """Changes the whole value and writes it back."""
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{name} cannot be differentiated: call x.detach().{name}, or do it under torch.no_grad()")
    whole = _whole(x).clone()
    change(whole)
    with torch.no_grad():
        x.copy_(whole)
    return x


def _whole(x: torch.Tensor) -> torch.Tensor:
    return cast(Tensor, x.detach()).full_tensor() if isinstance(x, Tensor) else x.detach()


Tensor.share_memory_ = _shared  # type: ignore[assignment, method-assign]
Tensor.apply_ = _applied  # type: ignore[method-assign, assignment]
Tensor.map_ = _mapped  # type: ignore[method-assign, assignment]
Tensor.map2_ = _mapped_two  # type: ignore[method-assign, assignment]


_SHALLOW = aten._has_compatible_shallow_copy_type.default
"""What torch asks before `x.data = y` makes `x` share the memory of `y`."""


def _can_share(keys: torch._C.DispatchKeySet, x: torch.Tensor, y: torch.Tensor) -> bool:
    """A plain tensor can't have the memory of a sharded one; all else is as torch says."""
    if isinstance(y, Tensor) and not isinstance(x, Tensor):
        return False
    with torch._C._AutoDispatchBelowAutograd():
        return bool(_SHALLOW.redispatch(keys & torch._C._after_autograd_keyset, x, y))


@handler(_SHALLOW)
def _can_share_below_autograd(_func: Op, args: Args, _kwargs: Kwargs) -> bool:
    return isinstance(args[0], Tensor) or not isinstance(args[1], Tensor)


# Torch answers before it dispatches to subclasses, so its own answer has to be replaced.
_answers = torch.library.Library("aten", "IMPL")
for _key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):
    _answers.impl("_has_compatible_shallow_copy_type", _can_share, _key, with_keyset=True)


@handler(
    aten.quantize_per_tensor.default,
    aten.quantize_per_tensor.tensor_qparams,
    aten.quantize_per_tensor.tensors,
    aten.quantize_per_tensor_dynamic.default,
    aten.quantize_per_channel.default,
    aten.to_mkldnn.default,
)
def _refused(func: Op, _args: Args, _kwargs: Kwargs) -> NoReturn:
    raise NotImplementedError(
        f"{func} makes a tensor of another kind of memory, which cannot be sharded: call it on x.full_tensor() or on each of x.local_shards"
    )
