"""Sizes that a compiler leaves open, where it would lose sight of them: on the way back of a program.

Torch traces the way there alone, writes down which sizes of results are open, and then traces both ways.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable
from weakref import WeakKeyDictionary

import torch
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, get_proxy_slot, set_proxy_slot

__all__ = ["introduce", "start_over_where_settled", "still_open"]

Size = tuple[int, ...]

_settled_early: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()
"""By what torch compiles, the sizes that its way back turned out to settle. Bound: the programs being compiled. Cleared: with them."""


def still_open(sizes: Iterable[int]) -> Size:
    """Sizes that a compiler hands over, those that it has settled by now as numbers, and those too that are known to be settled later on.

    >>> still_open((4, 6))
    (4, 6)
    """
    program = torch._guards.CompileContext.try_get()
    early = () if program is None else _settled_early.get(program, ())
    return tuple([size if type(size) is int else _as_known(size, early) for size in sizes])


def _as_known(size: int, early: Container[str]) -> int:
    (found,) = _open((size,))
    sources = _sources(found)
    is_early = bool(sources) and all(name in early for name in sources)
    return int(size) if is_early or found.node.maybe_as_int() is not None else size


def _open(sizes: Iterable[object]) -> list[torch.SymInt]:
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def _sources(size: torch.SymInt) -> set[str]:
    """What a program is given that a size follows from, as torch calls it."""
    node = size.node
    found = (source for symbol in node._expr.free_symbols for source in node.shape_env.var_to_sources.get(symbol, ()))
    return {each.name if isinstance(each.name, str) else each.name() for each in found}


def start_over_where_settled(sizes: Iterable[int]) -> None:
    """Lets torch trace a program anew whose way back has settled sizes that the way there had left open.

    Which sizes results have that are not known until it runs torch has written down by then, and would look for them in vain. The next time
    they are settled from the start.
    """
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is None:
        return  # the way there, of which torch writes it down
    late = [size for size in _open(sizes) if size.node.maybe_as_int() is not None]
    names = {name for size in late for name in _sources(size)}
    program = torch._guards.CompileContext.try_get()
    if names and program is not None:
        known = _settled_early.setdefault(program, set())
        if not names <= known:
            known |= names
            raise sys.modules["torch._dynamo"].exc.TensorifyScalarRestartAnalysis(
                restart_reason="sizes are settled on the way back"
            )


def introduce(sizes: Iterable[int]) -> None:
    """Tells whoever records a program how sizes that are none of its inputs are found from those that are.

    Those of the gradients that a way back begins with are such. Asked for the first time when others have been computed from them, torch
    would look for them among these, without end; and it does not find squares.
    """
    recorder = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    if not isinstance(recorder, ProxyTorchDispatchMode):
        return
    tracer = recorder.tracer
    known = tracer.sympy_expr_tracker
    from torch.utils._sympy.interp import sympy_interp  # which takes a second, and is there where sizes are open
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    for size in _open(sizes):
        if size.node.is_symbolic() and size not in tracer.symnode_tracker:
            expression = size.node.expr
            inputs = {symbol: known[symbol].value for symbol in expression.free_symbols if symbol in known}
            if len(inputs) == len(expression.free_symbols):
                same = sympy_interp(PythonReferenceAnalysis, inputs, expression)
                set_proxy_slot(size, tracer, get_proxy_slot(same, tracer))
