"""One flat Python function from a program: no interpreter, no dictionary of values, each value freed after its last use."""

from __future__ import annotations

import linecache
import math
import operator
import weakref
from collections.abc import Callable, Iterable
from itertools import chain, count
from typing import TypeAlias

import torch
from torch import fx

__all__ = ["Function", "generate", "source_of"]

Function: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]
"""The generated function: tensors in, a tuple of tensors out."""

_INFIX: dict[object, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
}
_files = count()


class _Names:
    """What the function's text refers to by name: kernels, dtypes, devices."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.values: dict[str, object] = {}
        self._taken = set(taken)
        self._known: dict[int, str] = {}

    def of(self, value: object, hint: str) -> str:
        name = self._known.get(id(value))
        if name is None:
            stem = "".join(c if c.isalnum() else "_" for c in hint).strip("_") or "value"
            name = next(n for n in chain([f"_{stem}"], (f"_{stem}_{i}" for i in count(1))) if n not in self._taken)
            self._taken.add(name)
            self.values[name] = value
            self._known[id(value)] = name
        return name


def source_of(graph: fx.Graph) -> str:
    """The text of the function that a program becomes."""
    return _written(graph, _Names(node.name for node in graph.nodes))


def generate(graph: fx.Graph, name: str) -> Function:
    """The function that a program becomes."""
    names = _Names(node.name for node in graph.nodes)
    text = _written(graph, names)
    file = f"<weft graph {name} {next(_files)}>"
    namespace: dict[str, object] = dict(names.values)
    exec(compile(text, file, "exec"), namespace)
    # Not in its own namespace: what torch compiled of the function holds on to that.
    function = namespace.pop("run")
    assert callable(function)
    # Tracebacks and compilers find the text here, as long as there is the function.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    weakref.finalize(function, linecache.cache.pop, file, None).atexit = False
    return function


def _written(graph: fx.Graph, names: _Names) -> str:
    nodes = list(graph.nodes)
    last_use: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        for used in node.all_input_nodes:
            last_use[used] = at
    labels = {node: f"{node.name}" for node in nodes}
    arguments = [labels[node] for node in nodes if node.op == "placeholder"]
    lines = [f"def run({', '.join(arguments)}):"]
    for at, node in enumerate(nodes):
        if node.op == "placeholder":
            continue
        if node.op == "output":
            lines.append(f"    return {_text(node.args[0], labels, names)}")
            break
        lines.append(f"    {labels[node]} = {_call(node, labels, names)}")
        spent = [labels[used] for used in dict.fromkeys((*node.all_input_nodes, node)) if last_use.get(used, at) == at]
        if spent:
            lines.append(f"    del {', '.join(spent)}")
    return "\n".join(lines) + "\n"


def _call(node: fx.Node, labels: dict[fx.Node, str], names: _Names) -> str:
    args = [_text(argument, labels, names) for argument in node.args]
    target = node.target
    if target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if target is torch.Tensor.size:
        return f"{args[0]}.size({args[1]})"
    if target in _INFIX:
        return f"{args[0]} {_INFIX[target]} {args[1]}"
    args += [f"{key}={_text(value, labels, names)}" for key, value in node.kwargs.items()]
    hint = getattr(target, "__name__", "function")
    return f"{names.of(target, hint)}({', '.join(args)})"


def _text(value: object, labels: dict[fx.Node, str], names: _Names) -> str:
    if isinstance(value, fx.Node):
        return labels[value]
    if isinstance(value, (tuple, list)):
        return f"({_commas(_text(item, labels, names) for item in value)})"
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, slice):
        return f"slice({_commas(_text(part, labels, names) for part in (value.start, value.stop, value.step))})"
    return names.of(value, str(value))


def _commas(parts: Iterable[str]) -> str:
    parts = list(parts)
    return f"{parts[0]}," if len(parts) == 1 else ", ".join(parts)
