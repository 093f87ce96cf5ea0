"""What is logged, and what the policy refuses, is the same in one memory as with memories apart; what is refused changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch.nn import functional

import weft
from tests.rules.harness import memory
from tests.tensor.program_words import WeftWords
from tests.tensor.programs import Program
from tests.tensor.view_making import make_chain
from weft.errors import ReshardError
from weft.sharding import ReduceOp
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

MESH = weft.make_mesh({"a": 2, "b": 2})
Call = Callable[..., object]


def made(*layouts: Layout) -> list[torch.Tensor]:
    """Tensors of shape 4 × 4 in these layouts."""
    whole = (torch.arange(16.0).reshape(4, 4) % 7) / 8
    return [weft.shard(whole + k, MESH, named_mapping(layout)) for k, layout in enumerate(layouts)]


LAYOUTS = {
    "replicated": Layout(MESH, [[], []]),
    "rows": Layout(MESH, [["a"], []]),
    "columns": Layout(MESH, [[], ["a"]]),
    "grid": Layout(MESH, [["a"], ["b"]]),
    "deep": Layout(MESH, [["b", "a"], []]),
    "pending": Layout(MESH, [[], []], {"a": ReduceOp.SUM}),
    "pending rows": Layout(MESH, [["b"], []], {"a": ReduceOp.SUM}),
}


def setitem(x: torch.Tensor, index: object, value: object) -> None:
    x[index] = value


def twice(x: torch.Tensor) -> None:
    x.add_(1)
    x.mul_(2)


def lstm(x: torch.Tensor) -> None:
    torch.manual_seed(0)
    weft.nn.shard_module(torch.nn.LSTM(4, 4), MESH, {})(x)


def mean_of_windows(x: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(x, 1, 3).sum()


def convolved_with(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.conv_transpose1d(x[None], torch.ones(4, 4, 3), bias, padding=1)


def normed_by_neighbours(x: torch.Tensor) -> torch.Tensor:
    return functional.local_response_norm(x[:, None], 2).sum()


def step(x: torch.Tensor) -> None:
    x.requires_grad_()
    (x * x).sum().backward()
    torch.optim.Adam([x]).step()


ONE: dict[str, Call] = {
    "exp": torch.exp,
    "softmax": lambda x: x.softmax(0),
    "softmax of the last": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(0),
    "amax": lambda x: x.amax(1),
    "mean, var": lambda x: torch.var_mean(x, 0),
    "argmax": lambda x: x.argmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(0),
    "topk": lambda x: x.topk(2, 0),
    "norm": torch.linalg.vector_norm,
    "index": lambda x: x[1],
    "slice": lambda x: x[1:3],
    "step": lambda x: x[::2],
    "a list": lambda x: x[[0, 2]],
    "a mask": lambda x: x[torch.tensor([True, False, True, True])],
    "gather": lambda x: x.gather(0, torch.zeros(2, 4, dtype=torch.int64)),
    "index_select": lambda x: x.index_select(0, torch.tensor([1, 1, 0])),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "reshape": lambda x: x.reshape(2, 8),
    "flatten": lambda x: x.reshape(-1),
    "reshape, then exp": lambda x: x.reshape(2, 8).exp(),
    "t": lambda x: x.t().contiguous(),
    "chunk": lambda x: [part * 2 for part in x.chunk(2)],
    "diagonal": lambda x: x.diagonal().clone(),
    "unfold": lambda x: x.unfold(0, 2, 1) * 1,
    "pad": lambda x: functional.pad(x, (1, 1, 1, 0)),
    "tril": torch.tril,
    "layer_norm": lambda x: functional.layer_norm(x, (4,)),
    "conv": lambda x: functional.conv1d(x[None], torch.ones(4, 4, 3), padding=1),
    "pool": lambda x: functional.max_pool1d(x[None], 2),
    "inverse": lambda x: torch.linalg.inv(x + 4 * torch.eye(4)),
    "full_tensor": lambda x: x.full_tensor(),
    "item": lambda x: x[0, 0].item(),
    "repeat": lambda x: x.repeat(2, 1),
    "nonzero": lambda x: x.nonzero(),
    "one_hot": lambda x: functional.one_hot(x.long(), 4),
    "embedding": lambda x: functional.embedding(torch.tensor([0, 3, 1]), x),
    "dropout": lambda x: functional.dropout(x, 0.5),
    "gradients of pools": lambda x: torch.vmap(torch.func.grad(mean_of_windows), in_dims=3)(x.reshape(2, 2, 2, 2)),
    "gradients of biases": lambda x: torch.func.vjp(lambda b: convolved_with(x, b), torch.ones(4))[1](x[None] * 0.5),
    "second gradients of windows": lambda x: torch.func.hessian(normed_by_neighbours)(x[:2, :2]),
    # writes
    "add_ a number": lambda x: x.add_(1),
    "mul_ a number": lambda x: x.mul_(2),
    "zero_": lambda x: x.zero_(),
    "relu_": lambda x: x.relu_(),
    "add_ plain": lambda x: x.add_(torch.ones(4, 4)),
    "copy_ plain": lambda x: x.copy_(torch.ones(4, 4)),
    "set one": lambda x: setitem(x, (0, 1), 5.0),
    "set rows": lambda x: setitem(x, slice(1, 3), 5.0),
    "set rows to plain": lambda x: setitem(x, slice(1, 3), torch.ones(2, 4)),
    "set a list": lambda x: setitem(x, [0, 2], 5.0),
    "set a mask": lambda x: setitem(x, torch.tensor([True, False, True, True]), 5.0),
    "fill a view": lambda x: x[1:].fill_(3),
    "add to a view": lambda x: x[:, 1].add_(3),
    "add to a turned view": lambda x: x.t()[0].add_(3),
    "masked_fill_": lambda x: x.masked_fill_(torch.eye(4, dtype=torch.bool), 0),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(1, 4, dtype=torch.int64), 2.0),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 4)),
    "cumsum_": lambda x: x.cumsum_(0),
    "tril_": lambda x: x.tril_(),
    "foreach a number": lambda x: torch._foreach_add_([x], 1),
    "fill the diagonal": lambda x: x.diagonal().fill_(3),
    "fill_diagonal_": lambda x: x.fill_diagonal_(3),
    "write to a view of a view": lambda x: x[1:].t()[:2].add_(1),
    "write to a view twice": lambda x: twice(x[1:]),
    "write to a base, then read": lambda x: (v := x[1:], x.add_(1), v * 2),
    "write to a flat view": lambda x: x.view(-1).add_(1),
    "write to a part of a flat view": lambda x: x.view(-1)[3:].add_(1),
    "write to a reshaped view": lambda x: x.view(2, 8)[0].add_(1),
    "write to windows": lambda x: x.unfold(0, 2, 2).mul_(2),
    "write to chunks": lambda x: [part.mul_(2) for part in x.chunk(2)],
    "write to rows": lambda x: [row.mul_(2) for row in x.unbind()],
    "write to a squeezed view": lambda x: x[None].transpose(0, 1)[1:].add_(1),
    "write to a detached view": lambda x: x.detach()[1:].add_(1),
    "lstm": lambda x: lstm(x[None]),
    "backward": lambda x: (x.requires_grad_() * 2).softmax(0).sum().backward(),
    "an optimizer's step": step,
    "normal": lambda x: x.normal_(),
    "clone": lambda x: x.clone(),
    "out= a fresh one": lambda x: torch.exp(x, out=weft.shard(torch.zeros(4, 4), MESH, weft.P("a", "b"))),
}
TWO: dict[str, Call] = {
    "add": torch.add,
    "mul": torch.mul,
    "matmul": torch.matmul,
    "matmul, turned": lambda x, y: x @ y.t(),
    "linear": functional.linear,
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "attention": lambda x, y: functional.scaled_dot_product_attention(x[None, None], y[None, None], y[None, None]),
    "foreach": lambda x, y: torch._foreach_add([x], [y]),
    "add_ of rows that moved": lambda x, y: (x[:, :2] + 1).add_((y[:, :, None].expand(4, 4, 2) + 1)[0]),
    "mse": functional.mse_loss,
    "outer": lambda x, y: torch.outer(x[0], y[0]),
    # writes
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "copy_": lambda x, y: x.copy_(y),
    "set all": lambda x, y: setitem(x, slice(None), y),
    "set rows": lambda x, y: setitem(x, slice(1, 3), y[:2]),
    "set a row": lambda x, y: setitem(x, 0, y[1]),
    "set a list": lambda x, y: setitem(x, [0, 2], y[:2]),
    "set a column": lambda x, y: setitem(x, (slice(None), 1), y[0]),
    "add, out=": lambda x, y: torch.add(x, y, out=weft.shard(torch.zeros(4, 4), MESH, weft.P("a", "b"))),
    "out= the other": lambda x, y: torch.exp(x, out=y),
    "matmul, out=": lambda x, y: torch.matmul(x, x, out=y),
    "sort, out=": lambda x, y: torch.sort(x, 0, out=(y, weft.shard(torch.zeros(4, 4).long(), MESH, weft.P("b", "a")))),
    "addmm_": lambda x, y: x.addmm_(y, y),
    "lerp_": lambda x, y: x.lerp_(y, 0.5),
    "addcmul_": lambda x, y: x.addcmul_(y, y),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 1, 0),
    "index_copy_": lambda x, y: x.index_copy_(0, torch.tensor([0]), y[:1]),
    "foreach_": lambda x, y: torch._foreach_add_([x], [y]),
    "foreach copy_": lambda x, y: torch._foreach_copy_([x], [y]),
    "foreach lerp_": lambda x, y: torch._foreach_lerp_([x], [y], 0.5),
    "baddbmm_": lambda x, y: x[None].baddbmm_(y[None], y[None]),
}


def records(call: Call, layouts: Sequence[Layout]) -> list[tuple[object, ...]]:
    given = made(*layouts)
    with weft.comm_log() as log:
        call(*given)
    return [
        (r.kind, r.axes, str(r.source), str(r.target), r.shape, r.bytes_received, r.total_bytes, r.op, r.implicit)
        for r in log
    ]


def refused(call: Call, layouts: Sequence[Layout]) -> str | None:
    """What the policy says; what it has refused is as it was."""
    given = made(*layouts)
    before = [x.full_tensor().clone() for x in given]
    try:
        with weft.reshard_policy("raise"):
            call(*given)
    except ReshardError as error:
        for x, value in zip(given, before, strict=True):
            assert torch.equal(x.full_tensor(), value), "it was changed"
        return str(error)
    return None


def cases() -> Iterator[tuple[str, Call, list[str]]]:
    for name, call in ONE.items():
        for layout in LAYOUTS:
            yield name, call, [layout]
    for name, call in TWO.items():
        for shift, one in itertools.product((0, 1, 3), range(len(LAYOUTS))):
            names = list(LAYOUTS)
            yield name, call, [names[one], names[(one + shift) % len(names)]]


def both(function: Callable[[], object]) -> tuple[object, object]:
    found = []
    for separate in (True, False):
        with memory(separate):
            torch.manual_seed(0)
            found.append(function())
    return found[0], found[1]


@pytest.mark.parametrize("name", [*ONE, *(f"{name} of two" for name in TWO)])
def test_the_log_is_the_same_in_both_memories(name: str) -> None:
    table = [case for case in cases() if (case[0] if len(case[2]) == 1 else f"{case[0]} of two") == name]
    for _, call, layouts in table:
        given = [LAYOUTS[each] for each in layouts]
        apart, one = both(lambda call=call, given=given: records(call, given))
        assert one == apart, layouts
        apart, one = both(lambda call=call, given=given: refused(call, given))
        assert one == apart, layouts


@pytest.mark.parametrize("batch", range(2))
def test_the_log_of_chains_of_views_is_the_same_in_both_memories(batch: int) -> None:
    for seed in range(batch * 60, (batch + 1) * 60):
        program = make_chain(seed)

        def log(program: Program = program) -> list[tuple[object, ...]]:
            return records(lambda: program.run(WeftWords(program.sizes)), ())

        apart, one = both(log)
        assert one == apart, program


ACROSS: dict[str, Call] = {
    "batch norm": lambda x, w: functional.batch_norm(x, None, None, w, w, True),
    "running statistics": lambda x, w: functional.batch_norm(x, w + 0, w + 1, training=True),
    "layer norm": lambda x, w: functional.layer_norm(x, (4,), w, w),
    "addmv": lambda x, w: torch.addmv(w, x, w),
    "add": lambda x, w: x + w,
}


@pytest.mark.parametrize("name", ACROSS)
def test_the_log_of_tensors_on_two_meshes_is_the_same_in_both_memories(name: str) -> None:
    there = weft.make_mesh({"c": 3})
    for spec, layout in itertools.product((weft.P(), weft.P("c")), list(LAYOUTS.values())[::3]):

        def log(spec: weft.P = spec, layout: Layout = layout) -> list[tuple[object, ...]]:
            w = weft.shard(torch.arange(4.0), there, spec)
            return records(lambda x: ACROSS[name](x, w), [layout])

        apart, one = both(log)
        assert one == apart, (spec, layout)
