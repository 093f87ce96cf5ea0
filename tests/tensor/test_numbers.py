"""Numbers beside tensors: the same bits, dtypes and strides as plain torch gives, for calls that are repeated too."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft import P

NUMBERS = [2, -3, 2**60, 1 / 3, 70000.0, 1e300, -1e-45, 0.0, -0.0, float("nan"), True]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32]
OPS = [operator.add, operator.sub, operator.mul, operator.truediv]
WRITES = ["add_", "sub_", "mul_", "div_"]


def laid(x: torch.Tensor) -> weft.Tensor:
    return weft.shard(x, weft.make_mesh({"a": 2, "b": 2}), P("a", "b") if x.dim() > 1 else P())


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    whole = found.detach().full_tensor()
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    torch.testing.assert_close(whole, expected, rtol=0, atol=0, equal_nan=True)
    signs = [torch.view_as_real(x) if x.is_complex() else x for x in (whole, expected)]
    assert torch.equal(*(torch.copysign(torch.ones_like(x), x)[~x.isnan()] for x in signs))  # -0.0 is equal to 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 6), ()], ids=str)
def test_a_number_is_what_it_is_in_plain_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    plain = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 8).to(dtype)
    x = laid(plain)
    plain = plain.to(x.device)  # kernels of a GPU divide otherwise
    for number in NUMBERS * 2:
        for op in OPS:
            try:
                expected = op(plain, number)
            except RuntimeError:  # as torch says of `-` with True
                with pytest.raises(RuntimeError):
                    op(x, number)
                continue
            same(op(x, number), expected)
        for name in WRITES if dtype.is_floating_point else ():
            if number is not True:
                same(getattr(x.clone(), name)(number), getattr(plain.clone(), name)(number))


def test_who_looks_on_sees_numbers() -> None:
    x, seen = laid(torch.ones(4, 4)), []

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.extend(type(each) for each in args)
            return func(*args, **(kwargs or {}))

    for _ in range(2):
        x * 2.5
    with Looks():
        x * 2.5
    assert float in seen
    assert set(seen) <= {float, torch.Tensor, weft.Tensor, type(x)}


def test_numbers_first_met_under_inference_or_another_default_device_train_later() -> None:
    x = laid(torch.ones(4, 4))
    with torch.inference_mode(), torch.device("meta"):
        for _ in range(2):
            laid_now = x * 3.25
    assert laid_now.device == x.device
    trained = laid(torch.ones(4, 4)).requires_grad_()
    for _ in range(2):
        (trained * 3.25).sum().backward()
    same(trained.grad, torch.full((4, 4), 6.5, device=trained.device))
