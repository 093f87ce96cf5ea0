"""The generated function, compiled by torch's inductor: small ops become few loops.

Where every size is a number, the function is compiled as it stands, once for each way its arguments lie in memory, and
a call goes straight to the compiled code. Where sizes are names, `torch.compile` looks after them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import final

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from .codegen import Function

__all__ = ["joined"]


_MOST = 16
"""The ways to lie in memory for which a model keeps compiled forms; the oldest goes."""


def joined(function: Function, *, static: bool) -> Function:
    """The same function, compiled at its first call; `static` says that its arguments always have the same shapes."""
    assert isinstance(function, FunctionType)
    dynamic: Function = torch.compile(function, fullgraph=True, dynamic=not static)
    # Torch keeps what it compiled of a function's code, which keeps the code, until told to let go.
    let_go = torch._dynamo.reset_code  # type: ignore[attr-defined]  # torch imports it from C
    weakref.finalize(function, let_go, function.__code__).atexit = False
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
            while len(self._compiled) >= _MOST:
                self._compiled.pop(next(iter(self._compiled)))
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
