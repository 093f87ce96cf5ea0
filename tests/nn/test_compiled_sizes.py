"""`torch.compile` with sizes that it leaves open: a program holds for others too, and says nothing about the next."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import weft
from tests.rules.harness import memory
from weft import P

MESH = weft.make_mesh({"x": 2})
FORMS = pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])


def _spaced(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(x @ x.mT + 9 * torch.eye(x.shape[1], dtype=x.dtype))


def _added(x: torch.Tensor) -> torch.Tensor:
    return x.index_put((x[:, 0, 0].argsort(),), x, accumulate=True)


def _looks_around(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.conv1d(x.transpose(0, 2), x[:3, :, :3].permute(2, 1, 0), padding=1)


PROGRAMS: dict[str, Callable[[torch.Tensor], object]] = {
    "quantile": lambda x: torch.quantile(x, 0.3, dim=1),
    "quantile of a split dim": lambda x: torch.quantile(x, 0.3, dim=0),
    "gather": lambda x: x.gather(0, x.argsort(0)),
    "topk": lambda x: x.topk(2, 0)[0],
    "lu_factor": torch.linalg.lu_factor,
    "cholesky": _spaced,
    "index_put": _added,
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2), 1) * 2,
    "unfold": lambda x: x.unfold(0, 3, 1) * 2,
    "a convolution along a split dim": _looks_around,
    "dims that are merged": lambda x: x.flatten(),
    "dims that are merged and used": lambda x: (x * 3).view(-1, x.shape[2]).sin(),
    "a view that is written to": lambda x: _written(x.clone()),
}

SHORT = ("dims that are merged", "dims that are merged and used", "a view that is written to")


def _written(x: torch.Tensor) -> torch.Tensor:
    x[1:].mul_(3)
    x.view(-1)[2:4].zero_()
    return x


OLDER = pytest.mark.skipif(torch.__version__ < "2.13", reason="torch before 2.13 takes no open sizes in quantile")


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=OLDER) if "quantile" in name else name for name in PROGRAMS]
)
def test_ops_on_open_sizes(program: str) -> None:
    """Traced with memories apart, where each piece has sizes of its own; only programs that are short are compiled, too."""
    run, backend = PROGRAMS[program], "aot_eager" if program in SHORT else "eager"
    with memory(True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        compiled = torch.compile(run, backend=backend, dynamic=True)
        for size in (5, 6):
            x = torch.randn(size, 4, 4, dtype=torch.float64)
            expected, found = run(x), compiled(weft.shard(x, MESH, P("x")))
            for one, other in zip(_each(expected), _each(found), strict=True):
                torch.testing.assert_close(other.full_tensor(), one)


def _each(result: object) -> list[torch.Tensor]:
    return [x for x in (result if isinstance(result, (list, tuple)) else (result,)) if isinstance(x, torch.Tensor)]


@FORMS
def test_what_a_size_is_called_says_nothing_about_another_program(separate: bool) -> None:
    """A size that is open has a name, and in the next program the same name is another size."""
    with memory(separate):
        torch._dynamo.reset()
        torch.manual_seed(0)
        plain = nn.InstanceNorm2d(4, affine=True).double()
        norm = weft.nn.shard_module(copy.deepcopy(plain), MESH, {})
        compiled = torch.compile(norm, backend="eager")
        for size in (4, 6, 5):
            x = torch.randn(size, 4, 3, 3, dtype=torch.float64)
            torch.testing.assert_close(compiled(weft.shard(x, MESH, P("x"))).full_tensor(), plain(x))


EXCHANGED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], P]] = {
    "dims that are merged": (lambda x: x.reshape(-1, 8).sin(), P(None, "x")),
    "dims that are merged for a product": (lambda x: x.reshape(-1, 8) @ x[0].mT, P(None, "x")),
    "halves of a split dim": (lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1), P(None, None, "x")),
    "rows that go on": (lambda x: x.roll(1, 0) * 2, P("x")),
    "rows without the first": (lambda x: x[1:].sin(), P("x")),
    "columns around": (lambda x: nn.functional.pad(x[:, 0], (1, 2)), P("x")),
    "rows around": (lambda x: nn.functional.pad(x, (0, 0, 0, 0, 1, 2)), P("x")),
}


@FORMS
@pytest.mark.parametrize("program", EXCHANGED)
def test_what_is_exchanged_is_planned_when_sizes_are_known(program: str, separate: bool) -> None:
    """Such a program holds for all sizes that split alike, and moves what it moves without a compiler."""
    run, spec = EXCHANGED[program]
    with memory(separate):
        torch._dynamo.reset()
        torch.manual_seed(0)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(run, backend=counter, dynamic=True)
        for size in (6, 10, 12):
            value, found = torch.randn(size, 4, 8, dtype=torch.float64), []
            for each in (run, compiled):
                x = weft.shard(value, MESH, spec).requires_grad_()
                with weft.comm_log() as log:
                    y = each(x)
                    y.square().sum().backward()
                found.append((y.full_tensor(), x.grad.full_tensor(), y.stride(), y.mapping, log.counts()))
            torch.testing.assert_close(found[1][:2], found[0][:2])
            assert found[1][2:] == found[0][2:]
        assert counter.frame_count == 1


def _programs_for(run: Callable[[torch.Tensor], torch.Tensor], sizes: range) -> int:
    """How often rows of these sizes are compiled; raises unless values, gradients, layouts and movements are eager's."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(run, backend=counter, fullgraph=True)
    for size in sizes:
        value, found = torch.randn(size, 3, 5, dtype=torch.float64), []
        for each in (run, compiled):
            x = weft.shard(value, MESH, P("x")).requires_grad_()
            with weft.comm_log() as log:
                y = each(x)
                y.square().sum().backward()
            found.append((y.full_tensor(), x.grad.full_tensor(), y.stride(), y.mapping, log.counts()))
        torch.testing.assert_close(found[1][:2], found[0][:2])
        assert found[1][2:] == found[0][2:]
    return counter.frame_count


