"""What plain torch refuses, every form refuses: indices out of range, masks of another shape, classes there are not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn import functional

import weft
from weft.sharding.layout import Layout
from weft.sharding.mesh import DeviceMesh
from weft.tensor.tensor import Tensor

from .harness import GRID, LINE, combinations, laid, memory

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the device itself finds what is wrong, and is then lost to the process"
)

X = torch.arange(20.0).reshape(5, 4)
Call = Callable[..., object]


def outcome(call: Call, *tensors: torch.Tensor) -> object:
    """What a call gives, as a plain tensor, or the error it raises."""
    try:
        result = call(*tensors)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        return error
    return result.detach().full_tensor() if isinstance(result, Tensor) else result


def layouts_of(tensors: Sequence[torch.Tensor], meshes: Sequence[DeviceMesh], limit: int) -> list[tuple[Layout, ...]]:
    """Some layouts of some tensors; those with the first tensor split come first."""
    chosen = [each for mesh in meshes for each in combinations(mesh, tensors, 60, True)]
    random.Random(0).shuffle(chosen)
    return sorted(chosen, key=lambda each: not each[0].split_axes)[:limit]


def assert_alike(call: Call, *tensors: torch.Tensor, limit: int = 6, kinds: tuple[type, ...] = ()) -> None:
    """In both memories and several layouts, a call gives what it gives on one device, or raises an error of that kind."""
    plain = outcome(call, *(x.clone() for x in tensors))
    for separate in (True, False):
        with memory(separate):
            for chosen in layouts_of(tensors, (LINE, GRID), limit):
                told = f"{list(map(str, chosen))}, {'separate' if separate else 'one'} memory"
                ours = outcome(call, *(laid(x, layout) for x, layout in zip(tensors, chosen, strict=True)))
                if isinstance(plain, Exception):
                    assert isinstance(ours, (type(plain), *kinds)), f"{told}: {ours!r}, not {plain!r}"
                else:
                    assert not isinstance(ours, Exception), f"{told}: {ours!r}"
                    torch.testing.assert_close(
                        ours, plain, equal_nan=True, msg=lambda text, told=told: f"{told}: {text}"
                    )


def rows(i: torch.Tensor) -> torch.Tensor:
    return i[:, None].expand(-1, 4)


BY_INDEX: dict[str, Call] = {
    "getitem": lambda x, i, v: x[i],
    "getitem columns": lambda x, i, v: x[:, i],
    "getitem pairs": lambda x, i, v: x[i, i],
    "gather": lambda x, i, v: x.gather(0, rows(i).contiguous()),
    "gather columns": lambda x, i, v: x.gather(1, i[None].expand(5, -1)),
    "take_along_dim": lambda x, i, v: x.take_along_dim(i[:, None], 0),
    "take": lambda x, i, v: x.take(i * 5),
    "put": lambda x, i, v: x.put(i * 5, v[:, 0]),
    "index_select": lambda x, i, v: x.index_select(0, i),
    "index_select columns": lambda x, i, v: x.index_select(1, i),
    "embedding": lambda x, i, v: functional.embedding(i, x),
    "embedding_bag": lambda x, i, v: functional.embedding_bag(i[None], x, mode="sum"),
    "scatter": lambda x, i, v: x.scatter(0, rows(i), v),
    "scatter a value": lambda x, i, v: x.scatter(1, i[None].expand(5, -1), 2.0),
    "scatter_": lambda x, i, v: x.clone().scatter_(0, rows(i), v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, rows(i), v),
    "scatter_add_": lambda x, i, v: x.clone().scatter_add_(0, rows(i), v),
    "scatter_reduce": lambda x, i, v: x.scatter_reduce(0, rows(i), v, "amax"),
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "index_add_": lambda x, i, v: x.clone().index_add_(0, i, v),
    "index_copy": lambda x, i, v: x.index_copy(0, i, v),
    "index_copy_": lambda x, i, v: x.clone().index_copy_(0, i, v),
    "index_fill": lambda x, i, v: x.index_fill(0, i, 3.0),
    "index_fill_": lambda x, i, v: x.clone().index_fill_(0, i, torch.tensor(3.0)),
    "index_reduce": lambda x, i, v: x.index_reduce(0, i, v, "amax"),
    "index_put": lambda x, i, v: x.index_put((i,), v),
    "index_put adds": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "index_put_ pairs": lambda x, i, v: x.clone().index_put_((i, i), torch.tensor(2.0)),
    "setitem": lambda x, i, v: x.clone().__setitem__(i, 2.0),
    "setitem columns": lambda x, i, v: x.clone().__setitem__((slice(None), i), 2.0),
    "one_hot": lambda x, i, v: functional.one_hot(i, 5),
    "one_hot of all": lambda x, i, v: functional.one_hot(i),
    "nll_loss": lambda x, i, v: functional.nll_loss(x[: len(i)], i),
}
INDICES = {
    "right": [0, 3, 1],
    "none": [],
    "too large": [0, 7, 1],
    "the size": [0, 1, 5],
    "the size of columns": [0, 4, 1],
    "negative": [0, -1, 2],
    "too small": [0, 1, -6],
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("indices", INDICES)
@pytest.mark.parametrize("name", BY_INDEX)
def test_indices_are_taken_or_refused_as_on_one_device(name: str, indices: str) -> None:
    index = torch.tensor(INDICES[indices], dtype=torch.int64)
    assert_alike(BY_INDEX[name], X, index, torch.ones(len(index), 4), limit=3)


SHAPES: dict[str, Call] = {
    "indices of two lengths": lambda x, i: x[i, torch.arange(4)],
    "too many": lambda x, i: x[i, i, i],
    "of a dim there is not": lambda x, i: x.index_select(2, i),
    "index_select by a table": lambda x, i: x.index_select(0, i[:, None]),
    "values of another length": lambda x, i: x.index_put((i,), torch.ones(5, 4)),
    "values of another width": lambda x, i: x.index_put((i,), torch.ones(3, 3)),
    "values that fit a part": lambda x, i: x.index_put((i,), torch.ones(3, 2)),
    "a source of another length": lambda x, i: x.index_add(0, i, torch.ones(4, 4)),
    "an index wider than the table": lambda x, i: x.scatter(0, i[:, None].expand(-1, 5), 1.0),
    "floats": lambda x, i: x[i.float()],
    "floats to gather": lambda x, i: x.gather(0, rows(i).float()),
    "short numbers": lambda x, i: x[i.short()],
    "no rows": lambda x, i: x[:0][i],
    "rows of nothing": lambda x, i: x[:, :0][i + 9],
    "no rows to add to": lambda x, i: x[:0].index_add(0, i, torch.ones(3, 4)),
    "no rows to embed": lambda x, i: functional.embedding(i, x[:0]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_dtypes_of_indices_are_refused_as_on_one_device(name: str) -> None:
    assert_alike(SHAPES[name], X, torch.tensor([0, 3, 1]), kinds=(IndexError, RuntimeError))


WRONG: dict[str, Call] = {
    "select beyond": lambda x: x.select(0, 7),
    "narrow beyond": lambda x: x.narrow(1, 2, 3),
    "split in other sizes": lambda x: x.split([2, 2], 0),
    "chunk in none": lambda x: x.chunk(0),
    "unfold too wide": lambda x: x.unfold(0, 6, 1),
    "permute too few": lambda x: x.permute(0),
    "permute twice": lambda x: x.permute(1, 1),
    "transpose beyond": lambda x: x.transpose(0, 2),
    "flip twice": lambda x: x.flip(0, -2),
    "rot90 of one dim": lambda x: x.rot90(1, (1, 1)),
    "repeat too few": lambda x: x.repeat(2),
    "view of another size": lambda x: x.view(3, 7),
    "expand to fewer": lambda x: x.expand(3, 4),
    "pad that takes too much": lambda x: functional.pad(x, (-5, 4)),
    "slice_scatter of another size": lambda x: x.slice_scatter(x[:2], 0, 0, 3),
    "slice_scatter of a part": lambda x: x.slice_scatter(x[:1], 0, 1, 1),
    "select_scatter of another size": lambda x: x.select_scatter(x[0, :2], 0, 1),
    "select_scatter beyond": lambda x: x.select_scatter(x[0], 0, 5),
    "as_strided backwards": lambda x: x.as_strided((2, 2), (-4, 1)),
    "as_strided of less than none": lambda x: x.as_strided((-2, 2), (4, 1)),
    "topk of more": lambda x: x.topk(5),
    "kthvalue of more": lambda x: x.kthvalue(5),
    "sum of no dim": lambda x: x.sum(2),
    "var of one dim twice": lambda x: x.var((0, -2)),
    "norm of no dim": lambda x: x.norm(2, 3),
    "norm in a shorter dtype": lambda x: torch.linalg.vector_norm(x, 2, 0, dtype=torch.float16),
    "norm in complex numbers": lambda x: torch.linalg.vector_norm(x, 1, 1, dtype=torch.complex64),
    "product of other sizes": lambda x: x @ x,
    "a dot product of tables": lambda x: torch.dot(x, x),
    "a pool of a line": lambda x: functional.max_pool2d(x[0], 0),
    "a pool of truths": lambda x: functional.max_pool2d((x > 3)[None], 2),
    "a pool of complex numbers": lambda x: functional.max_pool1d(torch.complex(x, x), 2, 1),
    "a negative padding": lambda x: functional.conv1d(x[None], x[None, :, :2], padding=-1),
    "a kernel without space": lambda x: functional.conv1d(x, x),
    "a negative output padding": lambda x: functional.conv_transpose1d(x[None], x[:, None, :2], output_padding=-1),
    "an output padding beyond all": lambda x: functional.conv_transpose1d(x[None], x[:, None, :2], output_padding=1),
    "a transposed kernel without channels": lambda x: functional.conv_transpose1d(x[None], x[:, None, :2][:, :0]),
    "a kernel without elements": lambda x: functional.conv1d(x[None], x[None, :, :0]),
    "a stride of none": lambda x: functional.conv1d(x[None], x[None, :, :2], stride=0),
    "a kernel without channels": lambda x: functional.conv1d(x[None], x[None, :, :2][:0]),
    "a kernel with other groups": lambda x: functional.conv1d(x[None, :4], x[:3, None, :2].expand(-1, 2, -1), groups=2),
    "statistics of other channels": lambda x: functional.batch_norm(x, x[None, 0], x[None, 0]),
    "a number in sorted rows": lambda x: torch.searchsorted(x, 1.5, sorter=x > 1),
    "targets in whole numbers": lambda x: functional.binary_cross_entropy_with_logits(x, x.long() % 2),
    "in place to another dtype": lambda x: x.long().add_(0.5),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_as_on_one_device(name: str) -> None:
    assert isinstance(outcome(WRONG[name], X), Exception)
    assert_alike(WRONG[name], X, limit=12, kinds=(IndexError, RuntimeError))


def test_boundaries_without_a_dim_are_refused() -> None:
    assert_alike(lambda x: torch.bucketize(x, x[0, 0]), X)
    assert_alike(lambda x: torch.searchsorted(x[0, 0], x), X)


@pytest.mark.parametrize("separate", [False, True])
def test_the_error_says_which_index_of_what(separate: bool) -> None:
    with memory(separate):
        x = laid(X, Layout(LINE, [("x",), ()]))
        with pytest.raises(IndexError, match=r"^index 7 is out of bounds for dimension 0 with size 5$"):
            x[torch.tensor([0, 7])]
        with pytest.raises(IndexError, match=r"^index -6 is out of bounds for dimension 0 with size 5$"):
            x[torch.tensor([0, -6])] = 1.0
        with pytest.raises(RuntimeError, match=r"^index 5 is out of bounds for dimension 0 with size 5$"):
            x.gather(0, torch.tensor([[5]]))
        with pytest.raises(IndexError, match=r"^index .*out of (bounds|range)"):
            laid(X.t()[None], Layout(LINE, [(), (), ("x",)])).index_select(2, torch.tensor([5]))
        columns = laid(X, Layout(LINE, [(), ("x",)]))
        with pytest.raises(IndexError, match=r"^index 4 is out of bounds for dimension 1 with size 4$"):
            columns[torch.tensor([0]), torch.tensor([4])]


def test_what_is_refused_is_not_written() -> None:
    with memory(True):
        x = laid(X, Layout(LINE, [("x",), ()]))
        with pytest.raises(RuntimeError):
            x.index_add_(0, torch.tensor([0, 9]), torch.ones(2, 4))
        torch.testing.assert_close(x.full_tensor(), X)


def mask(*shape: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 2 == 0).to(dtype)


BY_MASK: dict[str, Call] = {
    "get": lambda x, m: x[m],
    "get columns": lambda x, m: x[:, m],
    "get one column": lambda x, m: x[m, 0],
    "put": lambda x, m: x.index_put((m,), torch.tensor(2.0)),
    "put_": lambda x, m: x.clone().index_put_((m,), torch.tensor([2.0])),
    "put columns": lambda x, m: x.index_put((None, m), torch.tensor(2.0)),
    "put rows": lambda x, m: x.index_put((m,), torch.ones(3, 4)),
    "add": lambda x, m: x.index_put((m,), torch.tensor(2.0), accumulate=True),
    "masked_fill": lambda x, m: x.masked_fill(m, 2.0),
    "masked_select": lambda x, m: x.masked_select(m),
    "masked_scatter": lambda x, m: x.masked_scatter(m, x + 1),
}
MASKS = [(5,), (4,), (6,), (1,), (0,), (5, 4), (5, 1), (1, 4), (5, 3), (4, 5), (5, 4, 1), ()]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("name", BY_MASK)
def test_masks_are_taken_or_refused_as_on_one_device(name: str, dtype: torch.dtype) -> None:
    for shape in MASKS:
        assert_alike(BY_MASK[name], X, mask(*shape, dtype=dtype), limit=4)


@pytest.mark.parametrize("separate", [False, True])
def test_the_error_says_which_mask_of_what(separate: bool) -> None:
    text = r"The shape of the mask \[6\] at index 0 does not match the shape of the indexed tensor \[5, 4\] at index 0"
    with memory(separate):
        x = laid(X, Layout(LINE, [("x",), ()]))
        with pytest.raises(IndexError, match=text):
            x[mask(6)]
        with pytest.raises(IndexError, match=text):
            x[mask(6)] = 1.0


def test_rows_are_filled_by_a_mask_where_they_lie() -> None:
    for separate in (False, True):
        with memory(separate), weft.comm_log() as log:
            x = laid(X, Layout(LINE, [("x",), ()]))
            x[laid(mask(5), Layout(LINE, [("x",)]))] = 1.0
            assert log.counts() == {}


@pytest.mark.parametrize("separate", [False, True])
def test_targets_that_are_no_class_are_refused_where_classes_stay_split(separate: bool) -> None:
    scores = torch.zeros(64, 1 << 16)
    with memory(separate):
        x = laid(scores, Layout(GRID, [("a",), ("b",)]))
        target = torch.zeros(64, dtype=torch.int64)
        target[3] = -100
        torch.testing.assert_close(
            functional.cross_entropy(x, target).full_tensor(), functional.cross_entropy(scores, target)
        )
        for wrong in (1 << 16, -1):
            target[40] = wrong
            with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
                functional.cross_entropy(x, target)


@pytest.mark.parametrize("separate", [False, True])
def test_compiled_code_refuses_an_index_out_of_range(separate: bool) -> None:
    with memory(separate):
        x = laid(X, Layout(LINE, [("x",), ()]))
        lookup = torch.compile(lambda x, i: functional.embedding(i, x) * 2, backend="aot_eager")
        right, wrong = (laid(torch.tensor(i), Layout(LINE, [()])) for i in ([0, 4], [0, 5]))
        torch.testing.assert_close(lookup(x, right).full_tensor(), X[[0, 4]] * 2)
        with pytest.raises((RuntimeError, IndexError), match=r"index .*out of"):
            lookup(x, wrong)
    torch.compiler.reset()


@pytest.mark.parametrize("quantile", [torch.quantile, torch.nanquantile])
@pytest.mark.parametrize("q", [[1.5], [-0.5], [0.25, 0.5, torch.nan]], ids=str)
@pytest.mark.parametrize("separate", [True, False], ids=["apart", "one"])
def test_quantiles_that_there_are_not_are_refused_before_anything_moves(
    separate: bool, q: list[float], quantile: Call
) -> None:
    faults: list[dict[str, object]] = [{}, {"dim": 0}, {"dim": 7}, {"interpolation": "nearly"}]
    with memory(separate):
        for given in (laid(torch.tensor(q), Layout(LINE, [["x"]])), torch.tensor(q)):
            for kwargs in faults:
                plain = outcome(lambda x, q, kwargs=kwargs: quantile(x, q, **kwargs), X, torch.tensor(q))
                with weft.comm_log() as log:
                    ours = outcome(
                        lambda x, q, kwargs=kwargs: quantile(x, q, **kwargs), laid(X, Layout(LINE, [["x"], []])), given
                    )
                assert (type(ours), str(ours)) == (type(plain), str(plain))
                assert not log.records


PRODUCTS: dict[str, tuple[Call, tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((4, 6), (5, 4))),
    "matmul": (torch.matmul, ((2, 4, 6), (4, 6))),
    "bmm": (torch.bmm, ((2, 4, 6), (2, 4, 6))),
    "addmm": (torch.addmm, ((5,), (4, 6), (6, 4))),
    "linear": (functional.linear, ((2, 4, 6), (4, 5))),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), ((4, 6), (5, 4))),
    "of many elements": (torch.mm, ((40_000, 6), (5, 4))),
    "convolution of many elements": (functional.conv1d, ((2, 6, 40_000), (4, 5, 3))),
    "of another dtype": (lambda x, y: torch.mm(x, y.double()), ((4, 6), (6, 4))),
    "with out": (lambda x, y: torch.mm(x, y, out=x.new_empty(0)), ((4, 6), (5, 4))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_wrong_sizes_are_refused_before_anything_moves(name: str) -> None:
    call, shapes = PRODUCTS[name]
    tensors = [torch.ones(shape) for shape in shapes]
    plain = outcome(call, *tensors)
    for separate in (True, False):
        with memory(separate):
            for chosen in layouts_of(tensors, (LINE,), 12):
                given = [laid(x, layout) for x, layout in zip(tensors, chosen, strict=True)]
                with weft.comm_log() as log:
                    ours = outcome(call, *given)
                assert isinstance(ours, Exception)
                assert type(ours) is type(plain)
                assert not log.records, list(map(str, chosen))


@pytest.mark.parametrize("view", [torch.view_as_complex, lambda x: x.view(torch.float64)], ids=["complex", "double"])
def test_larger_elements_begin_where_they_may(view: Call) -> None:
    assert_alike(lambda x: [view(x[:, begin:][:, :2]) for begin in (0, 2)][1], X)
    assert_alike(lambda x: [view(x[:, begin:][:, :2]) for begin in (0, 1)][1], X)
