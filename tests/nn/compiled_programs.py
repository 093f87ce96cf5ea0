"""Programs that are run as they are and compiled, in every form: each gives the same, and moves the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional

import weft
from weft import P
from weft.watch.comm_log import CommRecord

Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Compared:
    """A program, and how what it is given lies; numbers that are not whole have gradients."""

    function: Function
    given: tuple[tuple[torch.Tensor, P], ...]


def records(log: Iterable[CommRecord], *, in_parts: bool = False) -> list[str]:
    """What was logged, but for who asked, in an order of its own: compiled backward passes give gradients in another.

    `in_parts`: for linear layers that come in parts in one program alone, of which sums are matrices.
    """
    return sorted(
        f"{r.kind} {r.axes} {math.prod(r.shape) if in_parts else r.shape} {r.bytes_received} {r.op}" for r in log
    )


def _numbers(*sizes: int) -> torch.Tensor:
    return torch.linspace(-1, 2, math.prod(sizes), dtype=torch.float64).sin().reshape(sizes)


def _tied(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    logits = functional.embedding(tokens, table).tanh() @ table.t()
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _shown(x: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Merged dims, of which the elements have not been asked for when the way back begins."""
    return x.reshape(-1, 3), tokens.flatten() * 2, x.sin()


def _masked(x: torch.Tensor, pads: torch.Tensor) -> torch.Tensor:
    """Attention as torch's module says it: of the merged mask only views go on, and nobody needs its elements there."""
    q = x.unflatten(2, (2, 2)).transpose(1, 2)
    mask = torch.zeros_like(pads, dtype=x.dtype).masked_fill_(pads, -9.0)
    mask = mask.view(-1, 1, 1, 4).expand(-1, 2, -1, -1).reshape(-1, 1, 4)
    return functional.scaled_dot_product_attention(q, q, q, mask.view(-1, 2, 1, 4))


