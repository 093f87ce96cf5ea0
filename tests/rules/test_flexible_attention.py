"""`flex_attention` in parts is that of one device, with any mask and any change of scores."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.flex_attention import flex_attention as kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import weft
from weft import P
from weft.sharding.mesh import make_mesh

from .harness import assert_sound, memory

LENGTH, HEADS = 26, 4
DOCUMENTS = torch.tensor([0] * 10 + [1] * 16)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 1.0], dtype=torch.float64)

# On GPUs, torch computes it in float32 in another order.
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="compares in float64, with what the host computes"),
    pytest.mark.filterwarnings("ignore:flex_attention called without"),
]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(length: int = LENGTH) -> list[torch.Tensor]:
    return [numbers(2, HEADS if k == 0 else 2, length, 8, seed=k) for k in range(3)]


def blocks(name: str, length: int = LENGTH) -> BlockMask:
    """Blocks of 8, of masks that are the same for all batches and heads, or not."""
    masks = {
        "causal": (lambda b, h, i, j: i >= j, None, None),
        "documents": (lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j], None, None),
        "of each head": (lambda b, h, i, j: (i - j + h + b) % 3 != 0, 2, HEADS),
    }
    mask, batches, heads = masks[name]
    return create_block_mask(mask, batches, heads, length, length, device="cpu", BLOCK_SIZE=8)


def same(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return score


def sloped(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return score - SLOPES[h] * (i - j)


LAYOUTS = {
    "a split sequence": ({"s": 4}, P(None, None, "s"), P(None, None, "s")),
    "a sequence split at a block": ({"s": 13}, P(None, None, "s"), P(None, None, "s")),
    "over two devices": ({"s": 2}, P(None, None, "s"), P(None, None, "s")),
    "over three": ({"s": 3}, P(None, None, "s"), P(None, None, "s")),
    "over eight": ({"s": 8}, P(None, None, "s"), P(None, None, "s")),
    "heads and sequence": ({"s": 2, "h": 2}, P(None, "h", "s"), P(None, "h", "s")),
    "shared heads": ({"b": 2, "h": 4}, P("b", "h"), P("b")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", ["causal", "documents", "of each head"])
def test_it_is_that_of_one_device(mask: str, layout: str) -> None:
    axes, of_queries, of_keys = LAYOUTS[layout]
    mesh, mod = make_mesh(axes), sloped if mask == "causal" else same
    given, grad, some = inputs(), numbers(2, HEADS, LENGTH, 8, seed=7), blocks(mask).as_tuple()
    plain = [x.clone().requires_grad_() for x in given]
    expected = kernel(*plain, mod, some, 0.4, {})
    expected[0].backward(grad)
    logs = []
    for separate in (True, False):
        with memory(separate), weft.comm_log() as log:
            specs = of_queries, of_keys, of_keys
            there = [weft.shard(x, mesh, spec).requires_grad_() for x, spec in zip(given, specs, strict=True)]
            found = kernel(*there, mod, some, 0.4, {})
            found[0].backward(weft.shard(grad, mesh, of_queries))
            assert found[0]._layout is there[0]._layout
            for ours, theirs in zip(found, expected, strict=True):
                assert_sound(ours)
                torch.testing.assert_close(ours.detach().full_tensor(), theirs.detach())
            for ours, theirs in zip(there, plain, strict=True):
                torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
        logs.append([(record.kind, record.bytes_received) for record in log if record.implicit])
    assert logs[0] == logs[1]


def test_devices_may_have_no_queries() -> None:
    mesh, some = make_mesh({"s": 4}), blocks("causal", 3).as_tuple()
    plain = [x.requires_grad_() for x in inputs(3)]
    expected = kernel(*plain, same, some, 0.4, {})[0]
    expected.sum().backward()
    with memory(separate=True):
        there = [weft.shard(x.detach(), mesh, P(None, None, "s")).requires_grad_() for x in plain]
        found = kernel(*there, same, some, 0.4, {})[0]
        found.sum().backward()
        torch.testing.assert_close(found.detach().full_tensor(), expected.detach())
        for ours, theirs in zip(there, plain, strict=True):
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


@pytest.mark.parametrize("separate", [True, False])
def test_the_function_of_users(separate: bool) -> None:
    torch._dynamo.reset()
    given, some = inputs(), blocks("documents")
    expected = flex_attention(*given, score_mod=sloped, block_mask=some, enable_gqa=True)
    mesh = make_mesh({"s": 4})
    with memory(separate):
        there = [weft.shard(x, mesh, P(None, None, "s")) for x in given]
        with weft.comm_log() as log:
            found = flex_attention(*there, score_mod=sloped, block_mask=some, enable_gqa=True)
        assert log.counts() == {"all_gather": 2}
        torch.testing.assert_close(found.full_tensor(), expected)


def test_what_it_does_not_take() -> None:
    mesh, some = make_mesh({"s": 4}), blocks("causal").as_tuple()
    query, key, value = inputs()
    there = [weft.shard(x, mesh, P(None, None, "s")) for x in (query, key, value)]
    with pytest.raises(
        NotImplementedError, match=r"queries, keys and values that are all sharded.*weft.shard the plain"
    ):
        kernel(there[0], key, value, same, some, 0.4, {})
    with pytest.raises(NotImplementedError, match="as many batches of keys as of queries, but got 1 and 2: expand"):
        kernel(there[0], there[1][:1], there[2][:1], same, some, 0.4, {})
    slopes = SLOPES.clone().requires_grad_()
    out = kernel(*there, lambda score, b, h, i, j, given: score * given[h], some, 0.4, {}, (slopes,), ())[0]
    with pytest.raises(NotImplementedError, match=r"no gradient for tensors that score_mod captures: detach\(\) them"):
        out.sum().backward()
