"""Gradients of compute ops, from torch: the vector-Jacobian product of an op's kernel, traced once for each kind of call.

    call       softmax(x: f32[n, 4], 1)
    traced     _softmax(x, 1), _softmax_backward_data(grad, _softmax, 1)
    recorded   _softmax_backward_data(grad, softmax, 1)

What the call has given already is not computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import optree
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from ...caches import cached
from ...sharding.dims import Dim, Shape
from ..recording.device_ref import DeviceRef
from ..recording.op import REBIND, Argument, Op
from ..recording.sizes import folded
from ..recording.traced import SAME, Expression, TracedFunction
from ..recording.values import TensorValue
from .movement_rows import Backward, Contribution, values_of
from .vjp import at_run_time, differentiable, results_of

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["from_torch"]


@final
@dataclass(frozen=True, slots=True)
class _Like:
    """What stands for a tensor: all that a trace depends on."""

    dtype: torch.dtype
    shape: Shape


@final
@dataclass(frozen=True, slots=True)
class _Number:
    """A plain number: 1, 1.0 and True are equal in Python and differ in torch."""

    kind: type
    value: complex


@final
@dataclass(frozen=True, slots=True)
class _GradientQuestion:
    """What torch is asked about one kind of call."""

    op: Op
    args: tuple[Argument, ...]
    """The call's arguments, with a `_Like` for each value."""
    kwargs: tuple[tuple[str, Argument], ...]
    results: tuple[_Like, ...]
    given: tuple[bool, ...]
    """Which results have a gradient."""
    wanted: tuple[bool, ...]
    """Which floats among the arguments need one."""
    sizes: tuple[tuple[str, int], ...]
    """Numbers that the names in all this may stand for."""


def from_torch(back: Backward, wanted: Collection[fx.Node], sizes: Mapping[str, int]) -> Iterable[Contribution]:
    """What the gradients of a call's results say about its arguments, in torch's own operations."""
    call = back.call
    values = values_of(call)
    floats = [value for value in values if differentiable(value.type)]
    args = tuple(map(_described, call.args))
    kwargs = tuple((key, _described(argument)) for key, argument in sorted(call.kwargs.items()))
    results = tuple(_Like(kind.dtype, kind.shape) for kind in call.types)
    question = _GradientQuestion(
        call.op,
        args,
        kwargs,
        results,
        given=tuple(grad is not None for grad in back.grads),
        wanted=tuple(value.node in wanted for value in floats),
        sizes=tuple((name, sizes[name]) for name in sorted(_symbols((args, kwargs, results)))),
    )
    traced = _transpose(question)
    if traced is None:
        return at_run_time(back)
    arguments = (*values, *back.results, *back.present)
    grads = traced.record(back.results[0].graph, arguments, call.types[0].device)
    return [(value, None if grad is None else _of_type(value, grad)) for value, grad in zip(floats, grads, strict=True)]


def _of_type(value: TensorValue, grad: TensorValue) -> TensorValue:
    """The gradient in the value's own sizes: torch may say n as (n // 2) * 2 where a rule has it even."""
    return grad if grad.type == value.type else value.graph.record(REBIND, (grad,), [value.type])[0]


def _described(argument: Argument) -> Argument:
    if isinstance(argument, TensorValue):
        return _Like(argument.dtype, argument.shape)
    if isinstance(argument, (DeviceRef, torch.device)):
        return _HOST
    if isinstance(argument, (tuple, list)):
        return tuple(_described(item) for item in argument)
    return _Number(type(argument), argument) if isinstance(argument, (int, float, complex)) else argument


def _symbols(described: Argument) -> frozenset[str]:
    """The names in a described argument."""
    if isinstance(described, tuple):
        return frozenset[str]().union(*map(_symbols, described))
    if isinstance(described, _Like):
        return described.shape.symbols
    return described.symbols if isinstance(described, Dim) else frozenset()


