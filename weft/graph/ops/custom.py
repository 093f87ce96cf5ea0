"""Functions of the user's own, over plain torch tensors, as ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from ..recording.graph import Graph
from ..recording.op import Kernel, Op
from ..recording.types import TensorType
from ..recording.values import TensorLike, TensorValue

__all__ = ["custom"]


def custom(
    function: Callable[..., object], values: Iterable[TensorLike], out_types: TensorType | Sequence[TensorType]
) -> list[TensorValue]:
    """Call a function of plain torch tensors when the graph runs; it must not change what it is given.

    It gives one tensor, or a tuple where `out_types` is a sequence. Names in `out_types` that the graph does not know
    are new sizes, which the results say.

    >>> from weft.graph import Graph, TensorType
    >>> import torch
    >>> with Graph("g", input_types=[TensorType("float32", ["n"])]) as graph:
    ...     x = graph.inputs[0]
    ...     custom(torch.special.expit, [x], x.type), custom(torch.unique, [x], TensorType("float32", ["distinct"]))
    ([TensorValue(special_expit: f32[n] on cpu:0)], [TensorValue(unique: f32[distinct] on cpu:0)])
    """
    graph = Graph.current()
    args = tuple(graph.tensor(value) for value in values)
    many = not isinstance(out_types, TensorType)
    kinds = (out_types,) if isinstance(out_types, TensorType) else tuple(out_types)
    expected = tuple(
        tuple(dim if dim.symbols <= graph.symbols.keys() else None for dim in kind.shape) for kind in kinds
    )
    name = getattr(function, "__name__", type(function).__name__).strip("<>_")
    op = Op(name, _checking(function, name, kinds, many), pure=False, opaque=True)
    results = graph.record(op, (args, expected), kinds, many=many)
    for result in results:
        graph.define(result)
    return results


def _checking(function: Callable[..., object], name: str, kinds: Sequence[TensorType], many: bool) -> Kernel:
    """The function, whose results must be what was said."""

    def checked(args: tuple[torch.Tensor, ...], expected: tuple[tuple[int | None, ...], ...]) -> object:
        given = function(*args)
        results = tuple(given) if many and isinstance(given, (tuple, list)) else (given,)
        if len(results) != len(kinds):
            raise ValueError(f"{name} gave {len(results)} results, but {len(kinds)} were said")
        for i, (result, kind, shape) in enumerate(zip(results, kinds, expected, strict=True)):
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"result {i} of {name} is {type(result).__name__}, but should be a tensor {kind}")
            fits = len(result.shape) == len(shape) and all(
                n in (None, m) for n, m in zip(shape, result.shape, strict=True)
            )
            if not fits or result.dtype != kind.dtype:
                raise ValueError(f"result {i} of {name} is {result.dtype} {tuple(result.shape)}, but should be {kind}")
        return results if many else results[0]

    checked.__name__ = checked.__qualname__ = name
    return checked
