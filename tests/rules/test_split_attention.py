"""Attention whose sequence is split: every way gives what one device gives, moves what it says, and shares the work out evenly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product

import pytest
import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import weft
from weft.engine.sharded import ShardedTensor
from weft.handlers.attention.blocks import ScoreBlock, blocks, cuts, scores, swapped
from weft.handlers.attention.kernels import FORWARD
from weft.handlers.attention.merging import Gradients, Merged
from weft.handlers.attention.together import lines
from weft.rules.call import BoundCall
from weft.runtime.on_paper import is_aside
from weft.sharding.layout import Layout
from weft.sharding.mesh import DeviceMesh, make_mesh
from weft.watch.comm_log import CommLog

from .harness import assert_sound, laid, memory

WAYS = ("gather keys", "split heads", "ring")
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

# On GPUs, the kernels that give logarithms take halves only, or round more than is compared here: they have their own tests.
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="compares in float64, with the kernel of the host")


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def masks(length: int) -> dict[str, dict[str, object]]:
    """The arguments of attention, by what is masked."""
    seen = torch.rand(2, 1, length, length, generator=torch.Generator().manual_seed(5)) > 0.5
    seen[:, :, 1] = False  # a query that sees nothing
    seen[0, :, 2, : length // 2] = False  # and one that sees nothing of what some devices have
    return {
        "none": {"scale": 0.3},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": seen},
        "float": {"attn_mask": numbers(length, length, seed=6)},
        "padding": {"attn_mask": seen[:, :, 2:3]},
    }


def attended(given: list[torch.Tensor], mask: dict[str, object], grad: torch.Tensor) -> list[torch.Tensor]:
    """What attention gives, and the gradients of its inputs."""
    out = nn.scaled_dot_product_attention(*given, enable_gqa=given[0].shape[1] != given[1].shape[1], **mask)  # type: ignore[arg-type]
    return [out, *torch.autograd.grad(out, given, grad)]


def inputs(heads: int, of_keys: int, length: int, keys: int | None = None) -> list[torch.Tensor]:
    sizes = (heads, length), (of_keys, keys or length), (of_keys, keys or length)
    return [numbers(2, *size, 4, seed=k) for k, size in enumerate(sizes)]


def check(
    mesh: DeviceMesh, splits: tuple[Layout, Layout], given: list[torch.Tensor], mask: dict[str, object]
) -> CommLog:
    """Attention in these layouts is that of one device, and its result lies like the queries; what moved."""
    grad = numbers(*given[0].shape, seed=9)
    expected = attended([x.clone().requires_grad_() for x in given], mask, grad)
    layouts = splits[0], splits[1], splits[1]
    there = [laid(x, layout).requires_grad_() for x, layout in zip(given, layouts, strict=True)]
    with weft.comm_log() as log:
        actual = attended(list(there), mask, laid(grad, splits[0]))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_sound(ours)  # type: ignore[arg-type]
        torch.testing.assert_close(ours.detach().full_tensor(), theirs.detach(), rtol=1e-9, atol=1e-9)  # type: ignore[attr-defined]
    assert actual[0]._layout is splits[0]  # type: ignore[attr-defined]
    return log


def sequence(mesh: DeviceMesh) -> Layout:
    return Layout(mesh, [(), (), mesh.axis_names, ()])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_every_way_is_attention(devices: int, way: str) -> None:
    mesh = make_mesh({"s": devices})
    for (heads, of_keys), name in product([(8, 8), (8, 2), (8, 1)], masks(5)):
        logs = []
        for separate in (True, False):
            with weft.prefer(way), memory(separate):
                log = check(mesh, (sequence(mesh),) * 2, inputs(heads, of_keys, 5), masks(5)[name])
            logs.append([_seen(each) for each in log])
        assert logs[0] == logs[1]
    for name in ("causal", "boolean"):
        with weft.prefer(way), memory(separate=True):
            check(mesh, (sequence(mesh),) * 2, inputs(8, 8, 24), masks(24)[name])


def _seen(record: weft.watch.comm_log.CommRecord) -> tuple[object, ...]:
    return record.kind, record.source, record.target, record.shape, record.bytes_received, record.total_bytes


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_devices_on_one_piece_of_hardware_compute_together(
    devices: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of the kernel does for all of them: results and log are as if each had made its own."""
    mesh = make_mesh({"s": devices})
    cases = list(product([(8, 8), (8, 2)], ["causal", "none", "float"], [6 * devices, 6 * devices + 1]))
    logs: list[list[object]] = []
    counts = []
    for kinds in (set(), {"cpu"}):
        monkeypatch.setattr("weft.handlers.attention.together.KINDS", kinds)
        lines.cache_clear()
        for (heads, of_keys), mask, length in cases:
            with weft.prefer(way), memory(separate=True), counted_kernels(monkeypatch) as calls:
                log = check(mesh, (sequence(mesh),) * 2, inputs(heads, of_keys, length), masks(length)[mask])
            logs.append([_seen(record) for record in log])
            counts.append(len(calls))
    with weft.prefer(way), memory(separate=True):
        grid = make_mesh({"a": 2, "s": devices})
        check(grid, (Layout(grid, [("a",), (), ("s",), ()]),) * 2, inputs(8, 8, 4 * devices), {"is_causal": True})
    lines.cache_clear()
    half = len(logs) // 2
    assert logs[:half] == logs[half:]
    assert all(count >= 2 * devices for count in counts[:half])
    assert counts[half:] == [
        2 if mask != "float" else before for (_, mask, _), before in zip(cases, counts, strict=False)
    ]


