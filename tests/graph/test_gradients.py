"""The gradient of every compute op is torch's: first and second, for numbers and names as sizes, checked by differences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.autograd.gradcheck import GradcheckError, gradcheck

from tests.graph.cases import CASES, Case, floats
from tests.graph.running import as_list, graph_of, named, type_of, weighted, weighted_value
from weft import CPU
from weft import graph as wg
from weft.graph import BufferType, Graph, TensorType, ops
from weft.graph.gradients.example_sizes import example_sizes
from weft.graph.gradients.movement_rows import ROWS
from weft.graph.gradients.traced import _transpose
from weft.graph.ops import allreduce, collectives, movement, reducescatter
from weft.graph.recording import distributed_value
from weft.graph.recording.op import Kind, Op

SMOOTH = [case for case in CASES if case.gradient]
TWICE_NAMED = ["matmul 3 2", "softmax", "layer_norm", "mean -1 False", "gather", "gelu"]
KINKS = ("ties", "maximum 2", "minimum 2", "cast")
"""Where two elements are equal, or few digits are kept, differences say nothing."""


def gradient_graph(function: Callable, inputs: Sequence[torch.Tensor], *, symbolic: bool, order: int = 1) -> Graph:
    """The gradients of a function's weighted results, or, one order up, of these gradients' weighted sum."""
    wrt = [i for i, x in enumerate(inputs) if x.is_floating_point()]
    with Graph("tried", input_types=[type_of(x, names=named(x) if symbolic else None) for x in inputs]) as graph:
        results = as_list(function(*graph.inputs))
        for _ in range(order):
            results = wg.grad(graph, wrt=wrt, of=weighted_value(results))
        graph.output(*results)
    assert graph.output_types == tuple(graph.inputs[i].type for i in wrt)
    return graph


def torch_gradients(function: Callable, inputs: Sequence[torch.Tensor], order: int = 1) -> Sequence[torch.Tensor]:
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    asked = [leaf for leaf in leaves if leaf.requires_grad]
    results = as_list(function(*leaves))
    for _ in range(order):
        total = weighted(results)
        if not total.requires_grad:
            return [torch.zeros_like(leaf) for leaf in asked]
        results = torch.autograd.grad(total, asked, create_graph=True, materialize_grads=True)
    return results


def assert_gradients(case: Case, *, symbolic: bool, order: int) -> None:
    model = wg.compile(gradient_graph(case.graph, case.inputs, symbolic=symbolic, order=order))
    try:
        expected = list(torch_gradients(case.torch, case.inputs, order))
    except RuntimeError as refused:  # second gradients of some kernels of some versions
        with pytest.raises(RuntimeError, match=re.escape(str(refused))):
            model.execute(*case.inputs)
    else:
        torch.testing.assert_close(model.execute(*case.inputs), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", SMOOTH, ids=repr)
def test_it_equals_torchs(case: Case) -> None:
    for symbolic in (False, True) if case.symbolic else (False,):
        assert_gradients(case, symbolic=symbolic, order=1)


@pytest.mark.parametrize("case", SMOOTH, ids=repr)
def test_its_gradient_equals_torchs(case: Case) -> None:
    assert_gradients(case, symbolic=case.name in TWICE_NAMED, order=2)


@pytest.mark.parametrize("case", [case for case in SMOOTH if not case.name.endswith(KINKS)], ids=repr)
def test_it_is_what_differences_say(case: Case) -> None:
    model = wg.compile(_with_gradients(case))

    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            total, *grads = model.execute(*inputs)
            ctx.save_for_backward(*grads)
            return total

        @staticmethod
        def backward(ctx, seed):
            grads = iter(ctx.saved_tensors)
            return tuple(seed * next(grads) if needed else None for needed in ctx.needs_input_grad)

    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in case.inputs]
    assert gradcheck(Weighted.apply, leaves, fast_mode=True)


def _with_gradients(case: Case) -> Graph:
    graph = graph_of(lambda *values: weighted_value(as_list(case.graph(*values))), *case.inputs)
    wg.grad(graph)
    return graph


def test_differences_tell_a_wrong_gradient() -> None:
    wrong = Case("wrong", lambda x: ops.custom(_Doubled.apply, [x], x.type), None, (floats(3),))
    with pytest.raises(GradcheckError):
        test_it_is_what_differences_say(wrong)


class _Doubled(torch.autograd.Function):
    """The identity with a gradient twice as large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, seed):
        return seed * 2


