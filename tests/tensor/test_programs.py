"""Random programs compute on sharded tensors what they compute on plain ones: views, writes, movements, gradients."""

from __future__ import annotations

import pytest

from tests.tensor.programs import Program, difference, make_program, shortened

BATCH = 25


def check(program: Program) -> None:
    # The second time, calls are found in tables that the first time has filled.
    if difference(program) or difference(program):
        short = shortened(program)
        raise AssertionError(f"{difference(short) or difference(program)}\n\n{short}")


@pytest.mark.parametrize("batch", range(8))
def test_random_programs(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(make_program(seed))


@pytest.mark.parametrize("batch", range(4))
def test_gradients_of_random_programs(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(make_program(seed, differentiable=True))


SQUARE = {"a": 2, "b": 2}

KNOWN = {
    "out= of a pending tensor that was resolved": (
        SQUARE,
        "x = contributed(1, (3, 4), float64, ['', ''], {'a': 'SUM'}, 'own')",
        "seen(x.exp())",
        "torch.add(x, 1, out=x)",
        "seen(x.exp())",
    ),
    "a list op on a pending tensor that was resolved": (
        SQUARE,
        "x = contributed(1, (3, 4), float64, ['', ''], {'a': 'SUM'}, 'own')",
        "seen(x.exp())",
        "torch._foreach_add_([x], 1)",
        "seen(x.exp())",
    ),
    "a list op on two views of one pending tensor": (
        SQUARE,
        "x = contributed(1, (3, 4), float64, ['', ''], {'a': 'PROD'}, 'own')",
        "torch._foreach_mul_([x.t(), x, x[1:]], 2)",
        "seen(x)",
    ),
    "a list op on a tensor and a part of it": (
        SQUARE,
        "x = given(1, (5, 4), float64, ['a', 'b'])",
        "y = x[1:4]",
        "torch._foreach_mul_([y, x, y], [2.0, 3.0, 5.0])",
        "seen(x)",
        "seen(y)",
    ),
    "writes to x.data": (
        SQUARE,
        "x = given(1, (5, 4), float64, ['a', 'b'])",
        "y, z = x[1:], x.data[:3]",
        "x.data[2].mul_(2)",
        "seen(y)",
        "z.add_(1)",
        "seen(y)",
        "y.neg_()",
        "seen(z)",
        "seen(x)",
    ),
    "writes to what was made of one element in many places": (
        SQUARE,
        "x = given(1, (5, 4), float64, ['a', 'b'], None, 'expanded')",
        "y = given(1, (5, 4), float64, ['', ''], {'a': 'SUM'}, 'windows')",
        "z = moved(y.unfold(0, 2, 1), ['', '', ''])",
        "x.add_(1)",
        "y.mul_(y)",
        "z.mul_(2)",
        "seen(x)",
        "seen(y)",
        "seen(z)",
    ),
    "views that an op takes one of another": (
        SQUARE,
        "x = given(1, (1, 5), float64, ['a', ''], {'b': 'SUM'})",
        "y = x.as_strided((2,), (1,))",
        "x.t()[0].sub_(1)",
        "seen(y)",
        "x.t()[1].sub_(1)",
        "seen(y)",
        "y.mul_(2)",
        "seen(x)",
    ),
    "as_strided beyond a view": (
        SQUARE,
        "x = given(1, (5, 8), float64, ['', 'a'], {'b': 'SUM'})",
        "y = x.diagonal()",
        "z = y.as_strided((3, 2), (2, 1), 1)",
        "w = x[1:].as_strided((3,), (3,))",
        "seen(z)",
        "seen(w)",
        "z[0].mul_(5)",
        "w.add_(1)",
        "seen(x)",
        "seen(y)",
        "seen(z)",
    ),
    "views of a pending tensor that becomes another": (
        SQUARE,
        "x = given(1, (4, 4), float64, ['', 'a'], {'b': 'SUM'})",
        "y, z = x[1:], x.t()",
        "y[0].add_(1)",
        "x.t_()",
        "seen(y)",
        "x[0].mul_(2)",
        "z.add_(1)",
        "seen(x)",
        "seen(y)",
        "x.data = given(2, (4, 4), float64, ['', ''])",
        "z[1].mul_(3)",
        "y.neg_()",
        "for v in (x, y, z): seen(v)",
    ),
    "views that are copies of a tensor that becomes another": (
        SQUARE,
        "x = given(1, (5, 4), float64, ['a', 'b'])",
        "y, z, w = x[1:4], x[:, 1:3], x.view(20)",
        "x.data = given(2, (5, 4), float64, ['a', ''])",
        "y[0].add_(1)",
        "x.mul_(5)",
        "w[3:9].neg_()",
        "z.mul_(2)",
        "for v in (x, y, z, w): seen(v)",
    ),
    "list ops count as writes": (
        SQUARE,
        "x = given(1, (5, 4), float64, ['a', 'b'])",
        "y = x[1:4]",
        "torch._foreach_add_([x], 1)",
        "seen(y)",
        "w = leaf(given(2, (5, 4), float64, ['a', '']))",
        "z = w * w",
        "with torch.no_grad(): torch._foreach_mul_([w], 2)",
        "z.sum().backward()",
        "torch._fused_sgd_([x], [x.clone()], [], weight_decay=0.0, momentum=0.0, lr=0.5, dampening=0.0, nesterov=False, "
        "maximize=False, is_first_step=False)",
        "seen(y)",
    ),
    "the gradient of a leaf that has become another": (
        SQUARE,
        "x = leaf(given(1, (5, 4), float64, ['a', 'b']))",
        "x.data = given(2, (6,), float64, ['b'])",
        "(x * x).sum().backward()",
        "seen(x.grad)",
        "y = pickle.loads(pickle.dumps(x * 2))",
        "seen(y.requires_grad)",
    ),
    "views of an expanded view of a pending tensor": (
        SQUARE,
        "x = contributed(1, (4,), float64, [''], {'a': 'SUM'}, 'own')",
        "y = x.expand(3, 4)",
        "z = y[1:]",
        "x.add_(3)",
        "for v in (x, y, z): seen(v)",
    ),
    "what is pending on another mesh over an axis of the same name": (
        SQUARE,
        "x = contributed(1, (3,), float64, [''], {'a': 'SUM'}, 'own')",
        "y = moved(x, [''], {'a': 'SUM'}, {'a': 3})",
        "seen(y)",
        "looked_at(y)",
        "seen(y + y)",
    ),
    "reshapes of nothing": (
        SQUARE,
        "x = given(1, (0, 4), float64, ['', 'a'])",
        "seen(x.repeat_interleave(2, 0))",
        "seen(x.view(3, 0, 4))",
        "seen(x.reshape(2, 0))",
    ),
    "views in inference mode of what was made outside": (
        SQUARE,
        "x = given(1, (4, 4), float64, ['a', 'b'])",
        "with torch.inference_mode(): y = x[1:].t().view(2, 2, 3)",
        "x.add_(1)",
        "seen(y)",
        "y.mul_(2)",
        "seen(x)",
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    sizes, *lines = KNOWN[name]
    check(Program(dict(sizes), tuple(lines)))


def test_a_difference_is_seen() -> None:
    lines = (
        "x = given(1, (3,), float64, ['a'])",
        "y = given(2, (3,), float64, ['a'])",
        "seen(id(x) == id(x.data))",
        "seen(x)",
    )
    assert difference(Program(SQUARE, lines)) is None
    wrong = Program(SQUARE, (*lines, "x = numbers(3, (3,), float64) if hasattr(x, 'mesh') else x", "seen(x)"))
    assert "the 2. thing seen is" in str(difference(wrong))
    assert shortened(wrong).lines == (lines[0], *wrong.lines[-2:])
