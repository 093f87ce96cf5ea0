"""What torch refuses is refused before anything is changed, sent or logged, in the words that plain torch has for the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import weft
from weft import P

MESH = weft.make_mesh({"a": 2, "b": 2})
WRONG, PLACES = torch.tensor([1, 99]), torch.full((4, 4), 99)
WHOLE = torch.arange(16.0).reshape(4, 4)
SPECS = [P("a"), P("a", "b"), P(None, ("b", "a"))]

Call = Callable[[torch.Tensor, torch.Tensor], object]

CALLS: dict[str, Call] = {
    "take": lambda x, _: x.take(WRONG),
    "put": lambda x, _: x.put(WRONG, torch.ones(2)),
    "put_": lambda x, _: x.put_(WRONG, torch.ones(2)),
    "index_add": lambda x, y: x.index_add(0, WRONG, y[:2]),
    "index_add_": lambda x, y: x.index_add_(0, WRONG, y[:2]),
    "index_copy": lambda x, y: x.index_copy(0, WRONG, y[:2]),
    "index_put_": lambda x, y: x.index_put_((WRONG,), y[:2]),
    "index_reduce": lambda x, y: x.index_reduce(0, WRONG, y[:2], "amax"),
    "scatter": lambda x, y: x.scatter(0, PLACES, y),
    "scatter_": lambda x, y: x.scatter_(1, PLACES, y),
    "scatter_reduce": lambda x, y: x.scatter_reduce(0, PLACES, y, "amax"),
    "multi_margin_loss": lambda x, _: functional.multi_margin_loss(x, torch.tensor([0, 1, 9, 2])),
    "max_unpool2d": lambda x, _: functional.max_unpool2d(x[None, None], PLACES[None, None], 2),
    "norm": lambda x, _: torch.linalg.norm(x, out=torch.empty(0, dtype=torch.float64)),
    "norm by rows": lambda x, _: torch.linalg.norm(x, 1, out=torch.empty(0, dtype=torch.float64)),
    "matrix_norm": lambda x, _: torch.linalg.matrix_norm(x, "nuc", out=torch.empty(0, dtype=torch.float64)),
}


def said(call: Callable[[], object]) -> str:
    """What a call raises."""
    with pytest.raises((RuntimeError, IndexError)) as raised:
        call()
    return f"{raised.type.__name__}: {str(raised.value).splitlines()[0]}"


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", list(CALLS))
def test_nothing_is_brought_for_what_is_refused(name: str, spec: P) -> None:
    call = CALLS[name]
    x, y = weft.shard(WHOLE, MESH, spec), weft.shard(WHOLE, MESH, P(None, "a"))
    expected = said(lambda: call(WHOLE.clone(), WHOLE.clone()))
    for _ in range(2):  # also when the call is known
        with weft.comm_log() as log:
            assert said(lambda: call(x, y)) == expected
        assert not len(log), log
        assert torch.equal(x.full_tensor(), WHOLE)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_known_call_with_another_index_is_refused_first_too(spec: P) -> None:
    x = weft.shard(WHOLE, MESH, spec)
    index, wrong = (weft.shard(torch.tensor(each), MESH, P()) for each in ([1, 2], [1, 99]))
    for _ in range(3):
        assert x.take(index).tolist() == [1, 2]
    with weft.comm_log() as log:
        assert said(lambda: x.take(wrong)) == said(lambda: WHOLE.take(WRONG))
    assert not len(log)


@pytest.mark.parametrize("spec", [P(), P("a")], ids=str)
@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0)])
def test_dims_are_not_looked_at_where_torch_does_not_look(shape: tuple[int, ...], spec: P) -> None:
    x = weft.shard(torch.zeros(shape), MESH, spec)
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.roll(1, 5),
        lambda x: x.roll((1, 2), (5, -7)),
        lambda x: x.cummax(5).values,
        lambda x: x.cummin(-5).indices,
    ]
    for call in calls:
        with weft.comm_log() as log:
            given, expected = call(x), call(torch.zeros(shape))
        assert (given.shape, given.dtype, given.stride()) == (expected.shape, expected.dtype, expected.stride())
        assert not len(log)
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.cumsum(5)
    with pytest.raises(IndexError, match="Dimension out of range"):
        weft.shard(torch.ones(2, 2), MESH, spec).roll(1, 5)


SCORES = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
STEPS = torch.tensor([6, 6])


@pytest.mark.parametrize("labels", [None, P(), P("a"), P(None, "b")], ids=str)
@pytest.mark.parametrize("spec", [P(), P(None, "a"), P(None, None, "b")], ids=str)
def test_labels_that_are_no_classes(spec: P, labels: P | None) -> None:
    x, lengths = weft.shard(SCORES, MESH, spec), torch.tensor([2, 1])

    def laid(rows: list[list[int]]) -> torch.Tensor:
        plain = torch.tensor(rows)
        return plain if labels is None else weft.shard(plain, MESH, labels)

    for wrong in (9, -1):
        for counts in (lengths, weft.shard(lengths, MESH, P("a"))):
            with pytest.raises(
                IndexError, match=f"target {wrong} is out of bounds: log_probs has 4 classes, so labels"
            ):
                functional.ctc_loss(x, laid([[1, wrong], [3, 2]]), STEPS, counts)
            given = functional.ctc_loss(x, laid([[1, 2], [3, wrong]]), STEPS, counts)
            expected = functional.ctc_loss(SCORES, torch.tensor([[1, 2], [3, 0]]), STEPS, lengths)
            torch.testing.assert_close(given.full_tensor(), expected)
    if labels is None:
        with pytest.raises(IndexError, match="target 4 is out of bounds"):
            functional.ctc_loss(x, torch.tensor([1, 2, 4]), (6, 6), (2, 1))  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="Expected tensor to have size"):
            functional.ctc_loss(x, torch.tensor([[1, 9]]), STEPS, lengths)


def test_of_what_is_read_where_it_is_written_torch_speaks_first() -> None:
    for lay in (torch.clone, lambda x: weft.shard(x, MESH, P("a"))):
        x = lay(WHOLE)
        with pytest.raises(RuntimeError, match="unsupported operation: some elements of the input tensor"):
            x.put_(WRONG, x[0, :2])


def test_tensors_without_dims_are_indexed_as_ever() -> None:
    number, one = weft.shard(torch.tensor(3.0), MESH, P()), torch.tensor([0])
    pending = number.redistribute(weft.NamedMapping(MESH, P(), unreduced=("a",)))
    for x in (number, pending):
        with weft.comm_log():
            assert x.index_add(0, one, torch.tensor(1.0)).item() == 4
            assert x.index_select(0, one).item() == 3
            assert x.gather(0, one).tolist() == [3]
            assert x.take(one).tolist() == [3]
            assert x.clone().index_fill_(0, one, 7.0).item() == 7
            with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
                x.take(torch.tensor([1]))


@pytest.mark.parametrize("shape", [(4, 0), (0, 4)])
def test_of_tables_without_elements_torch_takes_other_indices(shape: tuple[int, ...]) -> None:
    calls: list[Callable[[torch.Tensor], object]] = [
        lambda x: x[torch.tensor([0, 4])].shape,
        lambda x: x[:, torch.tensor([0, 4])].shape,
        lambda x: x.index_select(0, torch.tensor([0, 4])).shape,
        lambda x: x.index_fill(0, torch.tensor([9]), 1).shape,
        lambda x: x.take(torch.tensor([], dtype=torch.long)).shape,
    ]

    def outcome(call: Callable[[torch.Tensor], object], x: torch.Tensor) -> object:
        try:
            return call(x)
        except (IndexError, RuntimeError) as error:
            return type(error)

    for spec in (P("a"), P(None, "b")):
        x = weft.shard(torch.zeros(shape), MESH, spec)
        with weft.comm_log():
            for call in calls:
                assert outcome(call, x) == outcome(call, torch.zeros(shape))