TEN_SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "edges that are repeated": lambda x: nn.functional.pad(x.transpose(0, 2), (2, 1), mode="replicate"),
    "edges that are mirrored": lambda x: nn.functional.pad(x.transpose(0, 2), (1, 2), mode="reflect"),
    "a half": lambda x: x.chunk(2)[1].sin(),
    "what half of a size takes": lambda x: x.split(x.shape[0] // 2)[0].sin(),
    "a running sum": lambda x: x.cumsum(0),
    "a running sum of what is sorted": lambda x: x.sort(0)[0].cumsum(0),
    "a product": lambda x: x.prod(0),
    "shards that change places": lambda x: weft.ppermute(x.sin(), [(0, 1), (1, 0)]),
    "views of one of several": lambda x: torch.stack([x, x * 2])[1].transpose(0, 1).unflatten(2, (5, 1)).sin(),
    "an averaged loss": lambda x: nn.functional.huber_loss(x, x.detach().flip(0)),
}


@FORMS
@pytest.mark.parametrize("program", TEN_SIZES)
def test_ten_sizes_of_a_split_dim_are_compiled_twice(program: str, separate: bool) -> None:
    """Forward and backward; it moves what it moves without a compiler."""
    with memory(separate):
        assert _programs_for(TEN_SIZES[program], range(8, 48, 4)) == 2


def _last(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A last row, which is pending, and lies in strides that are left open."""
    return nn.functional.linear(nn.functional.embedding(tokens, table).cumsum(1)[:, -1], table).argmax(-1)


def _in_parts(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A pending result that two graphs hand on."""
    y = nn.functional.embedding(tokens, table)
    torch._dynamo.graph_break()
    return y.relu() + y.sum()


@FORMS
@pytest.mark.parametrize("run", [_last, _in_parts])
def test_sequences_that_grow(run: Callable[..., torch.Tensor], separate: bool) -> None:
    """As those that a model generates."""
    with memory(separate):
        torch._dynamo.reset()
        compiled = torch.compile(run, backend="aot_eager")
        table = weft.shard(torch.randn(11, 8, dtype=torch.float64), MESH, P("x")).requires_grad_()
        for size in range(2, 6):
            tokens = weft.shard(torch.arange(4 * size).reshape(4, size) % 11, MESH, P())
            expected, found = run(tokens, table), compiled(tokens, table)
            torch.testing.assert_close(found.full_tensor(), expected.full_tensor())
            assert (found.mapping, found.stride()) == (expected.mapping, expected.stride())


UNEVEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a chain": lambda x: x.sin() * 2,
    "sums of bags": lambda x: nn.functional.embedding_bag(x.detach().argsort(1)[..., 0], x[0], mode="sum"),
    "a norm": lambda x: nn.functional.layer_norm(x, x.shape[1:]),
}


@FORMS
@pytest.mark.parametrize("program", UNEVEN)
def test_sizes_that_are_odd_and_even_have_a_program_each(program: str, separate: bool) -> None:
    """Beside the first: of five rows and of six one device has three, which is no size that stays."""
    with memory(separate):
        assert _programs_for(UNEVEN[program], range(7, 17)) <= 3


