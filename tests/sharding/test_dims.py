"""The laws of dims: arithmetic on names means what it means on every number the names can stand for."""

import copy
import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.sharding.dims import AlgebraicDim, Dim, StaticDim, SymbolicDim, piece_size, whole_size

NAMES = ("b", "s", "t")
OPERATORS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
POLYNOMIAL = OPERATORS[:3]


@st.composite
def expressions(draw, names=NAMES, depth=4, signs=OPERATORS):
    """An expression as nested tuples, so that dims and plain numbers can both evaluate it."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(names) | st.integers(0, 9))
    sign = draw(st.sampled_from(signs))
    left = draw(expressions(names, depth - 1, signs))
    by_number = sign in (operator.floordiv, operator.mod)
    return sign, left, draw(st.integers(1, 12)) if by_number else draw(expressions(names, depth - 1, signs))


def evaluated(expression, values):
    if isinstance(expression, tuple):
        sign, left, right = expression
        return sign(evaluated(left, values), evaluated(right, values))
    return values.get(expression, expression)


def dim_of(expression):
    """The expression on dims, or `None` where a part of it is a negative number."""
    try:
        return Dim.of(evaluated(expression, {name: Dim(name) for name in NAMES}))
    except ValueError as error:
        assert "0 or more" in str(error)
        return None


ENVIRONMENTS = [
    {"b": b, "s": s, "t": t} for b, s, t in ((0, 0, 0), (1, 2, 3), (7, 4, 10), (12, 5, 1), (23, 11, 6), (100, 37, 64))
]


@given(expressions())
def test_a_dim_computes_what_numbers_compute(expression):
    dim = dim_of(expression)
    for values in ENVIRONMENTS if dim is not None else ():
        expected = evaluated(expression, values)
        if expected >= 0:
            assert dim.subs(values) == expected
        else:
            with pytest.raises(ValueError, match="0 or more"):
                dim.subs(values)


@given(expressions())
def test_the_repr_of_a_dim_says_the_dim(expression):
    dim = dim_of(expression)
    if dim is not None:
        assert eval(repr(dim)) == dim
        assert Dim.of(str(dim)) == dim
        assert hash(eval(repr(dim))) == hash(dim)


@given(expressions(), expressions())
def test_equal_dims_are_equal_for_every_size(left, right):
    a, b = dim_of(left), dim_of(right)
    if a is not None and a == b:
        assert hash(a) == hash(b)
        assert all(evaluated(left, values) == evaluated(right, values) for values in ENVIRONMENTS)


@given(expressions(names=("b",), depth=3), expressions(names=("b",), depth=3))
def test_what_is_added_can_be_taken_away(left, right):
    a, b = dim_of(left), dim_of(right)
    if a is not None and b is not None:
        apart = Dim("t")  # keeps what stands between from being a negative number
        assert a + apart + b - b - apart == a


@given(expressions(), expressions())
def test_a_comparison_that_is_decided_holds_for_every_size(left, right):
    a, b = dim_of(left), dim_of(right)
    if a is None or b is None:
        return
    for sign in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            answer = sign(a, b)
        except ValueError as error:
            assert "depends on" in str(error)
        else:
            assert all(sign(evaluated(left, values), evaluated(right, values)) == answer for values in ENVIRONMENTS)


@given(expressions(depth=3, signs=POLYNOMIAL), st.integers(1, 9), st.randoms())
def test_pieces_add_up_to_the_whole_in_any_order(expression, count, random):
    whole = dim_of(expression)
    if whole is not None:
        order = random.sample(range(count), count)
        assert sum(piece_size(whole, count, i) for i in order) == whole


@given(st.sampled_from(["b", "b * 2 + 1", "b + s"]), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.randoms())
def test_nested_pieces_add_up_to_the_whole_in_any_order(text, counts, random):
    pieces = [Dim(text)]
    for count in counts:
        pieces = [piece_size(piece, count, i) for piece in pieces for i in range(count)]
    random.shuffle(pieces)
    assert sum(pieces) == Dim(text)


@given(st.sampled_from(["b", "s"]), st.sampled_from(["b", "s"]), st.integers(1, 4), st.integers(1, 4))
def test_areas_of_tiles_add_up_to_the_area(rows, columns, m, n):
    tiles = [piece_size(rows, m, i) * piece_size(columns, n, j) for i in range(m) for j in range(n)]
    assert sum(tiles) == Dim(rows) * Dim(columns)


@given(st.integers(0, 40), st.integers(1, 9))
def test_pieces_of_numbers_are_balanced(size, count):
    quotient, more = divmod(size, count)
    assert [piece_size(size, count, i) for i in range(count)] == [quotient + 1] * more + [quotient] * (count - more)


@given(st.sampled_from(["b", "b + s", "b // 3", "b * s"]), st.lists(st.integers(1, 4), max_size=3))
def test_the_first_piece_of_a_name_tells_the_whole(text, counts):
    piece = Dim(text)
    for count in counts:
        piece = piece_size(piece, count, 0)
    for count in reversed(counts):
        piece = whole_size(piece, count)
    assert piece == Dim(text)


@given(expressions(depth=3, signs=POLYNOMIAL), st.integers(1, 6))
def test_the_whole_of_a_piece_has_that_piece(expression, count):
    piece = dim_of(expression)
    if piece is not None:
        assert piece_size(whole_size(piece, count), count, 0) == piece


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("b * 4 // 4", "b"),
        ("b + b", "2 * b"),
        ("(b * 2 + 4) // 2", "b + 2"),
        ("b - b", "0"),
        ("b // 2 // 3", "b // 6"),
        ("b // 4 * 4 + b % 4", "b"),
        ("(b * 6 + 3) // 4", "(b * 2 + b * 4 + 3) // 4"),
        ("-b // 4", "-((b + 3) // 4)"),
        ("b // 4 + (b + 2) // 4", "b // 2"),
        ("b * s // s", "b"),
        ("(b * s + 3) // s", "b + 3 // s"),
        ("(b + s) * 3 // (b + s)", "3"),
        ("b // -4", "(-b) // 4"),
        ("(b + s) * (b - s)", "b * b - s * s"),
        ("b % 1", "0"),
        ("0 * b", "0"),
    ],
)
def test_these_are_the_same_size(left, right):
    assert Dim(left) == Dim(right)
    assert hash(Dim(left)) == hash(Dim(right))


@pytest.mark.parametrize(
    ("left", "right"), [("b", "s"), ("b // 2", "b"), ("b // 2 * 2", "b"), ("b * s", "b + s"), ("b", "0")]
)
def test_these_are_not_the_same_size(left, right):
    assert Dim(left) != Dim(right)


def test_the_kinds_of_dim():
    batch = Dim("batch")
    assert type(Dim(8)) is StaticDim
    assert type(batch) is SymbolicDim
    assert batch.name == "batch"
    assert type(batch // 4) is AlgebraicDim
    assert type(batch * 2 - batch) is SymbolicDim
    assert type(batch - batch + 3) is StaticDim
    assert Dim.of(batch) is batch
    assert Dim(8) == 8
    assert batch == "batch"
    assert batch != 8
    assert Dim(8) != "8"
    assert {Dim(8): 1}[8] == 1
    assert {batch: 1}["batch"] == 1
    assert list(range(Dim(3))) == [0, 1, 2]
    assert 3 + batch == batch + 3
    assert 3 - batch == -(batch - 3)
    assert 3 * batch == batch * 3
    assert 7 // Dim(2) == 3
    assert 7 % Dim(2) == 1
    assert bool(batch + 1)
    assert not Dim(0)


@pytest.mark.parametrize(
    "text", ["batch", "batch // 4", "batch * 2 + 1", "3 - batch", "(batch + 3) // 4 * seq", "batch * seq // 7"]
)
def test_text_reads_as_it_was_written(text):
    assert Dim.of(str(Dim.of(text))) == Dim.of(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("batch//4", "batch // 4"),
        ("batch*2+1", "batch * 2 + 1"),
        ("1+2*batch", "batch * 2 + 1"),
        ("batch - 3", "batch - 3"),
        ("3 - batch", "3 - batch"),
        ("-batch", "-batch"),
        ("(batch+3)//4", "(batch + 3) // 4"),
        ("2*(batch//4)", "(batch // 4) * 2"),
        ("seq*batch", "batch * seq"),
        ("batch*batch", "batch * batch"),
        ("batch // seq", "batch // seq"),
    ],
)
def test_dims_print_like_the_arithmetic_they_are(text, shown):
    assert str(Dim(text)) == shown


@pytest.mark.parametrize("value", [8, "batch", "batch // 4 + 1"])
def test_dims_copy_and_pickle(value):
    dim = Dim(value)
    for same in (copy.copy(dim), copy.deepcopy(dim), pickle.loads(pickle.dumps(dim))):
        assert same == dim
        assert type(same) is type(dim)
        assert hash(same) == hash(dim)


@pytest.mark.parametrize("value", [8, "batch", "batch // 4"])
def test_dims_cannot_change(value):
    with pytest.raises(AttributeError, match="cannot change"):
        Dim(value).size = 3
    with pytest.raises(AttributeError, match="cannot change"):
        del Dim(value)._size


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: Dim(2.5),
            TypeError,
            "a dim is a whole number, a name or a Dim, but got 2.5: use for instance 8, 'batch' or Dim('batch') // 4",
        ),
        (lambda: Dim(None), TypeError, "but got None"),
        (lambda: Dim(True), TypeError, "but got True"),
        (lambda: StaticDim("8"), TypeError, "but got '8'"),
        (
            lambda: Dim(-1),
            ValueError,
            "the size of a dim is 0 or more, but got -1: drop the minus, or take out the dim",
        ),
        (lambda: Dim(2) - 3, ValueError, "but got -1"),
        (lambda: Dim("b - 5").subs({"b": 3}), ValueError, "but got -2"),
        (
            lambda: SymbolicDim("two words"),
            ValueError,
            "the name of a dim is letters, digits and _, not starting with a digit, but got 'two words': "
            "use a name such as 'batch', or Dim.of(text) for an expression",
        ),
        (lambda: SymbolicDim(3), TypeError, "the name of a dim is a string, but got 3: use SymbolicDim('batch')"),
        (
            lambda: AlgebraicDim(3),
            TypeError,
            "an AlgebraicDim is written as text, but got 3: use AlgebraicDim('batch // 4')",
        ),
        (lambda: AlgebraicDim("b + 0"), ValueError, "'b + 0' is b, which needs no AlgebraicDim: use Dim.of('b')"),
        *(
            (
                lambda text=text: Dim(text),
                ValueError,
                f"a dim is written as a name or as names and whole numbers joined by + - * // %, but got {text!r}: "
                "use for instance 'batch' or 'batch // 4 + 1'",
            )
            for text in ["two words", "", "b / 2", "f(b)", "b ** 2", "2.5", "b.c", "True", "b if b else 1"]
        ),
        (
            lambda: int(Dim("b")),
            TypeError,
            "the size b is no number yet: give its names sizes first, for instance .subs({'b': 8})",
        ),
        (lambda: range(Dim("b + s")), TypeError, "the size b + s is no number yet"),
        (lambda: Dim("b") < 8, ValueError, "whether b < 8 depends on b: give it a size first, with .subs(...)"),
        (lambda: bool(Dim("b")), ValueError, "whether b > 0 depends on b"),
        (lambda: Dim("b") // 0, ZeroDivisionError, "cannot divide the size b by 0"),
        (lambda: Dim("b") % 0, ZeroDivisionError, "cannot divide the size b by 0"),
        (lambda: Dim("b // s").subs({"s": 0}), ZeroDivisionError, "cannot divide the size b by 0"),
        (lambda: piece_size(8, 4, 4), ValueError, "piece 4 of 4 does not exist: pieces are numbered 0 to count - 1"),
        (lambda: Dim("b") + 1.5, TypeError, "unsupported operand"),
        (lambda: Dim("b") < "s", TypeError, "not supported"),
    ],
)
def test_bad_dims_say_what_is_wrong(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (lambda b: b >= 0, True),
        (lambda b: b + 1 > b, True),
        (lambda b: b // 4 <= b, True),
        (lambda b: b <= (b + 3) // 4 * 4, True),
        (lambda b: b // 4 * 4 <= b, True),
        (lambda b: b < b, False),
        (lambda b: b - b // 4 < 0, False),
        (lambda b: Dim(3) < 4, True),
        (lambda b: 4 > Dim(3), True),
        (lambda b: b % 4 < 4, True),
        (lambda b: b % 4 >= 0, True),
        (lambda b: piece_size(b, 4, 0) >= piece_size(b, 4, 3), True),
    ],
)
def test_what_holds_for_every_size_is_decided(make, answer):
    assert make(Dim("b")) is answer
