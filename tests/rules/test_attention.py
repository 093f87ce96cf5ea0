"""Attention in every layout, and what it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.engine.op_kind import expects_contiguous
from weft.sharding.layout import Layout

from .case import Case
from .harness import GRID, LINE, laid, memory, moved_bytes


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(heads: int = 4, keys: int = 5) -> list[torch.Tensor]:
    return [numbers(2, 4, 3, 4), numbers(2, heads, keys, 4, seed=1), numbers(2, heads, keys, 4, seed=2)]


# On GPUs, the flash kernels take halves only, too coarse for comparing gradients here.
KERNELS = [SDPBackend.MATH] if torch.cuda.is_available() else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return nn.scaled_dot_product_attention(q, k, v, attn_mask=mask.detach(), scale=0.3)


MODULE = torch.nn.MultiheadAttention(8, 4, batch_first=True, dtype=torch.float64)
CASES = {
    "attention": Case(nn.scaled_dot_product_attention, tuple(inputs())),
    "causal": Case(lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, is_causal=True), tuple(inputs())),
    "a mask": Case(masked, (*inputs(), numbers(3, 5, seed=3))),
    "a mask for each sample": Case(masked, (*inputs(), numbers(2, 1, 3, 5, seed=3))),
    "shared keys": Case(
        lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, enable_gqa=True), tuple(inputs(heads=2))
    ),
    "multihead attention": Case(lambda x: MODULE(x, x, x)[0], (numbers(2, 3, 8),)),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, kernel: SDPBackend) -> None:
    with sdpa_kernel(kernel):
        CASES[name].check()


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_split_batch_and_heads_move_nothing(kernel: SDPBackend, separate: bool) -> None:
    with memory(separate), sdpa_kernel(kernel):
        layout = Layout(GRID, [("a",), ("b",), (), ()])
        q, k, v = (laid(x, layout).requires_grad_() for x in inputs(keys=3))
        out = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert out._layout is layout
        assert moved_bytes(lambda: nn.scaled_dot_product_attention(q, k, v, is_causal=True)) == 0
        assert moved_bytes(lambda: out.backward(laid(numbers(2, 4, 3, 4), layout))) == 0


@pytest.mark.parametrize("separate", [False, True])
def test_split_queries_move_nothing(separate: bool) -> None:
    with memory(separate):
        q, k, v = (laid(x, Layout.replicated(LINE, 4)) for x in inputs())
        q = laid(inputs()[0], Layout(LINE, [(), (), ("x",), ()]))
        assert moved_bytes(lambda: nn.scaled_dot_product_attention(q, k, v)) == 0
        assert nn.scaled_dot_product_attention(q, k, v)._layout is q._layout


def scattered(cache: torch.Tensor, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    batch, heads, _, features = cache.shape
    return cache.scatter_(2, place.view(batch, 1, 1, 1).expand(batch, heads, 1, features), token)


def chosen(cache: torch.Tensor, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return torch.where(
        (torch.arange(cache.shape[2], device=place.device) == place[:, None])[:, None, :, None], token, cache
    )


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("written", [scattered, chosen])
def test_sequences_at_different_places_are_decoded_where_they_lie(
    written: Callable[..., torch.Tensor], separate: bool
) -> None:
    """Each writes a token's keys and values to its own place, sees what it has, and nothing moves."""
    batch, heads, of_keys, length = 5, 8, 4, 9

    def decoded(put: Callable[[torch.Tensor], torch.Tensor], place: torch.Tensor) -> Iterator[torch.Tensor]:
        keys, values = (put(numbers(batch, of_keys, length, 4, seed=k)) for k in range(2))
        for step in range(3):
            query, key, value = (put(numbers(batch, n, 1, 4, seed=step + n)) for n in (heads, of_keys, of_keys))
            keys, values = written(keys, key, place), written(values, value, place)
            seen = (torch.arange(length, device=place.device) <= place[:, None])[:, None, None]
            yield nn.scaled_dot_product_attention(query, keys, values, attn_mask=seen, enable_gqa=True)
            place = place + 1

    places = torch.tensor([2, 5, 0, 6, 1])
    with memory(separate):
        layout, found = Layout(GRID, [("a",), ("b",), (), ()]), list[torch.Tensor]()
        there = laid(places, Layout(GRID, [("a",)]))
        assert moved_bytes(lambda: found.extend(decoded(lambda x: laid(x, layout), there))) == 0
        for ours, theirs in zip(found, decoded(torch.clone, places), strict=True):
            torch.testing.assert_close(ours.full_tensor().cpu(), theirs)


@pytest.mark.parametrize("separate", [False, True])
def test_dropout_is_that_of_one_device(separate: bool) -> None:
    q, k, v = inputs()
    torch.manual_seed(3)
    expected = nn.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    with memory(separate):
        torch.manual_seed(3)
        layout = Layout(GRID, [("a",), ("b",), (), ()])
        actual = nn.scaled_dot_product_attention(*(laid(x, layout) for x in (q, k, v)), dropout_p=0.5)
        torch.testing.assert_close(actual.full_tensor(), expected)


@pytest.mark.parametrize("heads", [slice(0, 4), slice(1, 3)])
def test_the_backward_kernel_of_the_host_goes_by_strides(heads: slice) -> None:
    """It is given pieces and parts of pieces as they lie."""
    query, key, value, grad = (torch.randn(2, 8, 4, 16).transpose(1, 2) for _ in range(4))
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True)
    given = [x[:, heads] for x in (grad, query, key, value, out, sums)]
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert not expects_contiguous(backward)
    dense = backward(*[x.contiguous() for x in given], 0.0, True)
    for one, other in zip(backward(*given, 0.0, True), dense, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="a kernel of the host")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_dims_of_size_1_lie_as_those_of_the_queries(separate: bool) -> None:
    """Vmap stacks what it gives, and where that lies hangs on them."""
    order, back = (1, 3, 0, 2, 4), (2, 0, 3, 1, 4)
    whole = numbers(2, 2, 1, 2, 1).permute(back)
    attend = torch.func.vmap(lambda x: nn.scaled_dot_product_attention(x, x, x))
    with memory(separate):
        x = laid(whole.permute(order), Layout(LINE, [(), (), ("x",), (), ()])).permute(back)
        given, expected = attend(x.requires_grad_()), attend(whole.detach().requires_grad_())
        long = [dim for dim, size in enumerate(expected.shape) if size > 1]
        assert [given.stride(dim) for dim in long] == [expected.stride(dim) for dim in long]
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        query = x.detach()[0]
        assert flash(query, query, query)[0].stride() == flash(whole[0], whole[0], whole[0])[0].stride()