ANY_SIZE = {
    "stretched": (lambda x, w: x * w + x[:, :1], lambda x, w: x * w + x[:, :1]),
    "product": (lambda x, w: x @ ops.reshape(w, [w.shape[0], 1]), lambda x, w: x @ w.reshape(-1, 1)),
    "norm": (lambda x, w: ops.layer_norm(ops.softmax(x), w), lambda x, w: F.layer_norm(x.softmax(-1), w.shape, w)),
    "mean": (lambda x, w: ops.mean(x * x, 0) * w, lambda x, w: (x * x).mean(0) * w),
    "joint": (lambda x, w: ops.concat([x, x * w], 1)[:, 1:], lambda x, w: torch.cat([x, x * w], 1)[:, 1:]),
    "cut": (lambda x, w: ops.chunk(x, 2)[0] * w, lambda x, w: x[: (len(x) + 1) // 2] * w),
}


@pytest.mark.parametrize("name", ANY_SIZE)
def test_one_gradient_serves_every_size(name: str) -> None:
    function, plain = ANY_SIZE[name]
    with Graph("tried", input_types=[TensorType("float64", ["n", "m"]), TensorType("float64", ["m"])]) as graph:
        graph.output(*wg.grad(graph, of=weighted_value([function(*graph.inputs)])))
    model = wg.compile(graph)
    for n, m in ((3, 4), (1, 3), (2, 1), (1, 1), (7, 2)):
        inputs = [floats(n, m), floats(m)]
        torch.testing.assert_close(model.execute(*inputs), list(torch_gradients(plain, inputs)))


RULES = {
    "one size by another": ({"x": ["a"], "y": ["b"]}, lambda x, y: x.reshape([y.shape[0], 3]), [(12,), (4,)]),
    "divided by much": ({"x": ["a"]}, lambda x: x.reshape([-1, 64]), [(128,)]),
    "at least much": ({"x": ["a"]}, lambda x: x[5000:], [(5001,)]),
    "at most a few": ({"x": ["a"]}, lambda x: ops.pad(x, 0, 1, 12, 3), [(3,)]),
    "one number only": ({"x": ["a"]}, lambda x: x * ops.constant([1.0, 2.0]).rebind(x.shape), [(2,)]),
    "two by two": ({"x": ["a", "b"], "y": ["c", "d"]}, lambda x, y: x.reshape(y.shape), [(4, 3), (2, 6)]),
    "square by square": ({"x": ["a", "a"], "y": ["b", "b"]}, lambda x, y: x.reshape(y.shape), [(3, 3), (3, 3)]),
    "nothing but 0": ({"x": ["a", "a"], "y": ["b"]}, lambda x, y: x.reshape([*y.shape, *y.shape, 2]), [(0, 0), (0,)]),
}
"""Shapes in names, what makes a rule for these names, and sizes for which it holds."""


@pytest.mark.parametrize("name", RULES)
def test_rules_between_sizes_hold_for_gradients(name: str) -> None:
    shapes, function, sizes = RULES[name]
    with Graph("ruled", input_types={key: TensorType("float64", shape) for key, shape in shapes.items()}) as graph:
        square = function(*graph.inputs) ** 2
        graph.output(*wg.grad(graph, wrt=0, of=ops.sum(square)))
    found = example_sizes(graph)
    # Where no sizes are found, torch is asked when the graph runs.
    assert (found is None) == (name == "nothing but 0")
    assert found is None or all(rule.holds(found) for rule in graph.constraints)
    inputs = [floats(*size) for size in sizes]
    (got,) = wg.compile(graph).execute(*inputs)
    with Graph("plain", input_types=[TensorType("float64", size) for size in sizes]) as plain:
        plain.output(*wg.grad(plain, wrt=0, of=ops.sum(function(*plain.inputs) ** 2)))
    torch.testing.assert_close(got, wg.compile(plain).execute(*inputs)[0])


def op_names(graph: Graph) -> list[str]:
    return [node.meta["call"].op.name for node in graph.nodes]


def test_what_was_computed_is_not_computed_again() -> None:
    graph = gradient_graph(ops.softmax, [floats(2, 3)], symbolic=True)
    names = op_names(graph)
    assert "aten._softmax_backward_data" in names
    assert [name for name in names if "softmax" in name and "backward" not in name] == ["softmax"]


def test_only_what_was_asked_for_is_recorded() -> None:
    with Graph("g", input_types=[TensorType("float32", [4, 4])] * 2) as graph:
        x, w = graph.inputs
        wg.grad(graph, wrt=w, of=ops.sum(ops.exp(x) @ w))
    assert op_names(graph).count("aten.mm") == 1


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "round", "trunc"])
def test_what_is_flat_adds_nothing(name: str) -> None:
    with Graph("g", input_types=[TensorType("float32", ["n"])]) as graph:
        graph.output(*wg.grad(graph, of=ops.sum(getattr(ops, name)(graph.inputs[0]))))
    assert op_names(graph)[-1] == "full"
    assert torch.equal(wg.compile(graph)(torch.tensor([1.5, -2.0])), torch.zeros(2))


