"""Calls on sharded tensors beside plain ones are known the second time, and give what they gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import weft
from weft import P
from weft.runtime import machine
from weft.runtime.machine import residence

from .seen import note_looks

MESH = weft.make_mesh({"dp": 2, "tp": 2})
HOME = residence(MESH).device
SPECS = [P("dp", "tp"), P(None, ("tp", "dp")), P("tp"), P()]


@pytest.fixture(params=["separate", "unified"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that were looked at."""
    return note_looks(monkeypatch)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, device=HOME)


MASK = torch.ones(5, 5, dtype=torch.bool, device=HOME).tril()
ROW, MANY, TURNED, TWO = numbers(5), numbers(4, 3, 5, 5), numbers(5, 5).mT, torch.tensor(2.0, device=HOME)
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a mask": lambda x: x.masked_fill(MASK, -1e9),
    "a mask of scores": lambda x: torch.where(MASK, x, -torch.inf),
    "a number that torch makes a tensor of": lambda x: torch.where(x > 0, x, 0.5),
    "a row": lambda x: x + ROW,
    "a row, first": lambda x: ROW - x,
    "all elements": lambda x: x * MANY,
    "one that lies otherwise": lambda x: x / TURNED,
    "no dims": lambda x: x * TWO,
    "no dims, first": lambda x: TWO / x,
    "with a factor": lambda x: torch.add(x, ROW, alpha=3),
    "three": lambda x: torch.addcmul(x, ROW, MANY, value=2),
    "larger than it": lambda x: x[:1] + MANY,
    "a product": lambda x: x @ TURNED,
    "several results": lambda x: torch.frexp(x + ROW)[0],
}


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_gives_what_plain_torch_gives(name: str, spec: P) -> None:
    call, plain = CALLS[name], numbers(4, 3, 5, 5)
    x, told = weft.shard(plain, MESH, spec), []
    expected = call(plain)
    for _ in range(3):
        with weft.comm_log() as log:
            found = call(x)
        torch.testing.assert_close(found.full_tensor(), expected)
        assert found.stride() == expected.stride()
        assert found.dtype == expected.dtype
        told.append(([(record.kind, record.total_bytes) for record in log], found._layout))
    assert told[0] == told[1] == told[2]


WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a mask": lambda x: x.masked_fill_(MASK, -1e9),
    "a row": lambda x: x.add_(ROW),
    "all elements": lambda x: x.mul_(MANY),
    "one that lies otherwise": lambda x: x.div_(TURNED),
    "no dims": lambda x: x.mul_(TWO),
    "a copy": lambda x: x.copy_(MANY),
    "a part": lambda x: x[1:, :, 2:].mul_(ROW).new_zeros(()) + x,
    "three": lambda x: x.addcmul_(ROW, MANY, value=2),
}


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_a_repeated_write_writes_what_plain_torch_writes(name: str, spec: P) -> None:
    write, plain = WRITES[name], numbers(4, 3, 5, 5)
    x, told = weft.shard(plain, MESH, spec), []
    shown, before = x[:, 1:], x.clone()
    for _ in range(3):
        expected = write(plain)
        with weft.comm_log() as log:
            found = write(x)
        torch.testing.assert_close(found.full_tensor(), expected)
        torch.testing.assert_close(x.full_tensor(), plain)
        torch.testing.assert_close(shown.full_tensor(), plain[:, 1:])
        told.append(([(record.kind, record.total_bytes) for record in log], found._layout))
    assert told[0] == told[1] == told[2]
    assert not torch.equal(before.full_tensor(), plain)


def test_what_is_written_may_be_the_plain_one() -> None:
    given, held = numbers(4, 5), numbers(4, 5)
    x, expected = weft.shard(given, MESH, P("dp", "tp")), held.clone()
    for _ in range(3):
        expected.add_(given)
        with weft.comm_log() as log:
            assert held.add_(x) is held
        assert type(held) is torch.Tensor
        torch.testing.assert_close(held, expected)
        assert [record.kind for record in log] == ["all_gather"]


@pytest.mark.parametrize("name", ["a mask", "a number that torch makes a tensor of", "a row", "no dims, first"])
def test_it_is_not_looked_at_again(name: str, looked_at: list[str]) -> None:
    x = weft.shard(numbers(4, 3, 5, 5), MESH, P("dp", "tp"))
    for _ in range(2):
        looked_at.clear()
        CALLS[name](x)
        x.mul_(ROW)
    assert looked_at == []


@pytest.mark.parametrize("spec", [P(), P("dp"), P(None, "tp")], ids=str)
def test_plain_indices_are_looked_up_and_out_of_range_ones_refused(spec: P) -> None:
    table = numbers(7, 4)
    ours = weft.shard(table, MESH, spec)
    for _ in range(3):
        ids = torch.randint(0, 7, (3, 5), device=HOME)
        torch.testing.assert_close(torch.nn.functional.embedding(ids, ours).full_tensor(), table[ids])
        torch.testing.assert_close(ours.index_select(0, ids[0]).full_tensor(), table[ids[0]])
    if HOME.type == "cpu":
        for wrong in (7, -1):
            ids[-1, -1] = wrong
            with pytest.raises(IndexError):
                torch.nn.functional.embedding(ids, ours)


def test_others_of_the_same_form_are_read_anew() -> None:
    x = weft.shard(numbers(4, 5), MESH, P("dp"))
    for _ in range(3):
        row = numbers(5)
        y = x + row
        row.zero_()  # what was given is not what is kept
        torch.testing.assert_close((y - x).full_tensor(), (y.full_tensor() - x.full_tensor()))
        assert not torch.equal(y.full_tensor(), x.full_tensor())


def test_a_number_and_a_tensor_without_dims_are_told_apart() -> None:
    plain = torch.arange(6, device=HOME).reshape(2, 3)
    x = weft.shard(plain, MESH, P("dp"))
    half = torch.tensor(0.5, dtype=torch.float64, device=HOME)
    for other in (0.5, half, 0.5, half):
        expected, found = torch.where(plain > 2, plain, other), torch.where(x > 2, x, other)
        assert found.dtype == expected.dtype
        assert torch.equal(found.full_tensor(), expected)


def test_one_that_is_differentiated_has_a_plain_gradient() -> None:
    plain = numbers(4, 5)
    x = weft.shard(plain, MESH, P("dp"))
    for is_asked in (False, False, True, True):
        w = numbers(5).requires_grad_(is_asked)
        y = (x * w).square().sum()
        if is_asked:
            y.backward()
            assert type(w.grad) is torch.Tensor
            torch.testing.assert_close(w.grad, (2 * plain.square() * w.detach()).sum(0))


def test_sparse_ones_are_refused_as_before() -> None:
    x = weft.shard(numbers(4, 5), MESH, P("dp"))
    for _ in range(3):
        torch.testing.assert_close((x + ROW).full_tensor(), x.full_tensor() + ROW)
        with pytest.raises(NotImplementedError, match="cannot lie on a mesh"):
            x + ROW.expand(4, 5).to_sparse()
