"""A call that is repeated, with other values, gives what a first call gives."""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable

import pytest
import torch

import weft
from weft import P
from weft.engine.op_plan import key_of, plans
from weft.sharding import ReduceOp
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

Op = Callable[[torch.Tensor], object]

OPS: dict[str, Op] = {
    "sum": lambda x: x.sum(),
    "sum of a dim": lambda x: x.sum(0),
    "sum of two dims": lambda x: x.sum((0, 1), keepdim=True),
    "scaled": lambda x: x * 2.5,
    "scaled otherwise": lambda x: x * -1.5,
    "squared": lambda x: x * x,
    "softmax": lambda x: x.softmax(-1),
    "softmax of rows": lambda x: x.softmax(0),
    "largest": lambda x: x.max(1),
    "product": lambda x: x @ x.t(),
    "normed": lambda x: torch.nn.functional.layer_norm(x, (x.shape[-1],)),
    "indices": lambda x: x.argsort(1),
}

MESH = weft.make_mesh({"a": 2, "b": 2})
LAYOUTS = {
    "rows": Layout(MESH, (("a", "b"), ())),
    "columns": Layout(MESH, ((), ("b",))),
    "both": Layout(MESH, (("b",), ("a",))),
    "whole": Layout(MESH, ((), ())),
    "pending": Layout(MESH, (("a",), ()), {"b": ReduceOp.SUM}),
}


def numbers(seed: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_the_same_call_with_other_values(name: str, layout: str) -> None:
    op = OPS[name]
    for shape, dtype in (((4, 8), torch.float32), ((4, 8), torch.float64), ((3, 5), torch.float32)):
        for seed in range(3):
            plain = numbers(seed, shape, dtype)
            expected = op(plain)
            given = weft.shard(plain, MESH, named_mapping(LAYOUTS[layout]))
            for result in (op(given), op(given)):
                pairs = zip(result, expected, strict=True) if isinstance(result, tuple) else [(result, expected)]
                for value, wanted in pairs:
                    assert value.dtype is wanted.dtype
                    torch.testing.assert_close(value.full_tensor(), wanted)


PAIRED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: torch.sub(x, y, alpha=3),
    "product": lambda x, y: x * y,
    "chosen": lambda x, y: torch.where(x > y, x, y),
    "matrix product": lambda x, y: torch.addmm(x, y, y),
}


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("name", PAIRED)
def test_what_was_resolved_before_and_what_was_not(name: str, left: str, right: str) -> None:
    op = PAIRED[name]
    told: dict[tuple[bool, bool], set[str]] = {}
    for turn in range(3):
        for resolved in ((False, False), (True, False), (False, True), (True, True)):
            plain = [numbers(turn + k, (4, 4), torch.float64) for k in range(2)]
            given = [
                weft.shard(x, MESH, named_mapping(LAYOUTS[at])) for x, at in zip(plain, (left, right), strict=True)
            ]
            for x, first in zip(given, resolved, strict=True):
                if first:
                    x.exp()
            with weft.comm_log() as log:
                result = op(*given)
            torch.testing.assert_close(result.full_tensor(), op(*plain))
            steps = [(step.kind, step.axes, step.total_bytes) for step in log]
            told.setdefault(resolved, set()).add(f"{result.mapping.layout(2)} {steps}")
    assert all(len(each) == 1 for each in told.values()), told


def test_what_has_been_resolved_is_not_computed_with_pending_again() -> None:
    x = weft.shard(torch.ones(4, 4), MESH, named_mapping(LAYOUTS["pending"]))
    assert (x * 2).mapping.layout(2).pending
    assert (x * 2).mapping.layout(2).pending
    torch.exp(x)  # has to resolve it
    with weft.comm_log() as log:
        torch.exp(x * 2)
    assert not log.total_bytes


def test_a_write_in_between_is_seen() -> None:
    x = weft.shard(torch.ones(4, 4), MESH, P("a", None))
    assert [x.sum().item() for _ in range(2)] == [16, 16]
    x.mul_(3)
    assert x.sum().item() == 48