def test_a_function_called_like_an_op_keeps_its_own_gradient() -> None:
    def transfer_to(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    with Graph("g", input_types=[TensorType("float64", ["n"])]) as graph:
        x = graph.inputs[0]
        graph.output(*wg.grad(graph, of=ops.sum(ops.custom(transfer_to, [x], x.type)[0])))
    assert wg.compile(graph)(torch.ones(2, dtype=torch.float64)).tolist() == [3, 3]


def test_random_numbers_are_not_drawn_again() -> None:
    graph = wg.capture(lambda x: torch.native_dropout(x, 0.5, True)[0], torch.ones(64))
    wg.grad(graph, seed=torch.ones(64))
    dropped, slope = wg.compile(graph)(torch.ones(64))
    assert torch.equal(dropped, slope)


def _ops_in(*modules: object) -> Iterator[Op]:
    for module in modules:
        for found in vars(module).values():
            yield from (op for op in (found.values() if isinstance(found, dict) else [found]) if isinstance(op, Op))


def test_every_movement_has_a_row_and_nothing_else() -> None:
    moving = set(_ops_in(allreduce, collectives, distributed_value, movement, reducescatter))
    assert moving == ROWS.keys()
    assert {op.kind for op in moving} == {Kind.MOVEMENT, Kind.COLLECTIVE}


AROUND = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_is_around_does_not_change_gradients(name: str) -> None:
    def recorded() -> Graph:
        _transpose.cache_clear()
        return gradient_graph(lambda x: ops.relu(x @ x) ** 2, [data], symbolic=True)

    data = floats(3, 3).float()
    plain = recorded()
    with AROUND[name]():
        graph = recorded()
    assert str(graph) == str(plain)
    assert torch.equal(wg.compile(graph)(data), wg.compile(plain)(data))


def test_what_is_read_of_a_buffer_has_a_gradient() -> None:
    kinds = {"w": BufferType("float32", [3], CPU(0)), "x": TensorType("float32", ["n", 3], CPU(0))}
    with Graph("step", input_types=kinds) as graph:
        memory, x = graph.inputs
        w = memory[...]
        (slope,) = wg.grad(graph, wrt=w, of=ops.mean(ops.square(x @ w - 1.0)))
        memory[...] = w - slope * 0.5
        graph.output(slope)
    held, data = torch.zeros(3), torch.randn(8, 3)
    leaf = torch.zeros(3, requires_grad=True)
    (expected,) = torch.autograd.grad((data @ leaf - 1.0).square().mean(), leaf)
    torch.testing.assert_close(wg.compile(graph)(held, data), expected)
    torch.testing.assert_close(held, -expected * 0.5)
