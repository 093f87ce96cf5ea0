"""What is not traced by `torch.compile`, and says so. This module is traced: it is where compiled code is told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["untraced"]

Given = ParamSpec("Given")
Result = TypeVar("Result")


def untraced(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Refuses a call in compiled code, for a function whose results run in threads."""

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(
                "local_map runs its function in threads, which torch.compile does not trace: make it before, "
                "f = weft.local_map(...), and call f(x) in code that is compiled without fullgraph=True"
            )
        return function(*args, **kwargs)

    return call