class _Fakes:
    """Tensors without memory, their sizes numbers or torch's symbols for names."""

    def __init__(self, sizes: tuple[tuple[str, int], ...]) -> None:
        self.sizes: dict[str, torch.SymInt] = {}
        self.names: dict[Expression, Dim] = {}
        self._env = self._symbols(sizes) if sizes else None
        self.mode = FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True)
        # A trace asks everything once; keeping the answers would take longer than giving them.
        self.mode.cache_enabled = False

    def _symbols(self, sizes: tuple[tuple[str, int], ...]) -> ShapeEnv:
        # Torch's symbols take a second to import, which only gradients in named sizes should pay.
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

        env = ShapeEnv(duck_shape=False)
        for name, number in sizes:
            source = ConstantSource(name)
            symbol = env.create_symbol(number, source, DimDynamic.DYNAMIC)
            size = env.create_symintnode(symbol, hint=number, source=source)
            assert isinstance(size, torch.SymInt)
            self.sizes[name], self.names[symbol] = size, Dim(name)
        return env

    @property
    def replaced(self) -> bool:
        """Whether torch has taken a symbol for a number, or for another."""
        return self._env is not None and bool(self._env.replacements)

    def size(self, dim: Dim) -> int | torch.SymInt:
        return int(dim) if dim.is_static else folded(dim, self.sizes.__getitem__, lambda kernel, *sizes: kernel(*sizes))

    def tensor(self, like: _Like) -> torch.Tensor:
        return torch.empty([self.size(dim) for dim in like.shape], dtype=like.dtype, device=_HOST)

    def filled(self, argument: Argument, tensors: Iterator[torch.Tensor]) -> Argument:
        """An argument as a kernel takes it, with the next tensor for each `_Like`."""
        if isinstance(argument, _Like):
            return next(tensors)
        if isinstance(argument, _Number):
            return argument.value
        if isinstance(argument, Dim):
            return self.size(argument)
        return tuple(self.filled(item, tensors) for item in argument) if isinstance(argument, tuple) else argument


@cached(1024)
def _transpose(question: _GradientQuestion) -> TracedFunction | None:
    """From the call's values, results and the gradients of these, the gradients that are wanted.

    `None` where only a run can know it: torch calculates with numbers that are no sizes, such as the root of one, or does
    not keep to symbols. The trace is made on the host and holds for every device.
    """
    fakes = _Fakes(question.sizes)
    leaves: list[Argument] = optree.tree_leaves((question.args, question.kwargs))  # type: ignore[arg-type]
    values = [leaf for leaf in leaves if isinstance(leaf, _Like)]
    grads = [like for like, given in zip(question.results, question.given, strict=True) if given]

    def backward(*inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = inputs[len(fakes.sizes) :]
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(differentiable(x)) for x in tensors[: len(values)]]
            rest = iter(leaves)
            args = [fakes.filled(argument, rest) for argument in question.args]
            kwargs = {key: fakes.filled(argument, rest) for key, argument in question.kwargs}
            results = results_of(question.op, args, kwargs)
        floats = [leaf for leaf in leaves if leaf.requires_grad]
        seeds = iter(tensors[-len(grads) :])
        pairs = [(result, next(seeds)) for result, given in zip(results, question.given, strict=True) if given]
        pulled: tuple[torch.Tensor | None, ...] = (None,) * len(floats)
        if any(result.requires_grad for result, _ in pairs):
            outputs, seeded = zip(*((result, seed) for result, seed in pairs if result.requires_grad), strict=True)
            pulled = torch.autograd.grad(outputs, floats, seeded, allow_unused=True)
        return (*(result.detach() for result in results), *pulled)

    with fakes.mode, enable_python_dispatcher(), torch.inference_mode(False), torch._C._DisableAutocast():
        # The tracer follows sizes that it has seen as arguments.
        inputs = (*fakes.sizes.values(), *(fakes.tensor(like) for like in (*values, *question.results, *grads)))
        traced = make_fx(backward, _allow_non_fake_inputs=True)(*inputs)
        _keep_only_backward(traced.graph, len(values), question)
        if any(map(_writes, traced.graph.nodes)):
            traced.recompile()
            traced = make_fx(functionalize(traced, remove="mutations"), _allow_non_fake_inputs=True)(*inputs)
    numbers = any(isinstance(node.meta.get("val"), torch.SymFloat) for node in traced.graph.nodes)
    return None if numbers or fakes.replaced else TracedFunction(traced, fakes.names)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _keep_only_backward(traced: fx.Graph, values: int, question: _GradientQuestion) -> None:
    """Take the results as given, and leave out the gradients that nobody wants and those that are always 0."""
    arguments = traced.find_nodes(op="placeholder")[len(question.sizes) :]
    count = len(question.results)
    (output,) = traced.find_nodes(op="output")
    flat = list(output.args[0])
    for result, given in zip(flat[:count], arguments[values:], strict=False):
        while result.target in SAME:
            result = result.args[0]
        if result.op == "call_function":
            result.replace_all_uses_with(given)
    # What does not depend on the gradients of the results, being linear in them, is 0.
    depends = set(arguments[values + count :])
    for node in traced.nodes:
        if node.target not in _ZEROS and not depends.isdisjoint(node.all_input_nodes):
            depends.add(node)
    output.args = (
        [
            grad if wanted and grad in depends else None
            for grad, wanted in zip(flat[count:], question.wanted, strict=True)
        ],
    )
    traced.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))


_HOST = torch.device("cpu")

_ZEROS = frozenset({torch.ops.aten.zeros_like.default, torch.ops.aten.new_zeros.default})
"""What takes only sizes from its argument."""
