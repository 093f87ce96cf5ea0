"""Batches: whoever loads what, the global batch comes out, in the same order every time."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import weft
from tests.data.several_processes import Noisy, Numbers
from weft import P
from weft.data.ahead import ahead
from weft.runtime import machine

MESH = weft.make_mesh({"dp": 2, "tp": 2})


@pytest.fixture(params=["separate", "unified"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    machine.use_separate_memory(request.param == "separate")
    yield
    machine.use_separate_memory(False)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_is_used_as_it_is(prefetch: int, workers: int) -> None:
    """Its own sampler, collate function and workers."""
    loader = DataLoader(
        Numbers(10),
        batch_size=4,
        drop_last=True,
        num_workers=workers,
        collate_fn=lambda rows: [rows[0]["y"], len(rows)],
    )
    found = list(weft.data.batches(loader, MESH, P(), prefetch=prefetch))
    assert [(int(y), count) for y, count in found] == [(0, 4), (4, 4)]


def test_tensors_lie_as_the_spec_says() -> None:
    data = TensorDataset(torch.arange(8.0).reshape(4, 2), torch.arange(4))
    ((x, y),) = weft.data.batches(DataLoader(data, batch_size=4), MESH, (P("dp", "tp"), None))
    assert x.mapping.spec == P("dp", "tp")
    assert y.mapping.is_fully_replicated
    assert torch.equal(x.full_tensor(), data.tensors[0])


def test_epochs_differ_and_repeat() -> None:
    def epochs() -> list[list[int]]:
        data = weft.data.batches(DataLoader(Numbers(12), batch_size=4, shuffle=True), MESH, P("dp"), seed=5)
        return [[int(i) for each in data for i in each["y"].full_tensor()] for _ in range(2)]

    first, second = epochs()
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    torch.manual_seed(9)
    assert epochs() == [first, second]


@pytest.mark.parametrize("kind", ["loader", "list", "stream"])
def test_a_state_goes_on_where_it_was(kind: str) -> None:
    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from torch.arange(12)

    loaders = {
        "loader": lambda: DataLoader(TensorDataset(torch.arange(12)), batch_size=3, shuffle=True),
        "list": lambda: list(torch.arange(12).split(3)),
        "stream": lambda: DataLoader(Stream(), batch_size=3),
    }
    made, again = (weft.data.batches(loaders[kind](), MESH, P("dp")) for _ in range(2))
    taken = iter(made)
    next(taken)
    again.load_state_dict(made.state_dict())
    rest = [str(each) for each in taken]
    assert len(rest) == 3
    assert [str(each) for each in again] == rest
    assert made.state_dict() == again.state_dict()
    assert (made.epoch, made.batch) == (1, 0)


@pytest.mark.parametrize("kind", ["map", "iterable", "local", "workers"])
def test_loading_and_the_program_draw_apart(kind: str) -> None:
    """What the program draws between batches does not depend on what loading draws, and is the same after going on in an epoch."""

    def made() -> weft.data.Batches:
        loader = DataLoader(Noisy(16), batch_size=4, shuffle=kind != "local", num_workers=kind == "workers")
        given = Stream([4] * 4) if kind == "iterable" else loader
        return weft.data.batches(given, MESH, P("dp"), seed=2, local=kind == "local")

    def shown(data: weft.data.Batches, most: int = 4) -> list[tuple[str, float]]:
        return [(str(batch), float(torch.rand(()))) for batch, _ in zip(data, range(most), strict=False)]

    class Stream(list):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return (torch.rand(size) for size in super().__iter__())

    torch.manual_seed(1)
    expected = [*shown(made()), ("next", float(torch.rand(())))]
    torch.manual_seed(1)
    first = made()
    begun = shown(first, 2)
    numbers = torch.get_rng_state()
    again = made()
    again.load_state_dict(first.state_dict() | {"batch": 2})
    torch.set_rng_state(numbers)
    found = begun + shown(again) + [("next", float(torch.rand(())))]
    assert [number for _, number in found] == [number for _, number in expected]
    if kind != "workers":  # those draw one after another
        assert found == expected


def test_what_is_loaded_ahead_is_not_counted() -> None:
    data, before = Numbers(40), set(threading.enumerate())
    given = iter(found := weft.data.batches(DataLoader(data, batch_size=4), MESH, P("dp"), prefetch=3))
    next(given)
    assert found.state_dict()["batch"] == 1
    given.close()
    assert 4 <= len(data.loaded) <= 4 * 6
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "weft-data"]


def test_an_error_of_the_loader_is_raised_where_it_is_asked() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    given = ahead(failing(), 4)
    assert next(given) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(given)


Pair = namedtuple("Pair", "x names")  # noqa: PYI024 - as users write them


def test_what_is_no_tensor_comes_through() -> None:
    """In the kind of thing that the loader gives, which need not have a spec for it."""
    given = [Pair(torch.arange(4), ["a", "b", "c", "d"]), {"x": torch.arange(4), "text": "t", "more": [None, (1, {})]}]
    pair, named = weft.data.batches(given, MESH, {"x": P("dp")})
    assert type(pair) is Pair
    assert pair.x.mapping.spec == P("dp")
    assert pair.names == ["a", "b", "c", "d"]
    assert {**named, "x": named["x"].full_tensor().tolist()} == {**given[1], "x": [0, 1, 2, 3]}


REFUSED = {
    "mesh": (lambda: weft.data.batches([], P("dp")), TypeError, "takes a mesh after the loader, but got P\\('dp'\\)"),
    "loader": (lambda: weft.data.batches(3, MESH), TypeError, "takes a DataLoader or another iterable of batches, but"),
    "prefetch": (lambda: weft.data.batches([], MESH, prefetch=-1), ValueError, "prefetch is a whole number from 0 on"),
    "spec": (lambda: weft.data.batches([], MESH, 3), TypeError, "is P\\('dp'\\), an axis name or a mapping, but got 3"),
    "axis": (lambda: weft.data.batches([], MESH, P("pp")), ValueError, "'pp'"),
    "no spec": (
        lambda: list(weft.data.batches([{"x": torch.ones(2)}], MESH, {"y": P()})),
        ValueError,
        "the batch has a part 'x', but there is no spec for it: there are \\['y'\\]",
    ),
    "part": (
        lambda: list(weft.data.batches([object()], MESH)),
        TypeError,
        "a batch has tensors, numbers and texts, .* but one has a object: give the loader a collate_fn",
    ),
    "rows": (
        lambda: list(weft.data.batches(DataLoader(Numbers(4), 2, collate_fn=lambda rows: torch.ones(3)), MESH)),
        ValueError,
        "of 2 samples the loader made a tensor of shape \\(3,\\): give it a collate_fn that stacks them",
    ),
    "state": (
        lambda: weft.data.batches([], MESH).load_state_dict({"epoch": 1}),
        ValueError,
        "has epoch, batch and seed, but this one lacks batch, seed",
    ),
    "mapping": (
        lambda: weft.from_process_local(torch.ones(2), P("dp")),
        TypeError,
        "from_process_local takes a mapping, but got P\\('dp'\\)",
    ),
    "pending": (
        lambda: weft.from_process_local(torch.ones(2), weft.NamedMapping(MESH, P(), ["dp"])),
        ValueError,
        "leaves a reduction pending: use from_local",
    ),
    "shape": (
        lambda: weft.from_process_local(torch.ones(2), weft.NamedMapping(MESH, P("dp")), shape=(4,)),
        ValueError,
        "the devices of process 0 hold \\[0:4\\] of a tensor of shape \\(4,\\) .*, but it brings one of shape \\(2,\\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str) -> None:
    call, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        call()
