"""What models of other people move: nothing where the layouts allow it, and what the table of docs/training.md says elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import weft
from tests.nn.several_processes import check_short_sums
from weft import P
from weft.errors import ReshardError
from weft.runtime.machine import use_separate_memory
from weft.watch.comm_log import CommLog

MESH = weft.make_mesh({"dp": 2, "tp": 2})


@pytest.fixture(autouse=True, params=["apart", "one"])
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    use_separate_memory(request.param == "apart")
    torch.manual_seed(0)
    yield request.param
    use_separate_memory(False)


def moved(log: CommLog) -> list[tuple[str, str, tuple[int, ...]]]:
    """The steps of a log in which something is received."""
    return [(record.kind, record.op, tuple(record.shape)) for record in log if record.total_bytes]


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, weft.Tensor) else x


def products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Each head of keys and values serves two of the queries."""
    k, v = (x[:, :, None].expand(4, 4, 2, 6, 8).reshape(4, 8, 6, 8) for x in (k, v))
    return products(q, k, v)


def einsums(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v)


ATTENTION = {"products": products, "grouped": grouped, "einsums": einsums, "kernel": F.scaled_dot_product_attention}


@pytest.mark.parametrize("spec", [P("dp", "tp"), P("tp", "dp"), P(None, ("dp", "tp")), P("dp"), P(None, "tp")])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("way", ATTENTION)
def test_attention_of_split_sequences_and_heads_moves_nothing(way: str, queries: int, spec: P) -> None:
    heads = 4 if way == "grouped" else 8
    plain = [torch.randn(4, h, n, 8, requires_grad=True) for h, n in ((8, queries), (heads, 6), (heads, 6))]
    split = [weft.shard(x.detach(), MESH, spec).requires_grad_() for x in plain]
    weights = torch.randn(4, 8, queries, 8)
    expected = ATTENTION[way](*plain)
    (expected * weights).sum().backward()
    there = weft.shard(weights, MESH, spec)
    with weft.comm_log() as log:
        y = ATTENTION[way](*split)
        y.backward(there)
    assert moved(log) == []
    torch.testing.assert_close(whole(y), expected)
    for x, given in zip(split, plain, strict=True):
        torch.testing.assert_close(whole(x.grad), given.grad)


@pytest.mark.parametrize("spec", [P("dp", "tp"), P(None, ("dp", "tp"))])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("way", ["products", "kernel"])
def test_attention_in_inference_mode_moves_nothing_either(way: str, queries: int, spec: P) -> None:
    with torch.inference_mode():
        plain = [torch.randn(4, 8, n, 8) for n in (queries, 6, 6)]
        split = [weft.shard(x, MESH, spec) for x in plain]
        with weft.comm_log() as log:
            y = ATTENTION[way](*split)
        assert moved(log) == []
        torch.testing.assert_close(whole(y), ATTENTION[way](*plain))


def test_a_token_with_cached_keys_moves_one_sum() -> None:
    """A decoding step of one layer: projections by heads, a cache that grows, and the sum after the last projection."""
    w_in, w_out = torch.randn(3, 64, 64) / 8, torch.randn(64, 64) / 8
    x, cached = torch.randn(4, 1, 64), torch.randn(2, 4, 8, 5, 8)

    def step(
        x: torch.Tensor, cached: list[torch.Tensor], w_in: list[torch.Tensor], w_out: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (F.linear(x, w).view(4, 1, 8, 8).transpose(1, 2) for w in w_in)
        k, v = (torch.cat([old, new], 2) for old, new in zip(cached, (k, v), strict=True))
        return F.linear(products(q, k, v).transpose(1, 2).reshape(4, 1, 64), w_out)

    expected = step(x, list(cached), list(w_in), w_out)
    with weft.comm_log() as log:
        y = step(
            weft.shard(x, MESH, P("dp")),
            [weft.shard(c, MESH, P("dp", "tp")) for c in cached],
            [weft.shard(w, MESH, P("tp")) for w in w_in],
            weft.shard(w_out, MESH, P(None, "tp")),
        )
        y = weft.shard(y, MESH, P("dp"))
    assert log.counts() == {"all_reduce": 1}
    torch.testing.assert_close(whole(y), expected)


def put(x: torch.Tensor, index: object, value: torch.Tensor) -> None:
    x[index] = value


AT = torch.tensor([3])
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "index_copy_": lambda cache, key: cache.index_copy_(2, AT, key),
    "index_put_": lambda cache, key: put(cache, (slice(None), slice(None), AT), key),
    "copy_": lambda cache, key: put(cache, (slice(None), slice(None), slice(3, 4)), key),
    "add_": lambda cache, key: cache[:, :, 3:4].add_(key),
    "addcmul_": lambda cache, key: cache[:, :, 3:4].addcmul_(key, key),
    "fill_": lambda cache, key: cache.fill_(key.sum()),
    "_foreach_copy_": lambda cache, key: torch._foreach_copy_([cache[:, :, 3:4]], [key]),
    "out=": lambda cache, key: torch.exp(key, out=cache[:, :, 3:4]),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_gathered_for_a_plain_tensor_is_seen(name: str) -> None:
    key = torch.randn(4, 8, 1, 8)
    expected, cache = torch.zeros(4, 8, 6, 8), torch.zeros(4, 8, 6, 8)
    WRITES[name](expected, key)
    ours = weft.shard(key, MESH, P("dp", "tp"))
    with weft.reshard_policy("raise"), pytest.raises(ReshardError, match=r"written to a plain tensor.*new_zeros"):
        WRITES[name](cache, ours)
    assert not cache.any()
    with weft.comm_log() as log:
        WRITES[name](cache, ours)
    assert {(record.implicit, name in record.op) for record in log if record.total_bytes} == {(True, True)}
    torch.testing.assert_close(cache, expected)


CACHES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "new_zeros": lambda key: key.new_zeros(4, 8, 6, 8),
    "zeros_like": lambda key: torch.zeros_like(key.expand(4, 8, 6, 8)),
    "weft.zeros": lambda key: weft.zeros(4, 8, 6, 8, mapping=key.mapping),
    "weft.shard": lambda key: weft.shard(torch.zeros(4, 8, 6, 8), key.mesh, key.mapping.spec),
}


