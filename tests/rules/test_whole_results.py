"""What an op gives for whole tensors is found without computing it, and for common ops without torch's compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import pytest
import torch

from weft.engine.strides.whole_results import whole_results
from weft.rules.call import BoundCall

aten = torch.ops.aten
SHAPES = [((3, 4), (3, 4)), ((4,), (3, 4)), ((3, 1), (1, 4)), ((), (3, 4)), ((0, 4), (1, 4)), ((), ())]
DTYPES = [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool]


def outcome(func: torch._ops.OpOverload, *args: object) -> object:
    """What torch finds on tensors without memory, or the error that it raises."""
    try:
        result = func(*args)
    except (RuntimeError, NotImplementedError) as error:
        return type(error)
    values = result if isinstance(result, tuple) else (result,)
    return [(tuple(value.shape), value.dtype) for value in values]


def found(func: torch._ops.OpOverload, *args: object) -> object:
    try:
        specs = whole_results(BoundCall(func, args))
    except (RuntimeError, NotImplementedError) as error:
        return type(error)
    return [(spec.shape, spec.dtype) for spec in specs if spec is not None]


@pytest.mark.parametrize(
    "func", [aten.add.Tensor, aten.div.Tensor, aten.lt.Tensor, aten.atan2.default, aten.add_.Tensor], ids=str
)
def test_elementwise_ops_of_two_tensors_give_what_torch_says(func: torch._ops.OpOverload) -> None:
    for (first, second), one, other in product(SHAPES, DTYPES, DTYPES):
        args = torch.empty(first, dtype=one, device="meta"), torch.empty(second, dtype=other, device="meta")
        assert found(func, *args) == outcome(func, *args), (first, second, one, other)


@pytest.mark.parametrize("func", [aten.relu.default, aten.gelu.default, aten.frexp.Tensor, aten.isnan.default], ids=str)
def test_elementwise_ops_of_one_tensor_give_what_torch_says(func: torch._ops.OpOverload) -> None:
    for shape, dtype in product([(3, 4), (), (0, 2)], [torch.float32, torch.float64]):
        x = torch.empty(shape, dtype=dtype, device="meta")
        assert found(func, x) == outcome(func, x)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0)])
def test_lookups_lie_as_their_indices_do(order: tuple[int, ...]) -> None:
    x, rows = torch.empty(3, 4, 5).permute(order), torch.zeros(2, 3, dtype=torch.int64)
    for one, other in product((rows, rows.t().contiguous().t(), rows.flip(0)[:, :1], rows[0, 0]), repeat=2):
        for indices in ([one], [None, one], [one, other], [one, None, other], [None, other, one]):
            result = aten.index.Tensor(x, indices)
            (spec,) = whole_results(BoundCall(aten.index.Tensor, (x, indices)))
            assert spec is not None
            assert spec.strides == result.stride(), (indices, result.shape)


@pytest.mark.parametrize("rows", [3, 5000])  # of many elements no kernel is asked
def test_lookups_beside_dims_of_size_1_lie_as_torchs(rows: int) -> None:
    index = torch.zeros(2, 4, 3, dtype=torch.int64).permute(1, 2, 0)
    for x in (torch.empty(rows, 4, 1), torch.empty(4, rows, 1).transpose(0, 1), torch.empty(rows, 1, 4).mT):
        (spec,) = whole_results(BoundCall(aten.index.Tensor, (x, [index])))
        assert spec is not None
        assert spec.strides == aten.index.Tensor(x, [index]).stride()


def test_shapes_that_do_not_meet_are_torchs_error() -> None:
    for func, shapes in ((aten.add.Tensor, ((3, 2), (3, 4))), (aten.add_.Tensor, ((3, 1), (3, 4)))):
        tensors = [torch.empty(shape) for shape in shapes]
        with pytest.raises(RuntimeError, match=r"size|shape"):
            whole_results(BoundCall(func, tuple(tensors)))


PRODUCTS = {
    aten.mm.default: [((3, 4), (4, 5)), ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((3, 4), (3, 5))],
    aten.bmm.default: [((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (3, 4, 5)), ((3, 4), (4, 5))],
    aten.addmm.default: [(first, (3, 4), (4, 5)) for first in ((5,), (3, 1), (1,), (), (4,))],
    aten.baddbmm.default: [(first, (2, 3, 4), (2, 4, 5)) for first in ((2, 3, 5), (5,), (2, 1, 1), (2, 3, 4))],
}


@pytest.mark.parametrize("func", PRODUCTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64], ids=str)
def test_products_give_what_torch_says(func: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    for shapes in PRODUCTS[func]:
        args = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
        args[-1] = args[-1].mT.contiguous().mT  # as the weight of a linear layer lies
        assert found(func, *args) == outcome(func, *args), shapes
        if isinstance(found(func, *args), list):
            (spec,) = whole_results(BoundCall(func, tuple(args)))
            assert spec is not None
            assert spec.strides == func(*[torch.ones(x.shape, dtype=dtype) for x in args]).stride()


PROGRAM = """
import sys, torch, weft
x = weft.shard(torch.ones(8, 4), weft.make_mesh({"a": 2}), weft.P("a", None))
y = torch.relu(x * 2 + x).exp() > weft.all_gather(x)
assert y.dtype is torch.bool and y.full_tensor().all()
assert (x.t() @ x).sum().item() == 128
assert not {"torch._dynamo", "torch.distributed.tensor", "sympy"} & sys.modules.keys()
"""


@pytest.mark.parametrize("separate", ["1", "0"])
def test_first_ops_leave_the_compiler_alone(separate: str) -> None:
    """Loading it takes seconds, at the first op; so does DTensor, which torch loads for classes it was not told of."""
    variables = {**os.environ, "WEFT_SEPARATE_MEMORY": separate}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("op", [aten._embedding_bag.default, aten._embedding_bag_forward_only.default], ids=str)
def test_what_is_said_of_bags_is_what_the_host_gives(op: torch._ops.OpOverload) -> None:
    indices, offsets = torch.randint(0, 6, (8,)), torch.tensor([0, 2, 4, 8])
    for mode, padding, dtype, is_last in product((0, 1, 2), (-1, 0), (torch.float32, torch.float64), (False, True)):
        for table in (torch.randn(6, 3, dtype=dtype), torch.randn(3, 6, dtype=dtype).t()):
            args = table, indices, offsets, False, mode, False, None, is_last, padding
            assert found(op, *args) == outcome(op, *args), args


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_convolutions_lie_as_by_kernels(transposed: bool) -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        return x.movedim(1, -1).contiguous().movedim(-1, 1)

    for rank, *is_last in product((1, 2, 3), *[(False, True)] * 3):
        x, weight, ones = torch.randn(3, 4, *(5, 4, 3)[:rank]), torch.randn(4, 4, *(2,) * rank), [1] * rank
        x, weight = (last(t) if k else t for t, k in zip((x, weight), is_last, strict=False))
        rest = ones, ones, ones, transposed, [0] * rank, 1
        grad = torch.randn(aten.convolution.default(x, weight, None, *rest).shape)
        args = last(grad) if is_last[2] else grad, x, weight, [4], *rest, [True] * 3
        given = aten.convolution_backward.default(*args)
        specs = whole_results(BoundCall(aten.convolution_backward.default, args))
        assert [spec and spec.strides for spec in specs] == [y.stride() for y in given], (rank, is_last)