def _cached(cache: torch.Tensor, step: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return (cache * 1).index_copy_(1, at, step).index_fill_(1, at[:1], 3.0).sum(2)


ROWS, TWICE = torch.tensor([0, 2, 0]), torch.tensor([1, 5, 1])
TOKENS = torch.tensor([[0, 3, 10, 7], [9, 9, 1, 0]])
PROGRAMS: dict[str, Compared] = {
    "writes to rows": Compared(
        lambda x, v, at: x.index_put((at[:2],), v), ((_numbers(4, 6), P("a")), (_numbers(2, 6), P()), (ROWS, P()))
    ),
    "adds to rows": Compared(
        lambda x, v, at: x.index_put((at,), v, accumulate=True),
        ((_numbers(4, 6), P("a")), (_numbers(3, 6), P(None, "b")), (ROWS, P())),
    ),
    "adds to elements": Compared(
        lambda x, v, at, to: x.index_put((at, to), v, accumulate=True),
        ((_numbers(4, 6), P("a", "b")), (_numbers(3), P()), (ROWS, P()), (TWICE, P())),
    ),
    "adds to elements, of which some devices have none": Compared(
        lambda x, v, at: x.index_put((at, at * 0), v, accumulate=True),
        ((_numbers(4, 1), P("a", "b")), (_numbers(3), P()), (ROWS, P())),
    ),
    "copies into a cache": Compared(
        _cached, ((_numbers(4, 6, 2), P("a", "b")), (_numbers(4, 2, 2), P("a")), (torch.tensor([4, 1]), P()))
    ),
    "sums of bags": Compared(
        lambda bags, table, by: functional.embedding_bag(bags, table, mode="sum", per_sample_weights=by, padding_idx=9),
        ((TOKENS, P()), (_numbers(11, 6), P("b")), (_numbers(2, 4), P())),
    ),
    "means of bags": Compared(
        lambda bags, table: functional.embedding_bag(bags, table, mode="mean"),
        ((TOKENS, P("a")), (_numbers(11, 6), P("b"))),
    ),
    "a lookup": Compared(functional.embedding, ((TOKENS, P("a")), (_numbers(11, 6), P("b")))),
    "a table that is also the output": Compared(_tied, ((TOKENS, P()), (_numbers(11, 6), P("b")))),
    "a split table that is also the output": Compared(_tied, ((TOKENS, P("a")), (_numbers(11, 6), P("a")))),
    "a mask of an odd batch": Compared(_masked, ((_numbers(5, 4, 4), P("a")), (_numbers(5, 4) > 0.7, P("a")))),
    "a gradient inside": Compared(
        lambda x, w: torch.func.grad(lambda w: (x @ w).sin().sum())(w),
        ((_numbers(4, 6), P("a")), (_numbers(6, 4), P(None, "b"))),
    ),
    "a gradient inside of the program": Compared(
        lambda x, w: torch.func.grad(lambda w: (x @ w).sin().sum())(w),
        ((_numbers(4, 6), P("a")), (_numbers(6, 4), P(None, "b"))),
    ),
    "a norm by kept statistics": Compared(
        lambda x, w: functional.batch_norm(x, w.detach() / 2, w.detach().square() + 1, w, eps=0.1),
        ((_numbers(4, 6, 3), P("a")), (_numbers(6), P("b"))),
    ),
    "a step, which is an op of the compiler's": Compared(
        lambda x, g, v: (x * 1).addcmul_(g, v, value=0.5).addcdiv_(g, v.exp(), value=-0.1),
        ((_numbers(4, 6), P("a", "b")), (_numbers(4, 6), P("a", "b")), (_numbers(4, 6), P("a", "b"))),
    ),
    "linear layers of one sample, which one device has": Compared(
        lambda x, w, v: functional.linear(functional.linear(x, w).sin(), v),
        ((_numbers(1, 4, 6), P("a")), (_numbers(5, 6), P()), (_numbers(3, 5), P())),
    ),
    "linear layers of which sums are left": Compared(
        lambda x, w, v: functional.linear(functional.linear(x, w).sin(), v).relu(),
        ((_numbers(4, 4, 6), P("a")), (_numbers(4, 6), P("b")), (_numbers(3, 4), P(None, "b"))),
    ),
    "a recurrence from no state": Compared(
        lambda x, w, v, b: torch.gru(x, torch.zeros(1, 5, 2).to(x), [w, v, b, b], True, 1, 0.0, False, False, True)[0],
        ((_numbers(5, 3, 4), P("a")), (_numbers(6, 4), P()), (_numbers(6, 2), P()), (_numbers(6), P())),
    ),
    "a sum along no dims": Compared(lambda x: x.nansum(()), ((_numbers(4, 6), P("a")),)),
    "merged dims": Compared(_shown, ((_numbers(4, 4, 3), P("a", "b")), (TOKENS, P("a", "b")))),
}


def compare(program: Compared, mesh: weft.DeviceMesh) -> None:
    """Asserts that results, gradients, how these lie, and what moves are the same compiled and not."""
    torch._dynamo.reset()
    compiled = torch.compile(program.function, backend="aot_eager", fullgraph=True)
    found, logs = [], []
    for run in (program.function, compiled):
        given = [weft.shard(x, mesh, spec) for x, spec in program.given]
        leaves = [x.requires_grad_() for x in given if x.is_floating_point()]
        with weft.comm_log() as log:
            results = run(*given)
            results = results if isinstance(results, tuple) else (results,)
            wholes = [x.full_tensor() for x in results]
            sum(x.square().sum() for x in results if x.requires_grad).backward()
        logs.append(records(log))
        seen = [*results, *(x.grad for x in leaves)]
        found.append(([*wholes, *(x.grad.full_tensor() for x in leaves)], [(x.mapping, x.stride()) for x in seen]))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert found[0][1] == found[1][1]
    assert logs[0] == logs[1], logs