@FORMS
@pytest.mark.parametrize(
    ("way", "is_causal"), [("gather keys", True), ("split heads", False), ("ring", True), ("merge", False)]
)
def test_attention_of_ten_split_sequences_is_compiled_twice(way: str, is_causal: bool, separate: bool) -> None:
    """However keys and queries meet, it moves what it moves without a compiler."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    specs = P(None, None, "x" if way != "merge" else None), *[P(None, None, "x")] * 2
    with memory(separate), weft.prefer(way):
        torch._dynamo.reset()
        torch.manual_seed(0)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(run, backend=counter, fullgraph=True)
        for size in range(8, 48, 4):
            values, found = [torch.randn(3, 2, size, 5, dtype=torch.float64) for _ in range(3)], []
            for each in (run, compiled):
                given = [weft.shard(x, MESH, spec).requires_grad_() for x, spec in zip(values, specs, strict=True)]
                with weft.comm_log() as log:
                    y = each(*given)
                    y.square().sum().backward()
                grads = [x.grad for x in given]
                moved = sorted((r.kind, r.shape, r.bytes_received) for r in log)
                found.append(([x.full_tensor() for x in (y, *grads)], [x.mapping for x in (y, *grads)], moved))
            torch.testing.assert_close(found[1][0], found[0][0])
            assert found[1][1:] == found[0][1:]
        assert counter.frame_count == 2


AROUND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a convolution": lambda x: nn.functional.conv2d(x, torch.ones(4, 3, 3, 3, dtype=x.dtype), padding=1),
    "a transposed convolution": lambda x: nn.functional.conv_transpose2d(
        x, torch.ones(3, 2, 4, 4, dtype=x.dtype), stride=2
    ),
    "a convolution to more channels than samples": lambda x: nn.functional.conv2d(
        x, torch.ones(12, 3, 3, 3, dtype=x.dtype), padding=1
    ),
    "maxima": lambda x: nn.functional.max_pool2d(x, 3, 2, 1),
    "slices": lambda x: x.unfold(2, 3, 2).sin(),
    "means": lambda x: nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "a convolution whose weight and bias are split": lambda x: nn.functional.conv2d(
        x,
        weft.shard(torch.ones(4, 3, 3, 3, dtype=x.dtype), MESH, P("x")),
        weft.shard(torch.ones(4, dtype=x.dtype), MESH, P("x")),
    ),
}


@FORMS
@pytest.mark.parametrize("program", AROUND)
def test_batches_of_what_devices_look_over_borders_of_are_compiled_twice(program: str, separate: bool) -> None:
    """What they exchange is planned for the size of space, whatever that of the batch."""
    run, spec = AROUND[program], P() if "weight" in program else P(None, None, "x")
    with memory(separate):
        torch._dynamo.reset()
        torch.manual_seed(0)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(run, backend=counter)
        for size in (4, 5, 7, 14):
            value, found = torch.randn(size, 3, 8, 6, dtype=torch.float64), []
            for each in (run, compiled):
                x = weft.shard(value, MESH, spec).requires_grad_()
                with weft.comm_log() as log:
                    y = each(x)
                    y.square().sum().backward()
                moved = sorted((r.kind, r.shape, r.bytes_received) for r in log)
                found.append((y.full_tensor(), x.grad.full_tensor(), y.stride(), y.mapping, moved))
            torch.testing.assert_close(found[1][:2], found[0][:2])
            assert found[1][2:] == found[0][2:]
        assert counter.frame_count == 2


@FORMS
def test_sizes_that_are_settled_are_those_of_pieces_too(separate: bool) -> None:
    """Torch may call the size of a tensor and that of its only piece by two names."""
    with memory(separate):
        torch._dynamo.reset()

        def run(x: torch.Tensor) -> torch.Tensor:
            return nn.functional.avg_pool1d(x, 2)

        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        for size in (8, 12):
            value = torch.randn(3, 4, size)
            results = []
            for each in (run, compiled):
                x = weft.shard(value, MESH, P(None, None, "x")).requires_grad_()
                each(x).square().sum().backward()
                results.append(x.grad.full_tensor())
            torch.testing.assert_close(results[1], results[0])


WAYS_BACK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the gradient of merged dims": lambda x: x.reshape(-1),
    "the gradient of rows that are repeated": lambda x: x.repeat_interleave(2, 0),
    "strides that are squares": lambda x: x.cummax(2)[0],
    "sizes that torch itself asks for": lambda x: x.sgn(),
    "a variance, which is divided by a size": lambda x: x.var(0),
    "a running sum": lambda x: x.cumsum(0),
    "a product": lambda x: x.prod(0),
}


@FORMS
@pytest.mark.parametrize("program", WAYS_BACK)
def test_sizes_that_only_the_way_back_asks_for(program: str, separate: bool) -> None:
    """Some it settles, as what takes elements by their number; then the program holds for one size, and what moves is logged all the same."""
    run = WAYS_BACK[program]
    with memory(separate):
        torch._dynamo.reset()
        compiled = torch.compile(run, backend="aot_eager", dynamic=True)
        for size in (4, 6):
            x = torch.randn(size, size, size, dtype=torch.float64)
            found = []
            for each in (run, compiled):
                here = weft.shard(x, MESH, P("x")).requires_grad_()
                with weft.comm_log() as log:
                    result = each(here)
                    result.square().sum().backward()
                found.append((result, here.grad, sorted(f"{r.kind} {r.axes} {r.bytes_received}" for r in log)))
            (expected, gradient, moved), (actual, other, as_well) = found
            torch.testing.assert_close(actual.full_tensor(), expected.full_tensor())
            torch.testing.assert_close(other.full_tensor(), gradient.full_tensor())
            assert (actual.mapping, as_well) == (expected.mapping, moved)


@FORMS
def test_a_loss_of_shifted_labels_is_compiled_twice(separate: bool) -> None:
    """`logits[:, :-1]` takes all of the batch, however large that is."""

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 7), labels[:, 1:].reshape(-1))

    with memory(separate):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(loss, backend=counter, fullgraph=True)
        for size in (4, 6, 8, 10):
            logits, labels = torch.randn(size, 5, 7), torch.randint(0, 7, (size, 5))
            here = weft.shard(logits, MESH, P("x")).requires_grad_()
            compiled(here, weft.shard(labels, MESH, P("x"))).backward()
            loss(logits.requires_grad_(), labels).backward()
            torch.testing.assert_close(here.grad.full_tensor(), logits.grad)
        assert counter.frame_count == 2


@FORMS
def test_a_gradient_whose_pieces_lie_otherwise_than_traced(separate: bool) -> None:
    """Torch takes copies of such pieces, and the gradient, which is the user's, stays what it is."""
    with memory(separate):
        torch._dynamo.reset()
        a, b = torch.randn(1, 3, 4), torch.randn(4, 4)
        plain = torch.einsum("aij,jk->aik", a.requires_grad_(), b)
        here = weft.shard(a.detach(), MESH, P("x")).requires_grad_()
        found = torch.compile(lambda a, b: torch.einsum("aij,jk->aik", a, b), backend="aot_eager", dynamic=True)(
            here, weft.shard(b, MESH, P("x"))
        )
        given = torch.randn(1, 3, 4)
        grad = weft.shard(given, MESH, P())
        torch.testing.assert_close(
            torch.autograd.grad(found, here, grad)[0].full_tensor(), torch.autograd.grad(plain, a, given)[0]
        )
        assert torch.equal(grad.full_tensor(), given)


