"""Strides are plain torch's in every form, and pieces lie in that order: every op, its inputs made as views."""

from __future__ import annotations

import os
from itertools import product
from zlib import crc32

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft import P
from weft.runtime.strides import dense_strides, elementwise_strides

from .harness import memory
from .opinfo import LAYOUTS, REASONS, largest_sample, name_of, op_infos
from .strided import EXCEPTIONS, VARIANTS, concerns, fault

ALL = os.environ.get("WEFT_ALL_SAMPLES") == "1"
"""Whether every op is run in every layout and both memories; else each is run in one of the layouts, mostly apart."""


def _faults(separate: bool, variant: str, ops: list[object]) -> list[str]:
    found = []
    with memory(separate):
        for op in ops:
            sample = largest_sample(op)
            name = name_of(op)
            if name in REASONS or name in EXCEPTIONS or not concerns(sample, VARIANTS[variant]):
                continue
            layouts = list(LAYOUTS) if ALL else [list(LAYOUTS)[crc32(f"{name} {variant}".encode()) % len(LAYOUTS)]]
            for layout in layouts:
                wrong = fault(op, sample, VARIANTS[variant], LAYOUTS[layout])  # type: ignore[arg-type]
                found += [f"{name}, {variant}, {layout}: {wrong}"] if wrong else []
    return found


@pytest.mark.xdist_group("opinfo")
@pytest.mark.usefixtures("quiet")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the samples are made in host memory")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("memories", ["apart", "one"])
def test_every_op_gives_plain_torchs_strides_values_and_gradients(memories: str, variant: str) -> None:
    ops = op_infos() if ALL or memories == "apart" else op_infos()[::5]
    assert "\n".join(_faults(memories == "apart", variant, ops)) == ""


