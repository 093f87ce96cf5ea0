"""Values on paper: tensors have none, but for what follows from constants, and from what `assume` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..caches import cached
from ..engine.sharded import ShardedTensor
from ..errors import PaperError
from ..rules.call import Args, Kwargs, Op
from ..runtime.machine import ownership
from .work import tensors_in

__all__ = ["LARGEST", "Values", "assume", "no_value", "reads_values"]

LARGEST: Final = 1 << 23
"""Elements up to which a value is known."""

_VALUE: Final = "_value_on_paper"
"""The attribute of a tensor without memory that holds its value."""


def assume(x: torch.Tensor, value: torch.Tensor | float | Sequence[float]) -> torch.Tensor:
    """The tensor itself; in a dry run and for `autoshard`, whoever reads its value gets this one.

    Elsewhere its value stays what it is, and this one is only looked at: it has to be one that the tensor could have.

    >>> import torch, weft
    >>> def step(x):
    ...     loss = weft.assume(x.square().mean(), 2.5)
    ...     return x if loss.item() < 3 else x @ x
    >>> weft.dryrun(step, torch.ones(4, 4)).flops
    0
    """
    if not ownership.on_paper:
        if not isinstance(value, (int, float, complex)):
            with _disable_current_modes():
                _check(x, tuple(value.shape if isinstance(value, torch.Tensor) else torch.as_tensor(value).shape))
        return x
    with _disable_current_modes():
        said = torch.as_tensor(value, dtype=x.dtype, device="cpu")
        _check(x, tuple(said.shape))
        setattr(x, _VALUE, said.expand(x.shape).clone())
    return x


def _check(x: torch.Tensor, said: tuple[int, ...]) -> None:
    """Raises where a value of such a shape is none that a tensor could have."""
    has = tuple(x.shape)
    if len(said) > len(has) or any(n not in (1, m) for n, m in zip(reversed(said), reversed(has), strict=False)):
        raise ValueError(
            f"assume gives a tensor of shape {has} a value of shape {said}: "
            "give one number for all elements, or a value of its shape"
        )


@final
class Values:
    """What is known of the values of tensors."""

    def of(self, x: object) -> torch.Tensor | None:
        """The value of a tensor, where it is known."""
        if not isinstance(x, torch.Tensor):
            return None
        if not isinstance(x, ShardedTensor) and not x.is_meta:
            return x
        found: torch.Tensor | None = getattr(x, _VALUE, None)
        return found

    def of_all(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the values of all these tensors are known."""
        return all(hasattr(x, _VALUE) or not (x.is_meta or isinstance(x, ShardedTensor)) for x in tensors)

    def know(self, x: torch.Tensor, value: torch.Tensor) -> None:
        """Says the value of a tensor."""
        if value.numel() <= LARGEST:
            setattr(x, _VALUE, value)

    def forget(self, x: torch.Tensor) -> None:
        """A tensor has been written to, and nobody knows what."""
        if hasattr(x, _VALUE):
            delattr(x, _VALUE)

    def computed(self, func: Op, args: Args, kwargs: Kwargs) -> object:
        """What an op gives of known values; None where some are not known."""
        found = _replaced(args, self)
        options = {name: _replaced(value, self) for name, value in kwargs.items()}
        if found is None or any(value is None and kwargs[name] is not None for name, value in options.items()):
            return None
        if "device" in options:
            options["device"] = torch.device("cpu")
        with _disable_current_modes():
            return func(*found, **options)  # type: ignore[misc]


def _replaced(x: object, values: Values) -> object:
    """An argument with values in place of the tensors; None where one has none."""
    if isinstance(x, torch.Tensor):
        return values.of(x)
    if isinstance(x, (list, tuple)):
        inner = [_replaced(each, values) for each in x]
        if any(new is None and old is not None for new, old in zip(inner, x, strict=True)):
            return None
        return type(x)(inner)
    return x


def reads_values(func: Op, args: Args) -> bool:
    """Whether a call reads values to know what it gives: of indices, only masks are read.

    >>> x, i = torch.ones(4), torch.tensor([0, 2])
    >>> reads_values(torch.ops.aten.nonzero.default, (x,)), reads_values(torch.ops.aten.add.Tensor, (x, x))
    (True, False)
    >>> reads_values(torch.ops.aten.index.Tensor, (x, [i])), reads_values(torch.ops.aten.index.Tensor, (x, [x > 0]))
    (False, True)
    """
    if not _may_read(func):
        return False
    if func is torch.ops.aten.index.Tensor:
        return any(x.dtype in _MASKS for x in tensors_in(args[1]))
    return True


_MASKS = (torch.bool, torch.uint8)


@cached(8192)
def _may_read(func: Op) -> bool:
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def no_value(what: str, where: str) -> PaperError:
    """The error of a program that reads what no tensor has on paper."""
    return PaperError(
        f"{what} at {where} reads the value of a tensor, but on paper tensors have none: "
        "say what to go on with, weft.assume(x, value), before it is read"
    )