@pytest.mark.parametrize("made", CACHES)
@pytest.mark.parametrize("name", [name for name in WRITES if name != "fill_"])
def test_a_cache_laid_out_like_its_keys_gathers_nothing(name: str, made: str) -> None:
    key = torch.randn(4, 8, 1, 8)
    expected = torch.zeros(4, 8, 6, 8)
    WRITES[name](expected, key)
    ours = weft.shard(key, MESH, P("dp", "tp"))
    cache = CACHES[made](ours)
    with weft.comm_log() as log:
        WRITES[name](cache, ours)
    assert moved(log) == []
    torch.testing.assert_close(whole(cache), expected)


LINE = weft.make_mesh({"dp": 4})
GRADIENTS_OF_WEIGHTS = {"all_reduce"}
LSTMS: dict[str, dict[str, object]] = {
    "one": {},
    "batch first": {"batch_first": True},
    "deep": {"num_layers": 2, "bidirectional": True},
    "without biases": {"bias": False},
}


def grown(module: nn.Module, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """The results of a recurrent module, and the gradients of its input and parameters."""
    result = module(x)
    (result[0] * weights).sum().backward()
    state = result[1] if isinstance(result[1], tuple) else result[1:]
    return [result[0], *state, x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("batch", [8, 6, 3])
@pytest.mark.parametrize("name", LSTMS)
def test_an_lstm_of_a_split_batch_moves_the_gradients_of_its_weights_only(name: str, batch: int) -> None:
    options = LSTMS[name]
    lstm = nn.LSTM(5, 7, **options)  # type: ignore[arg-type]
    shape, spec = ((batch, 4, 5), P("dp")) if options.get("batch_first") else ((4, batch, 5), P(None, "dp"))
    x = torch.randn(shape)
    expected = grown(copy.deepcopy(lstm), x.clone().requires_grad_(), torch.ones(()))
    weft.nn.shard_module(lstm, LINE, {})
    ours = weft.shard(x, LINE, spec).requires_grad_()
    with weft.comm_log() as log:
        found = grown(lstm, ours, torch.ones(()))
    assert {kind for kind, _, _ in moved(log)} <= GRADIENTS_OF_WEIGHTS
    assert all(record.op == "gradient" for record in log if record.total_bytes)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(whole(one), other, rtol=1e-4, atol=1e-5)


CELLS = {
    "LSTM": (nn.LSTM, (4, 8, 5), P(None, "dp"), lambda x: (x.new_zeros(1, 8, 7), x.new_zeros(1, 8, 7)), {}),
    "projected": (
        nn.LSTM,
        (4, 8, 5),
        P(None, "dp"),
        lambda x: (x.new_zeros(1, 8, 2), x.new_zeros(1, 8, 7)),
        {"proj_size": 2},
    ),
    "GRU": (nn.GRU, (4, 8, 5), P(None, "dp"), lambda x: x.new_zeros(1, 8, 7), {}),
    "RNN": (nn.RNN, (4, 8, 5), P(None, "dp"), lambda x: x.new_zeros(1, 8, 7), {}),
    "GRUCell": (nn.GRUCell, (8, 5), P("dp"), lambda x: x.new_zeros(8, 7), {}),
    "LSTMCell": (nn.LSTMCell, (8, 5), P("dp"), lambda x: (x.new_zeros(8, 7), x.new_zeros(8, 7)), {}),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("is_given", [True, False], ids=["given", "zeros"])
@pytest.mark.parametrize("name", CELLS)
def test_recurrence_from_a_state_that_lies_like_the_batch_moves_nothing(name: str, is_given: bool) -> None:
    """Or from torch's zeros, of which each device takes the part that is its own."""
    make, shape, spec, state, options = CELLS[name]
    module = make(5, 7, **options)  # type: ignore[arg-type]
    x = torch.randn(shape)
    expected = module(x)
    weft.nn.shard_module(module, LINE, {})
    ours = weft.shard(x, LINE, spec)
    with weft.comm_log() as log:
        found = module(ours, state(ours)) if is_given else module(ours)
    assert moved(log) == []
    first = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(whole(first), expected[0] if isinstance(expected, tuple) else expected)


BAGS: dict[str, dict[str, object]] = {
    "sums": {"mode": "sum"},
    "means": {"mode": "mean"},
    "padded sums": {"mode": "sum", "padding_idx": 3},
    "padded means": {"mode": "mean", "padding_idx": 3},
    "with the last end": {"mode": "mean", "include_last_offset": True},
    "weighted": {"mode": "sum", "per_sample_weights": torch.linspace(-1, 2, 12, dtype=torch.float64)},
    "scaled by frequency": {"mode": "sum", "scale_grad_by_freq": True},
}


@pytest.mark.parametrize("spec", [P("dp"), P(("dp", "tp")), P("dp", "tp"), P(None, "tp")])
@pytest.mark.parametrize("name", BAGS)
def test_bags_of_a_split_table_leave_the_table_where_it_is(name: str, spec: P) -> None:
    table, indices = torch.randn(10, 4, dtype=torch.float64), torch.randint(10, (12,))
    offsets = torch.tensor([0, 5, 5, 12 if name == "with the last end" else 9])
    plain, ours = table.clone().requires_grad_(), weft.shard(table, MESH, spec).requires_grad_()
    expected = F.embedding_bag(indices, plain, offsets, **BAGS[name])  # type: ignore[arg-type]
    grad = torch.randn_like(expected)
    expected.backward(grad)
    with weft.comm_log() as log:
        found = F.embedding_bag(indices, ours, offsets, **BAGS[name])  # type: ignore[arg-type]
        found.backward(grad)
    assert moved(log) == []
    torch.testing.assert_close(whole(found), expected)
    torch.testing.assert_close(whole(ours.grad), plain.grad)
    with torch.no_grad(), weft.comm_log() as log:
        again = F.embedding_bag(indices, ours, offsets, **BAGS[name])  # type: ignore[arg-type]
    assert moved(log) == []
    torch.testing.assert_close(whole(again), expected)


def test_gradients_of_bags_are_made_of_the_rows_that_a_device_has() -> None:
    table = weft.shard(torch.randn(8, 4), MESH, P("dp")).requires_grad_()
    total = F.embedding_bag(torch.randint(8, (3, 4)), table, mode="sum").sum()
    with weft.comm_log() as log:
        total.backward()
    assert log.counts() == {}  # nor is a part cut out of a whole gradient


@pytest.mark.parametrize("on_the_way", [lambda w: w, lambda w: w.double(), lambda w: w * 2])
def test_gradients_of_tables_are_made_where_each_table_lies_whatever_was_looked_up_before(
    on_the_way: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    rows, columns = (weft.shard(torch.randn(8, 4), MESH, spec).requires_grad_() for spec in (P("dp"), P("tp")))
    index = weft.shard(torch.randint(8, (3, 5)), MESH, P())
    for table, other in ((rows, columns), (columns, rows)):
        total = F.embedding(index, on_the_way(table)).sum()
        F.embedding(index, other)
        with weft.comm_log() as log:
            total.backward()
        assert log.counts() == {}  # nor is a part cut out of a whole gradient


@pytest.mark.skipif(torch.cuda.is_available(), reason="found by an assertion on the GPU, which ends its use")
@pytest.mark.parametrize("index", [-1, 8])
def test_bags_of_a_split_table_refuse_indices_out_of_range(index: int) -> None:
    table = weft.shard(torch.randn(8, 4), MESH, P("dp"))
    with pytest.raises(RuntimeError, match="not in the valid range"):
        F.embedding_bag(torch.tensor([[1, index]]), table, mode="sum")


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_layer_of_a_split_batch_moves_the_gradients_of_its_weights_only(batch_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=batch_first)
    x = torch.randn((4, 6, 16) if batch_first else (6, 4, 16))
    plain, weights = x.clone().requires_grad_(), torch.randn(x.shape)
    expected = copy.deepcopy(layer)
    (expected(plain) * weights).sum().backward()
    weft.nn.shard_module(layer, MESH, {})
    spec = P("dp") if batch_first else P(None, "dp")
    ours = weft.shard(x, MESH, spec).requires_grad_()
    with weft.comm_log() as log:
        layer(ours).backward(weft.shard(weights, MESH, spec))
    assert {(kind, op) for kind, op, _ in moved(log)} == {("all_reduce", "gradient")}
    torch.testing.assert_close(whole(ours.grad), plain.grad, rtol=1e-4, atol=1e-5)
    for p, q in zip(layer.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(whole(p.grad), q.grad, rtol=1e-4, atol=1e-5)


ENCODER = {
    "self_attn.in_proj_*": P("tp"),
    "self_attn.out_proj.weight": P(None, "tp"),
    "linear1.*": P("tp"),
    "linear2.weight": P(None, "tp"),
}


def test_an_encoder_layer_of_split_heads_moves_two_sums_and_its_fused_projection() -> None:
    """The projection to queries, keys and values is one matrix in torch, split across all three."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    x = torch.randn(4, 6, 16)
    expected = copy.deepcopy(layer)(x)
    weft.nn.shard_module(layer, MESH, ENCODER)
    ours = weft.shard(x, MESH, P("dp")).requires_grad_()
    with weft.comm_log() as log:
        y = layer(ours)
    activations = {(4, 6, 16)}
    assert [kind for kind, _, _ in moved(log)] == ["exchange", "all_reduce", "all_reduce"]
    assert {tuple(record.shape) for record in log if record.kind == "all_reduce"} == activations
    with weft.comm_log() as log:
        y.backward(weft.shard(torch.randn(4, 6, 16), MESH, P("dp")))
    steps = moved(log)
    assert sorted({kind for kind, _, _ in steps}) == ["all_reduce", "exchange"]
    assert [kind for kind, _, _ in steps].count("exchange") == 1
    assert len([shape for kind, _, shape in steps if kind == "all_reduce" and shape in activations]) == 2
    torch.testing.assert_close(whole(y), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [4, 3, 1])
@pytest.mark.parametrize("mask", ["none", "of all", "of each"])
def test_an_encoder_layer_in_one_kernel_leaves_the_batch_split(mask: str, batch: int) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x, padding = torch.randn(batch, 6, 16), torch.arange(6) >= torch.arange(3, 3 + batch)[:, None]
    masks = {
        "none": {},
        "of all": {"src_mask": torch.ones(6, 6).triu(1).bool()},
        "of each": {"src_key_padding_mask": padding},
    }
    with torch.no_grad():
        expected = layer(x, **masks[mask])
        weft.nn.shard_module(layer, MESH, {})
        ours = weft.shard(x, MESH, P(("dp", "tp")))
        with weft.comm_log() as log:
            y = layer(ours, **masks[mask])
    assert moved(log) == []
    torch.testing.assert_close(whole(y), expected, rtol=1e-4, atol=1e-5)


def fused(w: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of a fused projection, those of each head together: q, k and v of the first, then of the second."""
    return w.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def test_a_fused_projection_whose_rows_stand_by_heads_moves_nothing() -> None:
    x, w = torch.randn(4, 6, 16), torch.randn(48, 16)
    expected = F.linear(x, w).view(4, 6, 3, 4, 4).unbind(2)
    ours = weft.shard(x, MESH, P("dp"))
    with weft.comm_log() as log:
        [part.view(4, 6, 4, 4) for part in F.linear(ours, weft.shard(w, MESH, P("tp"))).chunk(3, -1)]
    # Of what it has of the projection, 4 x 6 x 48 numbers over 4 devices, each receives a third.
    assert {record.kind for record in log if record.total_bytes} == {"exchange"}
    assert log.total_bytes * 3 == 4 * 6 * 48 * 4
    with weft.comm_log() as log:
        by_heads = F.linear(ours, weft.shard(fused(w, 4), MESH, P("tp"))).view(4, 6, 4, 3, 4).unbind(3)
        alone = [F.linear(ours, weft.shard(part, MESH, P("tp"))).view(4, 6, 4, 4) for part in w.chunk(3)]
    assert moved(log) == []
    for found in (by_heads, alone):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(whole(one), other)


def test_a_fused_gate_whose_rows_alternate_moves_nothing() -> None:
    x, w = torch.randn(4, 6, 16), torch.randn(64, 16)
    gate, up = F.linear(x, w).chunk(2, -1)
    ours, rows = weft.shard(x, MESH, P("dp")), w.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)
    with weft.comm_log() as log:
        found = F.linear(ours, weft.shard(rows, MESH, P("tp"))).unflatten(-1, (-1, 2)).unbind(-1)
    assert moved(log) == []
    for one, other in zip(found, (gate, up), strict=True):
        torch.testing.assert_close(whole(one), other)


@pytest.mark.parametrize(("classes", "gathers"), [(1024, True), (32000, False)])
def test_losses_of_split_classes_gather_what_takes_less_time_than_two_sums(classes: int, gathers: bool) -> None:
    scores = weft.shard(torch.randn(64, classes), MESH, P("dp", "tp"))
    targets = weft.shard(torch.randint(classes, (64,)), MESH, P("dp"))
    with weft.comm_log() as log:
        F.cross_entropy(scores, targets)
    gathered = [record.bytes_received for record in log if record.kind == "all_gather"]
    assert gathered == ([32 * 1024 * 4 // 2] if gathers else [])
    assert log.bytes_received < 100_000


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyOptions"), reason="needs a torch with losses of products")
@pytest.mark.parametrize("in_chunks", [False, True])
def test_losses_of_products_gather_a_split_table_only_in_chunks(in_chunks: bool) -> None:
    x, table, targets = torch.randn(96, 16), torch.randn(4099, 16), torch.randint(4099, (96,))
    given = [weft.shard(each, MESH, P(axis)) for each, axis in ((x, "dp"), (table, "tp"), (targets, "dp"))]
    options = {"options": nn.LinearCrossEntropyOptions(batch_chunk_size=32)} if in_chunks else {}
    with weft.comm_log() as log:
        found = F.linear_cross_entropy(*given, **options)
    torch.testing.assert_close(whole(found), F.linear_cross_entropy(x, table, targets, **options))
    gathered = [record.total_bytes for record in log if record.shape == (4099, 16)]
    assert gathered == ([2 * 4099 * 16 * 4] if in_chunks else [])


@pytest.mark.parametrize("rows", [True, False])
def test_keys_at_different_places_are_gathered_only_by_an_index_of_rows(rows: bool) -> None:
    cache, key, place = torch.zeros(4, 4, 8, 4), torch.randn(4, 4, 1, 4), torch.tensor([2, 5, 0, 3])

    def written(cache: torch.Tensor, key: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        if not rows:
            return cache.scatter_(2, place.view(-1, 1, 1, 1).expand_as(key), key)
        cache[torch.arange(4), :, place] = key[:, :, 0]
        return cache

    split = [weft.shard(each, MESH, P("dp", "tp")) for each in (cache, key)]
    there = weft.shard(place, MESH, P("dp"))
    with weft.comm_log() as log:
        found = written(*split, there)
    torch.testing.assert_close(whole(found), written(cache, key, place))
    assert sum(record.total_bytes for record in log if len(record.shape) > 1) == (256 if rows else 0)


def test_muon_gathers_a_gradient_once_where_it_is_told_to() -> None:
    w, g = torch.randn(32, 64), torch.randn(32, 64)
    plain = nn.Parameter(w.clone())
    plain.grad = g
    torch.optim.Muon([plain], lr=0.1).step()
    received = []
    for gathers in (False, True):
        ours = nn.Parameter(weft.shard(w, LINE, P("dp")))
        ours.grad = weft.shard(g, LINE, P("dp"))
        optimizer = torch.optim.Muon([ours], lr=0.1)
        if gathers:
            optimizer.register_step_pre_hook(whole_gradients)
        with weft.comm_log() as log:
            optimizer.step()
        received.append(log.bytes_received)
        torch.testing.assert_close(whole(ours.detach()), plain.detach(), rtol=0.02, atol=0.01)
        assert ours.mapping.spec[0] == "dp"
    each, once = received
    assert once == 32 * 64 * 4 * 3 // 4
    assert each > 6 * once


def whole_gradients(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = weft.shard(p.grad, p.mesh, P())


def test_sums_of_half_precision_are_reduced_before_the_model_widens_them() -> None:
    check_short_sums(MESH)