@st.composite
def views(draw: st.DrawFn, rank: int) -> torch.Tensor:
    """A tensor of a rank, permuted, and perhaps with gaps or dims of size 1."""
    shape = [draw(st.integers(1, 3)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    x = torch.empty([shape[d] for d in order]).permute([order.index(d) for d in range(rank)])
    dim = draw(st.integers(0, rank - 1))
    return x.narrow(dim, 0, x.shape[dim] - 1) if x.shape[dim] > 1 and draw(st.booleans()) else x


@given(views(3))
def test_a_copy_is_as_clone_makes_it(x: torch.Tensor) -> None:
    assert dense_strides(tuple(x.shape), x.stride()) == x.clone().stride()


@given(st.lists(views(4), min_size=1, max_size=3))
def test_elementwise_results_lie_as_torch_lays_them(tensors: list[torch.Tensor]) -> None:
    try:
        shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    except RuntimeError:
        tensors, shape = tensors[:1], tensors[0].shape
    ops = {1: torch.neg, 2: torch.add, 3: torch.addcmul}
    real = ops[len(tensors)](*tensors)  # type: ignore[operator]
    assert elementwise_strides(tensors) == real.stride() or 0 in shape
    beside = tensors[0] * 2
    assert elementwise_strides(tensors[:1], numbers=True) == beside.stride() or 0 in beside.shape


@pytest.mark.parametrize("separate", [True, False])
def test_what_reads_memory_by_strides_reads_the_right_elements(separate: bool) -> None:
    x = torch.randn(4, 4, 6, 8, dtype=torch.float64)

    def attended(x: torch.Tensor) -> torch.Tensor:
        half, third = x.mT * 0.5, x.mT * 0.3
        return torch.nn.functional.scaled_dot_product_attention(half, third, x.mT, is_causal=True)

    with memory(separate):
        y = weft.shard(x, weft.make_mesh({"dp": 2, "tp": 2}), P("dp", "tp"))
        assert (y.mT * 0.5).stride() == (x.mT * 0.5).stride()
        torch.testing.assert_close(attended(y).full_tensor(), attended(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("separate", [True, False])
def test_attention_of_one_query_lies_as_the_query_does(separate: bool) -> None:
    """A model that writes asks for one word at a time."""
    words, x = torch.randn(4, 4, 6, 8), torch.randn(4, 1, 4, 8)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    attention = torch.nn.functional.scaled_dot_product_attention
    expected = attention(x.transpose(1, 2), words, words)
    with memory(separate):
        keys = weft.shard(words, mesh, P("dp", "tp"))
        for spec in (P("dp"), P("dp", None, "tp")):
            y = attention(weft.shard(x, mesh, spec).transpose(1, 2), keys, keys)
            assert y.stride() == expected.stride()


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize(
    "draw", [torch.rand_like, torch.randn_like, torch.nn.functional.dropout, lambda x: x.clone().normal_()]
)
def test_random_numbers_of_transposed_tensors_are_plain_torchs(separate: bool, draw: object) -> None:
    x = torch.ones(3, 5, 6).mT
    with memory(separate):
        y = weft.shard(torch.ones(3, 5, 6), weft.make_mesh({"a": 2}), P(None, "a")).mT
        results = []
        for each in (x, y):
            torch.manual_seed(5)
            results.append(draw(each))  # type: ignore[operator]
        assert torch.equal(results[1].full_tensor(), results[0])


@pytest.mark.parametrize("separate", [True, False])
def test_moving_keeps_the_order_of_dims(separate: bool) -> None:
    x = torch.arange(24.0).reshape(4, 6).T
    with memory(separate):
        mesh = weft.make_mesh({"a": 2, "b": 2})
        y = weft.shard(x, mesh, P("a", "b"))
        for spec in (P("a", "b"), P("b", "a"), P(("b", "a"), None), P()):
            moved = weft.shard(y, mesh, spec)
            assert moved.stride() == x.stride()
            assert moved.full_tensor().stride() == x.stride()
            assert torch.equal(moved.full_tensor(), x)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("op", [torch.complex, torch.polar, torch.hypot])
def test_pairs_of_elements_lie_as_by_torch_though_some_are_expanded(op: object, separate: bool) -> None:
    expanded = torch.rand(1, 5, 3).expand(5, -1, -1).permute(2, 0, 1)
    y = torch.rand(3, 5, 5)
    with memory(separate):
        for other in (y, y.mT, y.permute(1, 0, 2).contiguous().permute(1, 0, 2)):
            sharded = weft.shard(other, weft.make_mesh({"a": 2}), P(None, "a"))
            assert op(expanded, sharded).stride() == op(expanded, other).stride()  # type: ignore[operator]
            assert op(sharded, expanded).stride() == op(other, expanded).stride()  # type: ignore[operator]


OUTS = {
    "a product of reflections": lambda x, out: torch.linalg.householder_product(x, x[0], out=out),
    "a stack": lambda x, out: torch.stack([x.t(), x.t()], out=out),
    "a transform": lambda x, out: torch.fft.fft(x.t().cfloat(), out=out),
    "a product": lambda x, out: torch.mm(x.t(), x, out=out),
}


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("name", OUTS)
def test_an_out_without_elements_is_laid_as_by_torch(name: str, separate: bool) -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    nothing = torch.empty(0, dtype=torch.cfloat if name == "a transform" else x.dtype)
    expected = OUTS[name](x, nothing.clone())
    with memory(separate):
        mesh = weft.make_mesh({"a": 2})
        found = OUTS[name](weft.shard(x, mesh, P("a")), weft.shard(nothing, mesh, P()))
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found.full_tensor(), expected)


def test_elements_that_are_put_where_a_mask_is_true_lie_as_the_others() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for separate in (True, False):
        with memory(separate):
            y = weft.shard(x, weft.make_mesh({"dp": 2}), P("dp"))
            assert torch.index_put(y, (y > 0,), torch.tensor(1.0)).stride() == x.stride()


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("separate", [True, False])
def test_what_torch_makes_larger_on_its_way_lies_as_by_torch(separate: bool, dtype: torch.dtype) -> None:
    x, y = torch.ones(10, 1, 5), torch.ones(5, 10, dtype=dtype).T
    with memory(separate):
        mesh = weft.make_mesh({"a": 2})
        assert (
            torch.ldexp(weft.shard(x, mesh, P("a")), weft.shard(y, mesh, P("a"))).stride() == torch.ldexp(x, y).stride()
        )


@pytest.mark.parametrize("separate", [True, False])
def test_kernels_without_a_rule_see_how_the_whole_lies(separate: bool) -> None:
    with memory(separate):
        mesh = weft.make_mesh({"a": 2, "b": 2})
        for shape in ((8, 4, 6, 6), (2, 4, 2, 2)):
            x = torch.ones(shape).to(memory_format=torch.channels_last)
            y = weft.shard(x, mesh, P(None, "b"))
            assert torch.channel_shuffle(y[:, ::2], 1).stride() == torch.channel_shuffle(x[:, ::2], 1).stride()
            large = [torch.nn.functional.pixel_shuffle(each, 2) for each in (x, y)]
            for _ in range(2):  # the second is a repeated call
                small = [torch.nn.functional.pixel_unshuffle(torch.ones_like(each), 2) for each in large]
                assert small[1].stride() == small[0].stride()


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("op", [torch.add, torch.div, torch.lt, torch.atan2])
def test_what_is_converted_is_copied_without_gaps_as_by_torch(op: object, separate: bool) -> None:
    views = {
        "expanded": lambda x: x[:, :1].expand(-1, 5, -1),
        "turned": lambda x: x.permute(2, 1, 0),
        "with gaps": lambda x: x.transpose(0, 1)[::2].transpose(0, 1).repeat_interleave(2, 2)[..., ::2],
    }
    with memory(separate):
        mesh = weft.make_mesh({"a": 2})
        for first, second in product(views.values(), repeat=2):
            for dtypes in product([torch.float32, torch.float64, torch.int64], repeat=2):
                given = [torch.ones(2, 5, 2, dtype=dtype) for dtype in dtypes]
                plain = [view(x) for view, x in zip((first, second), given, strict=True)]
                if plain[0].shape == plain[1].shape:
                    ours = [view(weft.shard(x, mesh, P())) for view, x in zip((first, second), given, strict=True)]
                    assert op(*ours).stride() == op(*plain).stride()  # type: ignore[operator]
