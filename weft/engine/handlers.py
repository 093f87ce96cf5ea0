"""Handlers: functions that do what an op needs beyond its rule."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..rules.call import BoundCall

__all__ = ["Handler", "handler", "handlers", "may_run_by_rule"]

Handler = Callable[[BoundCall], object]

handlers: dict[torch._ops.OpOverload, Handler] = {}
"""The ops that need more than a rule. Bound: the ops there are. Cleared: never."""

_direct_at_times: set[torch._ops.OpOverload] = set()
"""The ops whose handler does nothing else where their rule moves nothing. Bound: the ops there are. Cleared: never."""


def handler(*ops: torch._ops.OpOverload, may_be_direct: bool = False) -> Callable[[Handler], Handler]:
    """Registers a function as the handler of these ops; `may_be_direct` if it does no more than their rule at times."""

    def register(function: Handler) -> Handler:
        for op in ops:
            handlers[op] = function
            (_direct_at_times.add if may_be_direct else _direct_at_times.discard)(op)
        return function

    return register


def may_run_by_rule(op: torch._ops.OpOverload) -> bool:
    """Whether an op has no handler, or one that does nothing else where its rule moves nothing."""
    return op not in handlers or op in _direct_at_times
