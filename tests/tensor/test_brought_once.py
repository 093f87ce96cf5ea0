"""What an op was brought serves the next op that reads it there, as long as it is the same value."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch

import weft
from weft import P
from weft.engine.kept import last_kept

MESH = weft.make_mesh({"tp": 4})


def computed() -> weft.Tensor:
    """A tensor of 10 rows, split unevenly, that an op has made."""
    return weft.shard(torch.arange(80.0, dtype=torch.float64).view(10, 8), MESH, P("tp")) * 1


def weight() -> weft.Tensor:
    """A matrix with more columns than there are rows, so that the rows are gathered and not the matrix."""
    generator = torch.Generator().manual_seed(0)
    return weft.shard(torch.randn(8, 64, dtype=torch.float64, generator=generator), MESH, P(None, "tp"))


def gathers(run: Callable[[], object]) -> int:
    with weft.comm_log() as log:
        run()
    return log.counts().get("all_gather", 0)


def test_three_products_gather_once() -> None:
    x, w = computed(), weight()
    assert gathers(lambda: [x @ w, x @ w, x @ w]) == 1
    assert gathers(lambda: [x.view(10, 2, 4).view(10, 8) @ w, x @ w]) == 1


def test_a_transposed_one_is_the_same_memory() -> None:
    x, w = computed(), weight()
    with weft.comm_log() as log:
        y, z = x @ w, w.t() @ x.t()
    assert log.counts() == {"all_gather": 1}
    torch.testing.assert_close(z.full_tensor(), y.full_tensor().t())


def test_a_pending_sum_is_scattered_once() -> None:
    halves = [weft.shard(torch.randn(8, 8), MESH, spec) for spec in (P(None, "tp"), P("tp"), P("tp"))]
    x = halves[0] @ halves[1]
    assert x.mapping.unreduced
    with weft.comm_log() as log:
        y = x + halves[2] + (x * halves[2])
    assert log.counts() == {"reduce_scatter": 1}
    whole = [each.full_tensor() for each in halves]
    torch.testing.assert_close(y.full_tensor(), whole[0] @ whole[1] * (1 + whole[2]) + whole[2])


def test_what_grows_is_resolved_as_it_grows() -> None:
    """As a cache of keys does, to which each token adds its own."""
    left, right = (weft.shard(torch.randn(2, 8, 4), MESH, P(None, None, "tp")) for _ in range(2))

    def made(k: int) -> weft.Tensor:
        return (left * k) @ right.transpose(1, 2)

    grown, plain = made(1), made(1).full_tensor()
    grown.exp()  # resolves it
    for k in range(2, 6):
        grown, plain = torch.cat([grown, made(k)], 1), torch.cat([plain, made(k).full_tensor()], 1)
        assert grown.mapping.unreduced
        with weft.comm_log() as log:
            found = grown.exp()
        assert [(record.kind, record.shape) for record in log] == [("all_reduce", (2, 8, 8))]
        torch.testing.assert_close(found.full_tensor(), plain.exp(), rtol=1e-4, atol=1e-4)


WRITES: dict[str, Callable[[weft.Tensor], object]] = {
    "in place": lambda x: x.add_(1),
    "an item": lambda x: x.__setitem__((3, 2), -7.0),
    "a view": lambda x: x[2:].mul_(2),
    "its data": lambda x: x.data.sub_(3),
    "out=": lambda x: torch.add(x, 5, out=x),
    "a list": lambda x: torch._foreach_add_([x], 1.5),
    "another value": lambda x: setattr(x, "data", x.detach() * 4),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_was_written_to_is_brought_again(how: str, mode: Callable[[], torch.no_grad]) -> None:
    with mode():
        x, w = computed(), weight()
        for _ in range(3):
            x @ w
            WRITES[how](x)
            assert gathers(lambda: x @ w) == 1
            torch.testing.assert_close((x @ w).full_tensor(), x.full_tensor() @ w.full_tensor())


def test_another_thread_may_write() -> None:
    x, w = computed(), weight()
    x @ w
    thread = threading.Thread(target=x.add_, args=(1,))
    thread.start()
    thread.join()
    torch.testing.assert_close((x @ w).full_tensor(), x.full_tensor() @ w.full_tensor())


def test_writes_to_other_tensors_change_nothing() -> None:
    x, w, other = computed(), weight(), computed()

    def run() -> None:
        x @ w
        other.add_(1)
        x @ w

    assert gathers(run) == 1


def test_whoever_begins_to_look_on_is_told() -> None:
    """So that a log does not depend on what ran before it."""
    x, w = computed(), weight()
    x @ w
    assert gathers(lambda: x @ w) == 1
    assert gathers(lambda: x @ w) == 1
    with weft.reshard_policy("raise"), pytest.raises(weft.errors.ReshardError, match="moves a tensor of shape"):
        x @ w


@pytest.mark.parametrize("write", [torch.add, torch.maximum, torch.hypot])
def test_not_when_the_op_that_it_was_brought_for_has_written_to_it(write: Callable[..., torch.Tensor]) -> None:
    a, b, c = (torch.randn(8, 8, dtype=torch.float64) for _ in range(3))
    x = weft.shard(a, MESH, P(None, "tp")) @ weft.shard(b, MESH, P("tp"))
    y, plain = weft.shard(c, MESH, P("tp")), a @ b
    for _ in range(2):
        write(x, y, out=x)
        write(plain, c, out=plain)
        torch.testing.assert_close(torch.hypot(x, y).full_tensor(), torch.hypot(plain, c))


def test_one_is_kept_and_none_longer_than_its_source() -> None:
    x, y, w = computed(), computed(), weight()
    with weft.comm_log():
        x @ w
        first = weakref.ref(last_kept().result)
        y @ w
        assert first() is None
        second = weakref.ref(last_kept().result)
    del y
    gc.collect()
    assert second() is None
    assert last_kept() is None


def test_parameters_are_not_kept() -> None:
    x = weft.shard(torch.randn(64, 8), MESH, P("tp"))
    w = weft.shard(torch.randn(8, 8), MESH, P(None, "tp")).requires_grad_()
    with weft.comm_log() as log:
        x @ w
    assert log.counts() == {"all_gather": 1}
    assert last_kept() is None


def test_what_is_detached_is_reduced_with_its_tensor(memory) -> None:
    """Whichever of them is needed first, and the second time as at first; written to, both are reduced anew."""
    w = weft.shard(torch.ones(8, 3, dtype=torch.float64), MESH, P("tp")).requires_grad_()
    for _ in range(2):
        y = weft.shard(torch.ones(2, 8, dtype=torch.float64), MESH, P(None, "tp")) @ w
        with weft.comm_log() as log:
            for x in (y.detach(), y, y.detach().detach(), y.data):
                torch.testing.assert_close(x.sin().full_tensor(), torch.full((2, 3), 8.0, dtype=torch.float64).sin())
        assert log.counts() == {"all_reduce": 1}
        y.detach().mul_(2)
        assert y.sin().full_tensor().equal(y.detach().sin().full_tensor())
        assert y.sin().full_tensor()[0, 0] == torch.tensor(16.0, dtype=torch.float64).sin()


def test_what_is_detached_does_not_keep_the_tensor_for_its_reduction(memory) -> None:
    w = weft.shard(torch.ones(8, 3), MESH, P("tp")).requires_grad_()
    y = weft.shard(torch.ones(2, 8), MESH, P(None, "tp")) @ w
    held, detached = weakref.ref(y), y.detach()
    del y
    gc.collect()
    assert held() is None or memory == "unified"  # where a total keeps what it was computed of
    assert detached.sin().shape == (2, 3)