@pytest.mark.parametrize("op", [torch.add, torch.mul, torch.pow, torch.eq])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_numbers_that_are_equal_are_not_the_same(op: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """1, True, 1.0 and 1 + 0j are equal, and have one hash; what they are multiplied with is of another type after each."""
    x = torch.arange(4).to(dtype)
    ours = weft.shard(x, weft.make_mesh({"a": 2}), P("a"))
    for number in (1, True, 1.0, 1 + 0j, 0, False, 0.0, 0j, 1, True):
        expected, given = op(x, number), op(ours, number)
        assert given.dtype is expected.dtype
        assert torch.equal(given.full_tensor(), expected)


def test_sizes_that_follow_from_numbers_are_those_of_the_call() -> None:
    """A list of numbers beside one tensor is part of what a call is known by; beside a list of tensors it is not."""
    x = torch.randn(1, 2, 4, 4)
    ours = weft.shard(x, weft.make_mesh({"a": 2}), P(None, "a"))
    with torch.inference_mode():
        for factor in (2.0, 3.0, 2.0):
            call = torch.ops.aten.upsample_nearest2d.vec
            expected = call(x, None, [factor, factor])
            torch.testing.assert_close(call(ours, None, [factor, factor]).full_tensor(), expected)
    for numbers in ([2.0, 3.0], [0.5, 0.25]):
        first, second = torch._foreach_mul([ours, ours], numbers)
        torch.testing.assert_close(first.full_tensor(), x * numbers[0])
        torch.testing.assert_close(second.full_tensor(), x * numbers[1])


def test_what_repeats_a_call_keeps_none_of_its_tensors() -> None:
    """Calls are known as long as the program runs; activations of the first step are not to stay as long."""
    ops: list[Op] = [*OPS.values(), lambda x: x.view(2, 2, -1), lambda x: x.unsqueeze(0).expand(3, -1, -1), torch.tril]
    held: list[weakref.ref[torch.Tensor]] = []
    for op in ops:
        for seed in range(3):
            x = weft.shard(numbers(seed, (4, 12), torch.float32), MESH, P("a", "b"))
            held += map(weakref.ref, x._value.pieces)
            op(x)
            del x
    gc.collect()
    assert [each for each in held if each() is not None] == []


@pytest.mark.parametrize(
    ("op", "args"),
    [("relu.default", ()), ("add.Tensor", (None,)), ("transpose.int", (0, 1)), ("_softmax.default", (1, False)), ("cumsum.default", (1,))],
)  # fmt: skip
def test_calls_are_known_by_the_key_that_says_all_they_depend_on(op: str, args: tuple[object, ...]) -> None:
    func = operator.attrgetter(op)(torch.ops.aten)
    x = weft.shard(torch.randn(4, 6), MESH, P("a"))
    given = (x, *(x if each is None else each for each in args))
    func(*given)
    assert key_of(func, given, {}) in plans.repeats


PARTS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "slice": lambda x: [x[1:7:2]],
    "index": lambda x: [x[3]],
    "parts": lambda x: [*x.split(3)],
    "rows": lambda x: [*x.unbind()],
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_split_dim_are_known_calls_that_show_what_they_were_taken_from(name: str, memory: str) -> None:
    take, plain = PARTS[name], numbers(1, (8, 4), torch.float32)
    x = weft.shard(plain, MESH, P(("a", "b")))
    with weft.comm_log() as before:
        take(x)
    take(x)
    count = len(plans.repeats)
    with weft.comm_log() as after:  # as with memories apart, where these are copies
        take(x)
    assert before.counts() == after.counts()
    taken = take(x)
    assert len(plans.repeats) == count
    for part, expected in zip(taken, take(plain), strict=True):
        assert torch.equal(part.full_tensor(), expected)  # type: ignore[attr-defined]
        assert (part.stride(), part.storage_offset()) == (expected.stride(), expected.storage_offset())
    x.add_(1)
    assert torch.equal(taken[0].full_tensor(), take(plain + 1)[0])  # type: ignore[attr-defined]
    taken[0].mul_(0)
    take(plain.add_(1))[0].mul_(0)
    assert torch.equal(x.full_tensor(), plain)  # type: ignore[attr-defined]


@pytest.mark.parametrize("op", [torch.ops.aten.slice.Tensor, torch.ops.aten.select.int])
def test_parts_of_a_split_dim_are_found_by_their_key_in_one_memory(op: torch._ops.OpOverload, memory: str) -> None:
    x = weft.shard(numbers(1, (8, 4), torch.float32), MESH, P(("a", "b")))
    args = (x, 0, 2, 6) if op is torch.ops.aten.slice.Tensor else (x, 0, 2)
    op(*args)
    assert (key_of(op, args, {}) in plans.repeats) is (memory == "unified")


def test_a_call_that_is_repeated_moves_things_in_the_order_of_the_first() -> None:
    mesh = weft.make_mesh({"a": 2, "b": 3})
    told = []
    for _ in range(2):
        x = weft.shard(torch.ones(2, 2), mesh, P("a", "b")).requires_grad_()
        with weft.comm_log() as log:
            torch.nn.functional.nll_loss(x, weft.shard(torch.tensor([0, 1]), mesh, P("a")), reduction="sum").backward()
        told.append([(record.kind, record.op) for record in log])
    assert told[0] == told[1]


@pytest.mark.parametrize("line", ["F.conv1d(x, w, b)", "F.conv1d(x, w)", "F.linear(x, w[:, :, 0])"])
def test_the_first_of_calls_that_resolve_has_gradients_brought_home_as_those_after_it(line: str) -> None:
    """Else what moves backward would be another after the first step."""
    seen = []
    for _ in range(3):
        x = weft.shard(torch.ones(2, 4, 4), MESH, P(None, None, "a")).requires_grad_() * 1
        b = weft.shard(torch.ones(4), MESH, P("a")).requires_grad_() * 1
        w = weft.from_local([torch.ones(4, 4, 2)] * 4, weft.NamedMapping(MESH, P(), unreduced=("a", "b")))
        eval(line, {"x": x, "w": w, "b": b, "F": torch.nn.functional})
        seen.append([each._value.is_gradient_brought for each in (x, b)])
    assert seen[1:] == seen[:-1]
