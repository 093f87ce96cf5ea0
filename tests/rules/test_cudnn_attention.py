"""cuDNN's attention kernel, as torch declares it, done by products on the host: what GPUs are given, in every way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import weft
from weft.handlers.attention.together import lines
from weft.sharding.layout import Layout
from weft.sharding.mesh import make_mesh

from .harness import assert_sound, laid, memory

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="stand-ins for the kernels of a GPU, which is here")
aten = torch.ops.aten
SEQUENCE = Layout(make_mesh({"s": 4}), [(), (), ("s",), ()])
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _scores(query: torch.Tensor, key: torch.Tensor, is_causal: bool) -> torch.Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    return scores


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: None, rows: bool, *rest: object
) -> tuple[object, ...]:
    scores = _scores(query, key, len(rest) > 1 and bool(rest[1]))
    logarithms = scores.logsumexp(-1, keepdim=True)
    out, state = torch.empty_like(query), torch.zeros((), dtype=torch.long)
    out.copy_((scores - logarithms).exp() @ value)
    return out, logarithms.float(), None, None, query.shape[2], key.shape[2], state, state.clone(), None


def _backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logarithms: torch.Tensor,
    *rest: object,
) -> Three:
    # The strides for which torch keeps one plan, whatever these tensors have.
    assert grad.stride() == out.stride() == torch.empty_like(query).stride()
    assert logarithms.shape == (*query.shape[:3], 1)
    assert logarithms.is_contiguous()
    scores = (_scores(query, key, bool(rest[-1])) - logarithms).exp()
    inner = scores * (grad @ value.mT - (grad * out).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
    return inner @ key, inner.mT @ query, scores.mT @ grad


@pytest.fixture
def kernel() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_dot_product_cudnn_attention", _forward, "CPU")
    library.impl("_scaled_dot_product_cudnn_attention_backward", _backward, "CPU")
    yield
    library._destroy()


def attended(tensors: list[torch.Tensor], is_causal: bool) -> torch.Tensor:
    return aten._scaled_dot_product_cudnn_attention(*tensors, None, True, 0.0, is_causal)[0]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("separate", "kinds", "length"), [(True, set(), 50), (False, set(), 50), (True, {"cpu"}, 48)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("way", ["gather keys", "split heads", "ring"])
def test_a_split_sequence(
    way: str, is_causal: bool, separate: bool, kinds: set[str], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kinds`: the devices of which one call computes for all that are one piece of hardware."""
    monkeypatch.setattr("weft.handlers.attention.together.KINDS", kinds)
    lines.cache_clear()
    generator = torch.Generator().manual_seed(0)
    # Mostly 13, 13, 12 and 12 tokens; the features of all heads of a token side by side, as models have them.
    *tensors, grad = (torch.randn(2, length, 4, 16, generator=generator).transpose(1, 2) for _ in range(4))
    plain = [x.clone().requires_grad_() for x in tensors]
    expected = attended(plain, is_causal)
    expected.backward(grad)
    with memory(separate), weft.prefer(way):
        given = [laid(x, SEQUENCE).requires_grad_() for x in tensors]
        out = attended(given, is_causal)
        assert out._layout is SEQUENCE
        assert_sound(out)
        torch.testing.assert_close(out.detach().full_tensor(), expected.detach(), rtol=1e-4, atol=1e-5)
        out.backward(laid(grad, SEQUENCE))
        for x, y in zip(given, plain, strict=True):
            torch.testing.assert_close(x.grad.full_tensor(), y.grad, rtol=1e-3, atol=1e-4)
    lines.cache_clear()