@FORMS
def test_nothing_that_is_handed_on_in_open_sizes(separate: bool) -> None:
    """A result without elements that has a gradient: torch asks for its twin before anybody traces."""
    with memory(separate):
        torch._dynamo.reset()
        given = weft.shard(torch.zeros(0, 2, 2, dtype=torch.float64), MESH, P("x")).requires_grad_()
        found = torch.compile(lambda x: x.sin() * 2, backend="aot_eager", dynamic=True)(torch.linalg.eigvalsh(given))
        assert found.shape == (0, 2)
        found.sum().backward()
        assert given.grad.shape == (0, 2, 2)


@FORMS
def test_a_view_of_a_pending_tensor_is_written_to_in_open_sizes(separate: bool) -> None:
    """What is written is brought back to the tensor, whose contributions it becomes."""
    with memory(separate):
        torch._dynamo.reset()
        mesh = weft.make_mesh({"a": 2, "b": 2})
        pending = weft.NamedMapping(mesh, P(None, "b"), {"a": "mean"})
        shards = [torch.full((2, 1 - at % 2), float(at // 2)) for at in range(4)]
        x = weft.from_local(shards, pending, shape=(2, 1))
        torch.compile(lambda x: x.squeeze(-1).mul_(3), backend="aot_eager", dynamic=True)(x)
        assert x.full_tensor().tolist() == [[1.5], [1.5]]
