"""Shapes: tuples of dims that are also the tuples of their numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.sharding.dims import Dim, Shape, StaticDim, SymbolicDim

DIMS = st.lists(st.integers(0, 12) | st.sampled_from(["batch", "batch // 4", "seq * 2 + 1"]), max_size=4)


@given(st.lists(st.integers(0, 12), max_size=4))
def test_a_shape_of_numbers_is_the_tuple_of_them(sizes):
    shape = Shape(sizes)
    assert shape == tuple(sizes)
    assert tuple(sizes) == shape
    assert hash(shape) == hash(tuple(sizes))
    assert shape.sizes == tuple(sizes)
    assert shape.is_static
    product = 1
    for size in sizes:
        product *= size
    assert shape.numel() == product


@given(DIMS, DIMS)
def test_shapes_join_and_slice_like_tuples(left, right):
    shape = Shape(left) + Shape(right)
    assert shape == Shape(left) + tuple(right) == tuple(left) + Shape(right) == Shape([*left, *right])
    assert type(shape) is type(shape[1:]) is type(tuple(left) + Shape(right)) is Shape
    assert shape[: len(left)] == Shape(left)
    assert shape[len(left) :] == Shape(right)
    assert shape.rank == len(left) + len(right)
    assert all(isinstance(dim, Dim) for dim in shape)
    assert all(shape[i] == dim for i, dim in enumerate(shape))


@given(DIMS, st.integers(0, 20), st.integers(0, 20))
def test_sizes_can_be_put_in_before_or_after_counting(dims, batch, seq):
    values = {"batch": batch, "seq": seq}
    assert Shape(dims).numel().subs(values) == Shape(dims).subs(values).numel()
    assert Shape(dims).subs(values).is_static


def test_what_a_shape_holds():
    shape = Shape([2, "batch", Dim("batch") // 4])
    assert repr(shape) == "Shape([2, 'batch', 'batch // 4'])"
    assert str(shape) == "[2, batch, batch // 4]"
    assert [type(dim).__name__ for dim in shape] == ["StaticDim", "SymbolicDim", "AlgebraicDim"]
    assert shape.symbols == {"batch"}
    assert not shape.is_static
    assert Shape(shape) is shape
    assert Shape() == ()
    assert StaticDim(2) in shape
    assert 2 in shape
    assert shape.index("batch") == 1
    assert shape != Shape([2, "batch"])
    assert shape == (2, SymbolicDim("batch"), Dim("batch // 4"))
    assert Shape([2, 24]) == [2, 24] == Shape([2, 24])
    assert Shape([2, 24]) != [2, 23]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Shape("batch"), TypeError, "a shape is a sequence of dims, but got 'batch': use Shape(['batch'])"),
        (lambda: Shape(8), TypeError, "a shape is a sequence of dims, but got 8: use Shape([8])"),
        (lambda: Shape(Dim("b // 2")), TypeError, "use Shape(['b // 2'])"),
        (lambda: Shape([2, None]), TypeError, "a dim is a whole number, a name or a Dim, but got None"),
        (lambda: Shape([2, -3]), ValueError, "the size of a dim is 0 or more, but got -3"),
        (lambda: Shape(["batch"]).sizes, TypeError, "the size batch is no number yet: give its names sizes first"),
        (lambda: Shape([2]) + 3, TypeError, "unsupported operand"),
    ],
)
def test_a_bad_shape_says_what_is_wrong(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)
