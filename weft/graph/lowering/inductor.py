"""The generated function, compiled by torch's inductor: small ops become few loops.

Where every size is a number, the function is compiled as it stands, once for each way its arguments lie in memory, and
a call goes straight to the compiled code. Where sizes are names, `torch.compile` looks after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from weft.graph.lowering.codegen import Function

__all__ = ["joined"]


def joined(function: Function, *, static: bool) -> Function:
    """The same function, compiled at its first call; `static` says that its arguments always have the same shapes."""
    dynamic: Function = torch.compile(function, fullgraph=True, dynamic=not static)
    return _Static(function, dynamic) if static else dynamic


@final
class _Static:
    """One compiled form for each way in which the arguments lie in memory."""

    __slots__ = ("_compiled", "_differentiable", "_function")

    def __init__(self, function: Function, differentiable: Function) -> None:
        self._function = function
        self._differentiable = differentiable
        self._compiled: dict[tuple[tuple[int, ...], ...], Callable[..., tuple[torch.Tensor, ...]]] = {}

    def __call__(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if torch.is_grad_enabled() and any(argument.requires_grad for argument in arguments):
            return self._differentiable(*arguments)
        key = tuple([argument.stride() for argument in arguments])
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(arguments)
        return compiled(*arguments)

    def _compile(self, arguments: tuple[torch.Tensor, ...]) -> Callable[..., tuple[torch.Tensor, ...]]:
        # Inductor takes a second to import, which only those who ask for it should pay.
        from torch._inductor import standalone_compile

        with torch.no_grad():
            traced = make_fx(self._function, tracing_mode="fake")(*arguments)
            compiled: Callable[..., tuple[torch.Tensor, ...]] = standalone_compile(
                traced, list(arguments), dynamic_shapes="from_example_inputs"
            )
        return compiled
