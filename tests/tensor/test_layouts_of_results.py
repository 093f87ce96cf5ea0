"""A result's layout is a function of the call: of the op, its arguments and their layouts, not of what was computed before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from weft import P
from weft.sharding import ReduceOp
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

MESH = weft.make_mesh({"a": 2, "b": 2})
LAYOUTS = {
    "pending": Layout(MESH, [[], []], {"a": ReduceOp.SUM}),
    "pending twice": Layout(MESH, [[], []], {"a": ReduceOp.SUM, "b": ReduceOp.SUM}),
    "pending and split": Layout(MESH, [["b"], []], {"a": ReduceOp.SUM}),
    "pending maximum": Layout(MESH, [[], ["b"]], {"a": ReduceOp.MAX}),
}
Step = Callable[[torch.Tensor], object]
BEFORE: dict[str, Step] = {
    "exp": torch.exp,
    "twice": lambda p: (p.exp(), p.exp()),
    "exp of a turned view": lambda p: p.t().exp(),
    "exp of a flat view": lambda p: p.view(-1).exp(),
    "exp of a part": lambda p: p[:1].exp(),
    "a product": lambda p: p * p,
    "the whole": lambda p: p.full_tensor(),
    "the text": str,
    "shards": lambda p: p.local_shards,
    "a write": lambda p: p.mul_(1),
    "a write that resolves": lambda p: p.add_(0),
    "exp, then a write": lambda p: (p.exp(), p.mul_(1)),
}
CALLS: dict[str, Step] = {
    "p + p": lambda p: p + p,
    "p * 2": lambda p: p * 2,
    "-p": torch.neg,
    "p + 1": lambda p: p + 1,
    "p + replicated": lambda p: p + weft.shard(torch.ones(4, 4), MESH, P()),
    "p + split": lambda p: p + weft.shard(torch.ones(4, 4).double(), MESH, P("b")),
    "p * split": lambda p: p * weft.shard(torch.ones(4, 4), MESH, P(None, "b")),
    "p @ split": lambda p: p @ weft.shard(torch.ones(4, 4).double(), MESH, P("b")),
    "p @ p": lambda p: p @ p,
    "p.sum(0)": lambda p: p.sum(0),
    "p.t()": lambda p: p.t(),
    "p[1]": lambda p: p[1],
    "p.view(-1)": lambda p: p.view(-1),
    "p.t() + p": lambda p: p.t() + p,
    "cat": lambda p: torch.cat([p, p]),
    "(p * 2) + p": lambda p: (p * 2) + p,
    "p.softmax(0)": lambda p: p.softmax(0),
    "p.float()": lambda p: p.float(),
    "p.clone()": lambda p: p.clone(),
    "conj": lambda p: p.conj(),
    "foreach": lambda p: torch._foreach_mul([p], 2)[0],
}


def given(name: str) -> torch.Tensor:
    return weft.shard(torch.arange(16.0, dtype=torch.float64).reshape(4, 4) / 16, MESH, named_mapping(LAYOUTS[name]))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_it_does_not_depend_on_what_was_computed_before(name: str, call: str) -> None:
    expected = CALLS[call](given(name))
    for before, step in BEFORE.items():
        p = given(name)
        step(p)
        for _ in range(2):
            found = CALLS[call](p)
            assert found._layout is expected._layout, before
            assert torch.allclose(found.full_tensor(), expected.full_tensor()), before


def logged(function: Callable[[], object]) -> list[str]:
    with weft.comm_log() as log:
        function()
    return [record.kind for record in log if record.total_bytes]


def test_what_was_resolved_once_is_not_resolved_again() -> None:
    p = given("pending")
    assert logged(p.exp) == ["all_reduce"]
    assert logged(p.sin) == []
    assert logged((p * 2).exp) == []
    assert logged(((p + p) * 3 - p).exp) == []
    assert logged(lambda: p.t().exp()) == []
    p.mul_(2)
    assert logged(p.exp) == ["all_reduce"]


def test_a_write_to_what_was_resolved_is_resolved_again() -> None:
    mesh = weft.make_mesh({"a": 2, "b": 1})
    p = weft.shard(torch.arange(4.0), mesh, weft.NamedMapping(mesh, P("b"), unreduced=["a"]))
    last = p[3:4].unbind()[0]
    last.add_(1)
    assert (last > 3.5).item()
    assert p.tolist() == [0, 1, 2, 4]


NUMBERS = (
    float("inf"),
    float("-inf"),
    float("nan"),
    0.0,
    0,
    2.0,
    0.5,
    torch.tensor(float("inf"), device="cpu"),
    torch.tensor(0.0, device="cpu"),
)


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("first", [1.5, float("inf")])
def test_a_pending_sum_times_a_number_is_the_value_times_it(number: float | torch.Tensor, first: float) -> None:
    calls: tuple[Step, ...] = (
        lambda p: p * number,
        lambda p: p / number,
        lambda p: p.clone().mul_(number),
        lambda p: p.clone().div_(number),
        lambda p: number * p,
    )
    value = torch.tensor([2.0, 0.0, -3.0])
    for call in calls:
        contributions = [torch.tensor([3.0, 1.0, -4.0]), torch.tensor([-1.0, -1.0, 1.0])]
        mapping = weft.NamedMapping(weft.make_mesh({"a": 2}), P(), unreduced=["a"])
        p = weft.from_local(contributions, mapping)
        p * first  # calls with other numbers are found in tables
        for _ in range(2):
            assert torch.allclose(call(p).full_tensor(), call(value), equal_nan=True)
        assert torch.equal(p.full_tensor(), value)