def test_calls_of_devices_together_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other numbers, and as long as nobody looks on and the same way is preferred."""
    monkeypatch.setattr("weft.handlers.attention.together.KINDS", {"cpu"})
    lines.cache_clear()
    mesh = make_mesh({"s": 4})
    shape, layout = (2, 8, 16, 4), sequence(mesh)
    with memory(separate=True):
        for way, kind in [("ring", "permute"), ("split heads", "all_to_all"), ("gather keys", "all_gather")]:
            for seed in range(3):
                plain = [numbers(*shape, seed=3 * seed + k).requires_grad_() for k in range(3)]
                there = [laid(x.detach(), layout).requires_grad_() for x in plain]
                grad = numbers(*shape, seed=seed)
                with weft.prefer(way):
                    actual = attended(list(there), {"is_causal": True}, laid(grad, layout))
                for ours, theirs in zip(actual, attended(list(plain), {"is_causal": True}, grad), strict=True):
                    assert_sound(ours)  # type: ignore[arg-type]
                    torch.testing.assert_close(ours.detach().full_tensor(), theirs.detach(), rtol=1e-9, atol=1e-9)  # type: ignore[attr-defined]
            with weft.prefer(way), weft.comm_log() as log:
                attended(list(there), {}, laid(grad, layout))
            assert kind in log.counts()
    lines.cache_clear()


@contextmanager
def counted_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The calls of attention kernels inside, without those that are only asked what they would give."""
    calls: list[object] = []
    before = BoundCall.on

    def on(self: BoundCall, tensors: Sequence[object]) -> object:
        if self.func in (KERNEL, FORWARD[KERNEL].gradient) and not is_aside():
            calls.append(self.func)
        return before(self, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(BoundCall, "on", on)
        yield calls


@pytest.mark.parametrize("way", WAYS)
def test_two_axes_may_split_the_sequence(way: str) -> None:
    mesh = make_mesh({"a": 2, "b": 2, "c": 2})
    layout = Layout(mesh, [("a",), (), ("c", "b"), ()])
    for length, mask in product([11, 16], ["causal", "float"]):
        with weft.prefer(way), memory(separate=True):
            check(mesh, (layout, layout), inputs(4, 4, length), masks(length)[mask])


@pytest.mark.parametrize("way", WAYS)
def test_keys_may_have_another_length(way: str) -> None:
    mesh = make_mesh({"s": 3})
    for (length, keys), causal in product([(4, 11), (11, 4)], [True, False]):
        given = inputs(6, 3, length, keys)
        with weft.prefer(way), memory(separate=True):
            check(mesh, (sequence(mesh),) * 2, given, {"is_causal": causal})


def test_inputs_may_lie_anyhow() -> None:
    mesh = make_mesh({"a": 2, "b": 2})
    query = Layout(mesh, [(), (), ("a",), ()])
    for key in (
        Layout.replicated(mesh, 4),
        Layout(mesh, [("a",), (), ("b",), ()]),
        Layout(mesh, [(), ("b",), ("a",), ()]),
    ):
        for way in WAYS:
            with weft.prefer(way), memory(separate=True):
                check(mesh, (query, key), inputs(4, 4, 6), {"is_causal": True})


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("causal", [False, True])
def test_what_moves_was_said_before(way: str, causal: bool, separate: bool) -> None:
    """Also where parts differ in size."""
    for devices, of_keys, length in ((4, 8, 32), (8, 8, 37), (2, 2, 5)):
        mesh = make_mesh({"s": devices})
        with memory(separate), weft.prefer(way):
            given = [laid(x.float(), sequence(mesh)).requires_grad_() for x in inputs(8, of_keys, length)]
            explained = weft.explain_op(KERNEL, *given, 0.0, causal)
            assert _said(explained.considered) == explained.bytes_received > 0
            with weft.comm_log() as log:
                out, rows = KERNEL(*given, 0.0, causal)
            assert log.bytes_received == explained.bytes_received
            back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
            grad = laid(numbers(*out.shape).float(), out._layout)
            args = (grad, *(x.detach() for x in given), out.detach(), rows.detach())
            explained = weft.explain_op(back, *args, 0.0, causal)
            assert _said(explained.considered) == explained.bytes_received > 0


def _said(considered: object) -> int:
    (decision,) = considered  # type: ignore[misc]
    return int(decision.rows[decision.chosen][2])


@pytest.mark.parametrize("length", [1 << 13, 1 << 15, 1 << 17])
@pytest.mark.parametrize("causal", [False, True])
def test_llama_8b_moves_the_least(length: int, causal: bool) -> None:
    """32 heads, 8 of keys, 128 features, 8 devices: what a device receives is the least of all ways."""
    mesh = make_mesh({"s": 8})
    shapes = ((1, 32, length, 128), (1, 8, length, 128), (1, 8, length, 128))
    with memory(separate=True):
        given = [on_paper(shape, mesh) for shape in shapes]
        (decision,) = weft.explain_op(KERNEL, *given, 0.0, causal).considered
    sizes = {name: size for name, _, size in decision.rows}
    assert set(sizes) == set(WAYS)
    chosen, _, size = decision.rows[decision.chosen]
    keys = 2 * 8 * length * 128 * 2
    assert size == min(sizes.values()) == (32 + 32 + 8 + 8) * length * 128 * 2 * 7 // 64
    assert size <= keys * 7 // 8 <= sizes["gather keys"]
    assert chosen == "split heads"


def on_paper(shape: tuple[int, ...], mesh: DeviceMesh) -> weft.Tensor:
    return weft.shard(torch.empty(shape, dtype=torch.bfloat16, device="meta"), mesh, weft.P(None, None, "s"))


def test_keys_that_are_too_large_to_be_gathered_go_round() -> None:
    mesh = make_mesh({"s": 8})
    with memory(separate=True):
        for length, way in ((1 << 12, "gather keys"), (1 << 20, "ring")):
            shapes = ((1, 32, length, 128), *[(1, 4, length, 128)] * 2)
            given = [on_paper(shape, mesh) for shape in shapes]
            (decision,) = weft.explain_op(KERNEL, *given, 0.0, True).considered
            assert decision.rows[decision.chosen][0] == way


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7, 8, 16])
def test_causal_work_is_shared_evenly(devices: int) -> None:
    length = 1 << 12
    shares = swapped(cuts(length, (devices,)))
    whole = length * (length + 1) // 2
    gathered = [scores(blocks(rows, ((0, length),), True)) for rows in shares]
    turns = [
        [scores(blocks(rows, shares[(k - turn) % devices], True)) for turn in range(devices)]
        for k, rows in enumerate(shares)
    ]
    for work in (gathered, [sum(each) for each in turns]):
        assert sum(work) == whole
        assert max(work) <= 1.05 * whole / devices
    for turn in range(1, devices):
        assert max(each[turn] for each in turns) <= 1.05 * min(each[turn] for each in turns)


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
@pytest.mark.parametrize("way", ["gather keys", "ring"])
def test_devices_compute_their_share(way: str, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that kernels are given, forward and backward, on each device."""
    work: dict[type, dict[object, int]] = {Merged: {}, Gradients: {}}
    for kind, of_devices in work.items():
        see = kind.see

        def counted(
            self: object, key: torch.Tensor, value: torch.Tensor, found: Sequence[ScoreBlock], start: int = 0,
            *, see: Callable[..., object] = see, of_devices: dict[object, int] = of_devices,
        ) -> object:  # fmt: skip
            of_devices[self] = of_devices.get(self, 0) + scores(found)
            return see(self, key, value, found, start)

        monkeypatch.setattr(kind, "see", counted)
    length, mesh = 24 * devices, make_mesh({"s": devices})
    with weft.prefer(way), memory(separate=True):
        given = [laid(x, sequence(mesh)).requires_grad_() for x in inputs(2, 1, length)]
        attended(list(given), {"is_causal": True}, laid(numbers(*given[0].shape), sequence(mesh)))
    for of_devices in work.values():
        assert len(of_devices) == devices
        assert sum(of_devices.values()) == length * (length + 1) // 2
        assert max(of_devices.values()) <= 1.05 * length * (length + 1) / 2 / devices


@pytest.mark.parametrize("devices", [2, 3, 5])
@pytest.mark.parametrize("length", [3, 10, 17])
def test_every_score_is_computed_once(devices: int, length: int) -> None:
    shares = swapped(cuts(length, (devices,)))
    assert sorted(at for share in shares for start, stop in share for at in range(start, stop)) == list(range(length))
    for columns_of in ([((0, length),)], shares):
        seen = torch.zeros(length, length, dtype=torch.int64)
        for rows, columns in product(shares, columns_of):
            at_row, at_column = (torch.tensor([p for a, b in each for p in range(a, b)]) for each in (rows, columns))
            for block in blocks(rows, columns, True):
                here = torch.ones(block.rows[1] - block.rows[0], block.columns[1] - block.columns[0], dtype=torch.int64)
                here = here.tril() if block.is_causal else here
                seen[at_row[slice(*block.rows)][:, None], at_column[slice(*block.columns)]] += here
        assert torch.equal(seen, torch.ones_like(seen).tril())


def test_one_call_of_a_kernel_for_each_turn() -> None:
    shares = swapped(cuts(64, (8,)))
    assert all(len(blocks(rows, columns, True)) == 1 for rows, columns in product(shares, shares))


SHARED = {
    "keys on every device": ({"tp": 4}, [(), ("tp",), (), ()], [(), (), (), ()]),
    "keys in groups": ({"kv": 2, "rep": 2}, [(), ("kv", "rep"), (), ()], [(), ("kv",), (), ()]),
    "heads that do not divide": ({"tp": 3}, [(), ("tp",), (), ()], [(), (), (), ()]),
}


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("name", SHARED)
def test_fewer_heads_of_keys_than_devices_move_nothing(name: str, separate: bool) -> None:
    axes, query, key = SHARED[name]
    mesh = make_mesh(axes)
    splits = Layout(mesh, query), Layout(mesh, key)
    for mask in masks(5).values():
        with memory(separate):
            check(mesh, splits, inputs(8, 2, 5), mask)
            given = [laid(x, layout) for x, layout in zip(inputs(8, 2, 5), (splits[0], *[splits[1]] * 2), strict=True)]
            query, key, value = (x.requires_grad_() for x in given)
            with weft.comm_log() as log:
                out = nn.scaled_dot_product_attention(query, key, value, enable_gqa=True, **mask)  # type: ignore[arg-type]
            assert log.counts() == {}
            with weft.comm_log() as log:
                out.backward(laid(numbers(*out.shape), splits[0]))
            assert log.counts() == {"all_reduce": 2}, "the gradients of keys and of values, within each group"


STAY = {
    "queries on every device": ({"s": 4}, [(), (), (), ()], [(), (), ("s",), ()]),
    "pieces that differ": ({"s": 3}, [(), (), (), ()], [(), (), ("s",), ()]),
    "heads that are split too": ({"tp": 2, "s": 2}, [(), ("tp",), (), ()], [(), ("tp",), ("s",), ()]),
    "heads that are shared too": ({"tp": 4, "s": 2}, [(), ("tp",), (), ()], [(), (), ("s",), ()]),
}


@pytest.mark.parametrize("name", STAY)
def test_keys_may_stay_where_they_are(name: str) -> None:
    axes, query, key = STAY[name]
    mesh = make_mesh(axes)
    splits = Layout(mesh, query), Layout(mesh, key)
    logs = []
    for separate in (True, False):
        for (length, mask), way in product(
            [(1, "none"), (5, "causal"), (1, "padding"), (5, "boolean")], ["merge", "gather keys"]
        ):
            given = inputs(8, 2, length, 5)
            with weft.prefer(way), memory(separate):
                log = check(mesh, splits, given, masks(5)[mask])
            logs.append([_seen(each) for each in log])
    assert logs[: len(logs) // 2] == logs[len(logs) // 2 :]


def test_one_token_moves_no_cache() -> None:
    mesh = make_mesh({"s": 8})
    with memory(separate=True):
        query = weft.shard(torch.randn(1, 8, 1, 16), mesh, weft.P())
        key, value = (weft.shard(torch.randn(1, 2, 4096, 16), mesh, weft.P(None, None, "s")) for _ in range(2))
        with weft.comm_log() as log:
            nn.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert log.counts() == {"all_gather": 1, "all_reduce": 1}
    assert log.bytes_received < 4096


def test_dropout_drops_what_one_device_drops() -> None:
    mesh = make_mesh({"s": 4})
    given = inputs(4, 4, 8)
    torch.manual_seed(3)
    expected = nn.scaled_dot_product_attention(*given, dropout_p=0.5)
    for separate in (False, True):
        with memory(separate):
            torch.manual_seed(3)
            actual = nn.scaled_dot_product_attention(*(laid(x, sequence(mesh)) for x in given), dropout_p=0.5)
            torch.testing.assert_close(actual.full_tensor(), expected)  # type: ignore[attr-defined]


def test_halves_are_added_up_in_floats() -> None:
    mesh = make_mesh({"s": 8})
    given = [x.bfloat16() for x in inputs(8, 8, 256)]
    expected = nn.scaled_dot_product_attention(*(x.double() for x in given), is_causal=True)
    once = nn.scaled_dot_product_attention(*given, is_causal=True)
    for way in WAYS:
        with weft.prefer(way), memory(separate=True):
            out = nn.scaled_dot_product_attention(*(laid(x, sequence(mesh)) for x in given), is_causal=True)
            assert out.dtype is torch.bfloat16
            error, at_once = ((x.double() - expected).abs().max() for x in (out.full_tensor(), once))  # type: ignore[attr-defined]
            assert error <= 2 * at_once


def test_gradients_are_those_of_small_steps() -> None:
    mesh = make_mesh({"s": 2})

    def function(*given: torch.Tensor) -> torch.Tensor:
        there = [weft.shard(x, mesh, weft.P(None, None, "s")) for x in given]
        return nn.scaled_dot_product_attention(*there, is_causal=True).full_tensor()  # type: ignore[attr-defined]

    for way in WAYS:
        with weft.prefer(way), memory(separate=True):
            assert torch.autograd.gradcheck(function, [x[:1, :, :, :2].requires_grad_() for x in inputs(2, 2, 3)])


def test_a_long_sequence() -> None:
    """Of 16,384 tokens, no device has more than its share at a time."""
    mesh, length = make_mesh({"s": 8}), 1 << 14
    given = [numbers(1, 1, length, 8, seed=k).float() for k in range(3)]
    expected = nn.scaled_dot_product_attention(*given, is_causal=True)
    with weft.prefer("ring"), memory(separate=True), weft.comm_log() as log:
        out = nn.scaled_dot_product_attention(*(laid(x, sequence(mesh)) for x in given), is_causal=True)
        torch.testing.assert_close(out.full_tensor(), expected, rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]
    parts = [record for record in log if record.kind == "permute"]
    assert {record.bytes_received for record in parts} == {length // 8 * 8 * 4}


def test_what_is_preferred_later_is_taken_later() -> None:
    mesh = make_mesh({"s": 4})
    for separate in (True, False):
        with memory(separate):
            given = [laid(x, sequence(mesh)) for x in inputs(4, 4, 8)]
            for way, kind in [("ring", "permute"), ("split heads", "all_to_all"), ("ring", "permute")]:
                with weft.prefer(way), weft.comm_log() as log:
                    nn.scaled_dot_product_attention(*given)
                assert set(log.counts()) == {kind}


def test_compiled() -> None:
    mesh = make_mesh({"s": 3})
    given = inputs(3, 3, 8)

    def function(*given: torch.Tensor) -> torch.Tensor:
        return nn.scaled_dot_product_attention(*(x * 2 for x in given), is_causal=True) + 1

    torch._dynamo.reset()
    with weft.prefer("ring"), memory(separate=True):
        there = [laid(x, sequence(mesh)) for x in given]
        out = torch.compile(function, backend="aot_eager")(*there)
        torch.testing.assert_close(out.full_tensor(), function(*given), rtol=1e-9, atol=1e-9)  # type: ignore[attr-defined]


def test_the_policy_sees_what_goes_round() -> None:
    mesh = make_mesh({"s": 4})
    for separate in (False, True):
        with memory(separate):
            given = [laid(x, sequence(mesh)) for x in inputs(4, 4, 8)]
            with weft.prefer("ring"), weft.reshard_policy("raise"), pytest.raises(weft.ReshardError, match="permute"):
                nn.scaled_dot_product_attention(*given)


def test_what_is_preferred_has_a_name() -> None:
    with (
        pytest.raises(ValueError, match=r"no strategy is called 'rings': prefer one of 'gather keys', .*'ring'"),
        weft.prefer("rings"),
    ):
        pass


def test_the_first_that_is_proposed_is_preferred() -> None:
    mesh = make_mesh({"s": 4})
    with memory(separate=True), weft.prefer("split heads", "ring"):
        names = [_chosen([laid(x, sequence(mesh)) for x in inputs(8, heads, 8)]) for heads in (8, 2)]
    assert names == ["split heads", "ring"]


def _chosen(given: list[ShardedTensor]) -> str:
    (decision,) = weft.explain_op(KERNEL, *given).considered
    return decision.rows[decision.chosen][0]


def test_other_kernels_go_by_their_ops() -> None:
    """Where torch has only products, the rules of products hold: the sequence stays split all the same."""
    mesh = make_mesh({"s": 3})
    with sdpa_kernel(SDPBackend.MATH), memory(separate=True):
        check(mesh, (sequence(mesh),) * 2, inputs(4, 2, 7), {"is_causal": True})
