"""What an op does with its arguments' memory: reads it, writes to it, or gives a view of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..caches import cached
from ..rules.call import BoundCall

__all__ = ["OpKind", "expects_contiguous", "for_each_result", "is_elementwise", "kind_of", "written_argument"]


@dataclass(frozen=True, slots=True)
class OpKind:
    """Which arguments an op writes to or gives views of, by position in its schema, and whether it is a composite."""

    written: tuple[int, ...] = ()
    """Arguments written to in place."""
    outs: tuple[str, ...] = ()
    """The names of `out=` arguments."""
    viewed: int | None = None
    """The argument that the results are views of."""
    composite: bool = False
    """Whether torch says the op by other ops; it arrives whole where autograd is off (inference mode)."""

    @property
    def is_pure(self) -> bool:
        """Whether the op only reads."""
        return not self.written and not self.outs and self.viewed is None


@cached(8192)
def kind_of(func: torch._ops.OpOverload) -> OpKind:
    """What an op does with its arguments' memory.

    >>> kind_of(torch.ops.aten.slice.Tensor).viewed, kind_of(torch.ops.aten.add_.Tensor).written
    (0, (0,))
    >>> kind_of(torch.ops.aten.mm.out).outs
    ('out',)
    """
    written: list[int] = []
    outs: list[str] = []
    viewed: int | None = None
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None:
            continue
        if not argument.alias_info.is_write:
            viewed = i if viewed is None else viewed
        elif argument.is_out:
            outs.append(argument.name)
        else:
            written.append(i)
    returns_alias = any(out.alias_info is not None for out in func._schema.returns)
    name = func.name()  # what only asks for sizes has no kernel that torch knows of
    composite = torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(
        name, "CompositeImplicitAutograd"
    )
    return OpKind(tuple(written), tuple(outs), viewed if returns_alias else None, composite)


@cached(4096)
def is_elementwise(func: torch._ops.OpOverload) -> bool:
    """Whether an op computes each element of its result of one element of each argument."""
    return torch.Tag.pointwise in func.tags or func is torch.ops.aten._to_copy.default


@cached(8192)
def _aliases(func: torch._ops.OpOverload) -> tuple[int | str | None, ...]:
    """For each output, which argument it is (position, or name for keyword-only ones) when the op writes in place."""
    found: list[int | str | None] = []
    for output in func._schema.returns:
        where: int | str | None = None
        if output.alias_info is not None and output.alias_info.is_write:
            for i, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.before_set & output.alias_info.before_set:
                    where = argument.name if argument.kwarg_only else i
        found.append(where)
    return tuple(found) if any(where is not None for where in found) else ()


def for_each_result(result: object, make: Callable[[int, object], object]) -> object:
    """What is made of each result of an op, by position, in the form in which the op gives them."""
    if isinstance(result, (tuple, list)):
        return type(result)([make(k, value) for k, value in enumerate(result)])
    return make(0, result)


def written_argument(call: BoundCall, position: int) -> object | None:
    """The argument that an output is, when the op writes in place."""
    aliases = _aliases(call.func)
    if position >= len(aliases):
        return None
    where = aliases[position]
    if where is None:
        return None
    return call.kwargs.get(where) if isinstance(where, str) else call.args[where]


@cached(4096)
def expects_contiguous(func: torch._ops.OpOverload) -> bool:
    """Whether an op's kernel may ignore strides: some take what their forward kernel has made to be contiguous."""
    name = func._schema.name.removeprefix("aten::")
    return (name.startswith("native_") or name.endswith("_backward")) and name not in _READ_BY_STRIDES


_READ_BY_STRIDES = frozenset(
    {"_scaled_dot_product_flash_attention_for_cpu_backward", "linear_backward", "matmul_backward"}
)
"""Ops whose kernels are known to go by the strides of all their inputs. Those of GPUs take sums of exponents to be dense."""
