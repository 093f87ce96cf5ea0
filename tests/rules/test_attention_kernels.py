"""The attention kernels of GPUs: batch, heads and sequence stay split, and the result is that of one device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import weft
from weft.sharding.layout import Layout
from weft.sharding.mesh import make_mesh

from .harness import GRID, assert_sound, laid, memory, moved_bytes

pytestmark = pytest.mark.gpu

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
SPLIT = Layout(GRID, [("a",), ("b",), (), ()])


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 4, 64, 64, generator=generator).to("cuda", torch.bfloat16) for _ in range(4)]


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels(kernel: SDPBackend, causal: bool, separate: bool) -> None:
    *tensors, grad = inputs()
    plain = [x.clone().requires_grad_() for x in tensors]
    with sdpa_kernel(kernel):
        expected = nn.scaled_dot_product_attention(*plain, is_causal=causal)
        expected.backward(grad)
        with memory(separate):
            given = [laid(x, SPLIT).requires_grad_() for x in tensors]
            out = nn.scaled_dot_product_attention(*given, is_causal=causal)
            assert out._layout is SPLIT
            assert_sound(out)
            assert moved_bytes(lambda: nn.scaled_dot_product_attention(*given, is_causal=causal)) == 0
            torch.testing.assert_close(out.detach().full_tensor(), expected.detach(), rtol=1e-2, atol=1e-2)
            assert moved_bytes(lambda: out.backward(laid(grad, SPLIT))) == 0
            for x, y in zip(given, plain, strict=True):
                torch.testing.assert_close(x.grad.full_tensor(), y.grad, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_is_that_of_one_device(kernel: SDPBackend) -> None:
    *tensors, _ = inputs()
    with sdpa_kernel(kernel):
        torch.manual_seed(3)
        expected = nn.scaled_dot_product_attention(*tensors, dropout_p=0.5)
        for separate in (False, True):
            with memory(separate):
                given = [laid(x, SPLIT) for x in tensors]
                torch.manual_seed(3)
                actual = nn.scaled_dot_product_attention(*given, dropout_p=0.5)
                torch.testing.assert_close(actual.full_tensor(), expected, rtol=1e-2, atol=1e-2)


SEQUENCE = Layout(make_mesh({"s": 4}), [(), (), ("s",), ()])


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", ["gather keys", "split heads", "ring"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_split_sequence(kernel: SDPBackend, way: str, causal: bool, separate: bool) -> None:
    # 13, 13, 12 and 12 of them. Without gaps: torch would take cuDNN's plan for the plain gradient's strides, for others' too.
    *tensors, grad = (x[:, :, :50].contiguous() for x in inputs())
    _check_sequence(kernel, way, separate, tensors, grad, is_causal=causal)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("way", ["gather keys", "split heads", "ring"])
def test_a_split_sequence_with_a_mask(way: str, separate: bool) -> None:
    *tensors, grad = inputs()
    mask = torch.rand(2, 1, 64, 64, device="cuda") > 0.3
    _check_sequence(SDPBackend.EFFICIENT_ATTENTION, way, separate, tensors, grad, attn_mask=mask)


def _check_sequence(
    kernel: SDPBackend,
    way: str,
    separate: bool,
    tensors: list[torch.Tensor],
    grad: torch.Tensor,
    **options: object,
) -> None:
    plain = [x.clone().requires_grad_() for x in tensors]
    with sdpa_kernel(kernel):
        expected = nn.scaled_dot_product_attention(*plain, **options)
        expected.backward(grad)
        with memory(separate), weft.prefer(way):
            given = [laid(x, SEQUENCE).requires_grad_() for x in tensors]
            out = nn.scaled_dot_product_attention(*given, **options)
            assert out._layout is SEQUENCE
            assert_sound(out)
            torch.testing.assert_close(out.detach().full_tensor(), expected.detach(), rtol=1e-2, atol=1e-2)
            out.backward(laid(grad, SEQUENCE))
            for x, y in zip(given, plain, strict=True):
                torch.testing.assert_close(x.grad.full_tensor(), y.grad, rtol=2e-2, atol=2e-2)
