"""What slices, joins and reshapes move: each device receives exactly the elements of its result that it does not hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import weft
from weft import P
from weft.errors import ReshardError
from weft.sharding.layout import Layout
from weft.tensor.tensor import Tensor

from .harness import GRID, LINE, laid, layouts, memory

SHAPE = (7, 6)
IDS = torch.arange(1, 43).reshape(SHAPE)

MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: x[2:6],
    "slice step": lambda x: x[1::2],
    "slice column": lambda x: x[:, 2:5],
    "select": lambda x: x[3],
    "roll": lambda x: x.roll(3, 0),
    "flip": lambda x: x.flip(0),
    "flip both": lambda x: x.flip(0, 1),
    "pad": lambda x: functional.pad(x, (1, 0, 2, 3)),
    "repeat": lambda x: x.repeat(2, 1),
    "cat": lambda x: torch.cat([x[:3], x[5:], x]),
    "tril": lambda x: x.tril(),
    "transpose": lambda x: x.t(),
    "unsqueeze": lambda x: x.unsqueeze(1),
}


def _least(x: Tensor, y: Tensor) -> list[int]:
    """For each device, the bytes of its result that it did not hold; elements carry their own number."""
    return [
        8 * sum(1 for e in after.flatten().tolist() if e and e not in set(before.flatten().tolist()))
        for before, after in zip(x.local_shards, y.local_shards, strict=True)
    ]


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
@pytest.mark.parametrize("name", MOVES)
def test_each_device_receives_what_it_does_not_hold(name: str, separate: bool) -> None:
    with memory(separate):
        for layout in (*layouts(LINE, 2, pending=False), *layouts(GRID, 2, pending=False)):
            x = laid(IDS, layout)
            given = x if name != "cat" else (x[:3], x[5:], x)
            with weft.comm_log() as log:
                y = MOVES[name](x) if name != "cat" else torch.cat(list(given))
            least = _least(x, y) if name != "cat" else None
            if least is not None:
                assert log.total_bytes == sum(least), f"{layout} -> {y._layout}: {log}"  # type: ignore[attr-defined]
                assert log.bytes_received == max(least), str(layout)


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
@pytest.mark.parametrize(
    "shapes", [((7, 6), (42,)), ((42,), (7, 6)), ((7, 6), (14, 3)), ((10, 4), (20, 2)), ((9, 2, 5), (18, 5))]
)
def test_a_reshape_of_rows_exchanges_stretches(shapes: tuple[tuple[int, ...], tuple[int, ...]], separate: bool) -> None:
    before, after = shapes
    with memory(separate):
        for axes in (("x",), ("a",), ("b", "a")):
            mesh = LINE if axes == ("x",) else GRID
            x = laid(
                torch.arange(1, 1 + torch.Size(before).numel()).reshape(before),
                Layout(mesh, [axes, *[()] * (len(before) - 1)]),
            )
            with weft.comm_log() as log:
                y = x.view(after)
                assert len(y.local_shards) == mesh.num_devices  # what nothing needs yet may still be on its way
            assert y._layout.splits[0] == axes  # type: ignore[attr-defined]
            assert log.total_bytes == sum(_least(x, y))  # type: ignore[arg-type]


STAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: x[1:5],
    "slice of one": lambda x: x[3:4],
    "step": lambda x: x[::3],
    "narrow": lambda x: x.narrow(0, 2, 3),
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: x.split([1, 6])[1],
    "roll": lambda x: x.roll(1, 0),
    "flip": lambda x: x.flip(0),
    "pad": lambda x: functional.pad(x, (0, 0, 1, 1)),
    "cat": lambda x: torch.cat([x, x]),
    "repeat": lambda x: x.repeat(3, 1),
    "view": lambda x: x.view(-1),
    "unflatten": lambda x: x.view(-1).view(7, 6),
}


@pytest.mark.parametrize("name", STAYS)
@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
def test_a_split_dim_stays_split(name: str, separate: bool) -> None:
    with memory(separate):
        for mesh, axes in ((LINE, ("x",)), (GRID, ("b", "a")), (GRID, ("a",))):
            y = STAYS[name](laid(IDS, Layout(mesh, [axes, ()])))
            assert y._layout.splits[0] == axes, y._layout  # type: ignore[attr-defined]


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
def test_lookups_in_a_split_table_move_no_table(separate: bool) -> None:
    with memory(separate):
        table = weft.shard(torch.randn(1000, 8), GRID, P(("a", "b"), None))
        with weft.comm_log() as log:
            found = functional.embedding(torch.tensor([3, 999, 500]), table)
        assert found._layout.pending_axes == ("a", "b")  # type: ignore[attr-defined]
        assert not log.records
        torch.testing.assert_close(found.full_tensor(), table.full_tensor()[[3, 999, 500]])  # type: ignore[attr-defined]
        with weft.comm_log() as log:
            table[torch.tensor([3, 999])] = torch.ones(2, 8)
        assert not log.records
        assert table[999].sum().item() == 8


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
def test_a_slice_that_moves_is_reported(separate: bool) -> None:
    with memory(separate):
        x = weft.shard(torch.zeros(8, 4), GRID, P("a", None))
        with weft.reshard_policy("raise"), pytest.raises(ReshardError) as error:
            x[4:]
    assert "aten.slice.Tensor at " in str(error.value)
    assert "takes elements of a tensor of shape (8, 4) in (a, –) to (a, –) on a=2 × b=2" in str(error.value)
    assert "32 bytes received per device (exchange)" in str(error.value)
    assert "To move nothing: split a dim that the op leaves as it is" in str(error.value)


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
@pytest.mark.parametrize("by", ["replicated", "batch", "sequence"])
def test_the_gradient_of_a_split_table_is_added_up_where_its_rows_lie(separate: bool, by: str) -> None:
    indices = torch.randint(0, 101, (4, 6), generator=torch.Generator().manual_seed(9))
    cotangent = torch.randn(4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(10))
    table = torch.randn(101, 8, dtype=torch.float64)
    plain = table.clone().requires_grad_()
    functional.embedding(indices, plain, padding_idx=3).backward(cotangent)
    with memory(separate):
        spec = {"replicated": P(None, None), "batch": P("a", None), "sequence": P(None, "b")}[by]
        ours = weft.shard(table, GRID, P("b", None)).requires_grad_()
        found = functional.embedding(weft.shard(indices, GRID, spec), ours, padding_idx=3)
        given = weft.shard(cotangent, GRID, P(*spec, None))
        with weft.comm_log() as log:
            (grad,) = torch.autograd.grad(found, ours, given)
        torch.testing.assert_close(grad.full_tensor(), plain.grad)  # type: ignore[attr-defined]
        lookups, rows = 4 * 6 * 8 * 8, 101 * 8 * 8
        limit = {"replicated": 0, "batch": rows, "sequence": lookups}[by]
        assert log.bytes_received <= limit, str(log)


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
def test_a_fused_projection_becomes_heads_in_one_exchange(separate: bool) -> None:
    with memory(separate):
        x = weft.shard(torch.arange(1, 1 + 4 * 48).reshape(4, 48), GRID, P("a", "b"))
        with weft.comm_log() as log:
            y = x.view(4, 3, 4, 4)
            q, k, v = (each.transpose(0, 1) for each in y.unbind(1))
            flat = q.transpose(0, 1).reshape(4, 16)
        assert [each._layout.splits for each in (y, q, k, v, flat)] == [  # type: ignore[attr-defined]
            (("a",), (), ("b",), ()),
            *[(("b",), ("a",), ())] * 3,
            (("a",), ("b",)),
        ]
        assert log.counts() == {"exchange": 1}
        assert log.total_bytes == sum(_least(x, y))  # type: ignore[arg-type]


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
def test_meshes_that_are_equal_are_one(separate: bool) -> None:
    with memory(separate):
        first, second = (weft.shard(IDS, weft.make_mesh({"twin": 3}), spec) for spec in (P("twin"), P(None, "twin")))
        assert first.mesh is not second.mesh
        with weft.comm_log() as log:
            y = torch.cat([first, second])
        assert y._layout.splits[0] == ("twin",)  # type: ignore[attr-defined]
        assert log.counts() == {"exchange": 1}
