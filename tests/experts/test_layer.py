"""Experts that are split: tokens travel to them and back, each once, and what comes of it is what one device computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from tests.experts.layer import DIM, EXPERTS, HIDDEN, TOP, arguments, in_other_places, iterated, layer, loop
from tests.rules.harness import memory
from weft import P
from weft.sharding import DeviceMesh
from weft.watch.comm_log import CommLog, CommRecord

LAYOUTS = {
    "tokens and experts": ({"ep": 4}, P("ep")),
    "experts alone": ({"ep": 4}, P()),
    "tokens over more axes": ({"dp": 2, "ep": 2}, P(("dp", "ep"))),
    "tokens over others": ({"dp": 2, "ep": 2}, P("dp")),
    "two axes of experts": ({"a": 2, "ep": 2}, P(("ep", "a"))),
    "matrices split too": ({"ep": 2, "tp": 2}, P("ep")),
    "matrices and tokens over an axis": ({"ep": 2, "tp": 2}, P(("ep", "tp"))),
}
"""The mesh, and how the tokens are split; experts are over `ep`, or over both axes, and their hidden units over `tp`."""


@pytest.fixture(params=["apart", "one"], autouse=True)
def where(request: pytest.FixtureRequest):
    with memory(request.param == "apart"):
        yield request.param


def laid(name: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    axes, tokens = LAYOUTS[name]
    mesh = weft.make_mesh(axes)
    experts = P(("a", "ep")) if "a" in axes else P("ep")
    matrices = (P("ep", "tp"), P("ep", None, "tp")) if "tp" in axes else (experts, experts)
    specs = (tokens, tokens, tokens, *matrices)
    return [
        weft.shard(x.detach(), mesh, spec).requires_grad_(x.is_floating_point())
        for x, spec in zip(given, specs, strict=True)
    ]


def plain(tokens: int) -> list[torch.Tensor]:
    return [x.requires_grad_(x.is_floating_point()) for x in arguments(tokens)]


@pytest.mark.parametrize("tokens", [16, 10, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_split_experts_give_what_one_device_gives(name: str, tokens: int) -> None:
    given = plain(tokens)
    sharded = laid(name, given)
    expected, found = layer(*given), layer(*sharded)
    torch.testing.assert_close(found.full_tensor(), expected)
    for one, other in ((expected, given), (found, sharded)):
        one.square().sum().backward()
        assert all(x.grad is not None for x in other if x.requires_grad)
    for one, other in zip(given, sharded, strict=True):
        if one.grad is not None:
            torch.testing.assert_close(other.grad.full_tensor(), one.grad)
            assert other.grad._layout == other._layout


@pytest.mark.parametrize(("how", "tokens"), [(loop, 16), (loop, 3), (iterated, 16)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_loop_over_split_experts_gives_what_one_device_gives_and_moves_no_matrix(
    name: str, how: Callable[..., torch.Tensor], tokens: int
) -> None:
    given = plain(tokens)
    sharded = laid(name, given)
    expected = how(*given)
    expected.square().sum().backward()
    with weft.comm_log() as forward:
        found = how(*sharded)
    with weft.comm_log() as backward:
        found.square().sum().backward()
    torch.testing.assert_close(found.full_tensor(), expected)
    for one, other in zip(given, sharded, strict=True):
        if one.grad is not None:
            torch.testing.assert_close(other.grad.full_tensor(), one.grad)
            assert other.grad._layout == other._layout
    assert matrices(forward) == []
    if "tp" not in sharded[3].mesh.axis_names:  # else rows are cut by columns on their way, and gradients are added up
        assert [r for r in matrices(backward) if "dp" not in r.axes] == [], "added up where devices have one expert"


def matrices(log: CommLog) -> list[CommRecord]:
    """What moved that is as large as a matrix of an expert."""
    sizes = {HIDDEN, DIM}, {2 * HIDDEN, DIM}
    return [r for r in log if r.total_bytes and any(each <= set(r.shape) for each in sizes)]


def test_a_loop_sends_each_token_to_its_expert_and_back() -> None:
    given = plain(16)
    sharded, pairs = laid("tokens and experts", given), in_other_places(given[1], 4)
    with weft.comm_log() as forward:
        loss = loop(*sharded).square().sum()
    with weft.comm_log() as backward:
        loss.backward()
    for log in (forward, backward):
        assert sum(rows_of(log, DIM)) == 2 * pairs
        assert all(len(r.shape) < 3 for r in log), "only rows, ids and masks move"
    sent = [r for r in forward if r.op == "aten.mm.default"]
    counts = given[1].reshape(-1).bincount(minlength=EXPERTS)
    assert torch.tensor([r.groups for r in sent]).sum(0).tolist() == counts.tolist()


def test_a_loop_in_halves_moves_no_matrix_either() -> None:
    """Matrices are cast where they are, and so are their gradients."""
    given = plain(16)
    sharded = laid("tokens and experts", given)
    for each in (given, sharded):
        with torch.autocast("cpu", dtype=torch.bfloat16), weft.comm_log() as forward:
            out = loop(*each)
        with weft.comm_log() as backward:
            out.float().square().sum().backward()
    assert matrices(forward) == matrices(backward) == []
    for one, other in zip(given, sharded, strict=True):
        if one.grad is not None:
            torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=5e-2, atol=5e-2)


def test_what_is_selected_of_a_stack_shows_writes_to_it_and_is_written_through() -> None:
    mesh, stack = weft.make_mesh({"ep": 2}), torch.randn(4, 3, 5, dtype=torch.float64)
    for asked in (False, True):  # whether somebody has looked at it before
        split, x = weft.shard(stack, mesh, P("ep")), stack.clone()
        for each in (split, x):
            one, turned = each[3], each[3].t()
            if asked:
                one.sum(), turned.sum()
            each.mul_(2)
            one.add_(1)
            turned[0] = 7
            each[1].t().neg_()
        assert torch.equal(split.full_tensor(), x)
        assert torch.equal(split[3].t().full_tensor(), x[3].t())
        assert torch.equal((split[1] @ split[3].t()).full_tensor(), x[1] @ x[3].t()), "of other devices"


def test_what_is_selected_of_a_stack_is_sent_once_and_when_it_is_needed(where: str) -> None:
    mesh = weft.make_mesh({"ep": 4})
    stack = weft.shard(torch.randn(8, 16, 6), mesh, P("ep"))
    with weft.comm_log() as log:
        one = stack[5]
        there = one.to(torch.float64).t().exp() * 2
    assert len(log) == 0
    with weft.comm_log() as log:
        assert there.tolist() == (stack.full_tensor()[5].double().t().exp() * 2).tolist()
        there.sum().item()
    assert [r.kind for r in log if r.kind == "exchange"] == ["exchange"]


def rows_of(log: CommLog, width: int) -> list[int]:
    """How many rows of some width were sent, exchange by exchange."""
    return [r.total_bytes // (4 * width) for r in log if r.rows and r.shape[1:] == (width,)]


def test_each_token_travels_to_its_expert_and_back_and_nothing_else_of_its_size_does() -> None:
    given = plain(16)
    sharded = laid("tokens and experts", given)
    pairs = in_other_places(given[1], 4)
    with weft.comm_log() as forward:
        loss = layer(*sharded).square().sum()
    with weft.comm_log() as backward:
        loss.backward()
    for log in (forward, backward):
        assert rows_of(log, DIM) == [pairs, pairs]
        others = [r for r in log if not r.rows]
        assert all(len(r.shape) < 2 for r in others), "only ids, and what is one number for each token, moves besides"
    weights = [r for r in (*forward, *backward) if r.rows and r.shape[1:] != (DIM,)]
    assert {r.total_bytes for r in weights} == {pairs * 4}


def test_the_log_says_how_many_tokens_devices_and_experts_have() -> None:
    given = plain(16)
    counts = given[1].reshape(-1).bincount(minlength=EXPERTS)
    with weft.comm_log() as log:
        layer(*laid("tokens and experts", given))
    (sent,) = [r for r in log if r.op == "aten._grouped_mm.default"]
    assert sent.groups == tuple(counts.tolist())
    assert sent.rows == tuple(counts.view(4, 2).sum(1).tolist())
    assert f"rows {'·'.join(map(str, sent.rows))} of groups {'·'.join(map(str, sent.groups))}" in str(log)


def test_tokens_that_all_devices_have_are_not_sent() -> None:
    with weft.comm_log() as log:
        made = layer(*laid("experts alone", plain(16)))
        assert [str(kind) for _, kind in made._layout.pending] == ["sum"]
        made.full_tensor()
    assert log.counts() == {"all_reduce": 1}


@pytest.mark.parametrize("name", ["tokens over more axes", "matrices split too"])
def test_the_log_is_the_same_in_both_memories(name: str, where: str) -> None:
    logs = []
    for separate in (True, False):
        with memory(separate), weft.comm_log() as log:
            layer(*laid(name, plain(10))).sum().backward()
        logs.append([(r.kind, r.axes, r.source, r.target, r.bytes_received, r.total_bytes, r.op, r.rows) for r in log])
    assert logs[0] == logs[1]


def test_no_matrix_moves_where_their_hidden_units_are_split_too() -> None:
    with weft.comm_log() as log:
        layer(*laid("matrices split too", plain(16))).sum().backward()
    assert not [r for r in log if len(r.shape) == 3 and r.shape[0] == EXPERTS and r.total_bytes]


def test_a_policy_sees_what_is_sent() -> None:
    given = laid("tokens and experts", plain(16))
    rows, up = given[0][given[1].reshape(-1).sort().indices // TOP], given[3]
    ends = weft.shard(torch.arange(4, 4 * EXPERTS + 1, 4, dtype=torch.int32), up.mesh, P())
    with (
        weft.reshard_policy("raise"),
        pytest.raises(weft.errors.ReshardError, match=r"aten._grouped_mm.default at .*bytes"),
    ):
        torch._grouped_mm(rows, up.transpose(-2, -1), offs=ends)


def test_ends_that_fall_are_refused() -> None:
    given = laid("tokens and experts", plain(16))
    ends = torch.tensor([4, 2, *[16] * (EXPERTS - 2)], dtype=torch.int32)
    with pytest.raises(
        RuntimeError, match=r"the groups of 16 rows end at \[4, 2, 16.*ends must not fall.*Sort the rows"
    ):
        torch._grouped_mm(given[0], given[3].transpose(-2, -1), offs=ends)


@pytest.fixture
def mesh() -> DeviceMesh:
    return weft.make_mesh({"ep": 3})


def looked_up(mesh: DeviceMesh, index: torch.Tensor, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A table and what is looked up in it, both split."""
    table = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return table, weft.shard(table, mesh, P("ep"))[weft.shard(index, mesh, P("ep"))]


@pytest.mark.parametrize("shape", [(7,), (7, 4), (7, 2, 3)])
def test_rows_that_are_looked_up_are_those_of_the_table(shape: tuple[int, ...], mesh: DeviceMesh) -> None:
    index = torch.tensor([6, 0, 0, -1, 3, 2, 6, 6, 1])
    table, rows = looked_up(mesh, index, *shape)
    assert rows._value.is_put_off
    assert torch.equal((rows * 2).full_tensor(), table[index] * 2)
    assert torch.equal(rows.full_tensor(), table[index])
    assert torch.equal(rows.full_tensor(), table[index]), "also when it is asked for again"


def test_rows_where_they_are_take_part_in_ops(mesh: DeviceMesh) -> None:
    index = torch.tensor([6, 0, 0, 5, 3])
    table, rows = looked_up(mesh, index, 7, 4)
    beside = torch.randn(5, 4, dtype=torch.float64)
    with weft.comm_log() as log:
        found = (rows.exp() * weft.shard(beside, mesh, P()))[:, 1:3].unsqueeze(-1)
        total = rows.sum(0)
    assert len(log) == 0
    assert torch.equal(found.full_tensor(), (table[index].exp() * beside)[:, 1:3].unsqueeze(-1))
    torch.testing.assert_close(total.full_tensor(), table[index].sum(0))


def test_rows_can_be_written_to_and_views_of_them_show_it(mesh: DeviceMesh) -> None:
    index = torch.tensor([6, 0, 0, 5, 3])
    table, rows = looked_up(mesh, index, 7, 4)
    expected, view = table[index], rows[:, :2]
    rows.mul_(3)
    assert torch.equal(view.full_tensor(), expected[:, :2] * 3)
    assert torch.equal(rows.full_tensor(), expected * 3)


@pytest.mark.parametrize("sent", ["neither", "rows", "view"])
@pytest.mark.parametrize("written", ["rows", "view"])
def test_writes_are_seen_wherever_rows_were_sent(written: str, sent: str, mesh: DeviceMesh) -> None:
    """Rows and views of them share memory until some are sent; a write to one is a write to the others all the same."""
    index = torch.tensor([6, 0, 0, 5, 3])
    for _ in range(3):  # known calls too
        table, rows = looked_up(mesh, index, 7, 4)
        plain = table[index]
        views, expected = [rows, rows[:, :2], rows.t()[1:3]], [plain, plain[:, :2], plain.t()[1:3]]
        if sent != "neither":
            views[sent == "view"].flatten().sum()
        for x, changed in ((views, views[written == "view"]), (expected, expected[written == "view"])):
            changed.cumsum_(1)
            x[2].mul_(2)
            x[1][:, ::2] = 7
        for found, wanted in zip(views, expected, strict=True):
            torch.testing.assert_close(found.full_tensor(), wanted)


def test_an_index_out_of_range_is_refused(mesh: DeviceMesh) -> None:
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 7"):
        looked_up(mesh, torch.tensor([6, 0, 7]), 7, 4)


@pytest.mark.parametrize("index", [[0, 4, 4, 1, 6], [2, 1, 0, 3, 4]])
def test_rows_are_added_where_they_belong(index: list[int], mesh: DeviceMesh) -> None:
    table, rows, numbers = torch.randn(7, 3), torch.randn(5, 3), torch.tensor(index)
    x, source, at = (weft.shard(each, mesh, P("ep")) for each in (table, rows, numbers))
    for op in (
        lambda x, at, rows: x.index_add(0, at, rows),
        lambda x, at, rows: x.index_put((at,), rows, accumulate=True),
    ):
        found = op(x, at, source)
        torch.testing.assert_close(found.full_tensor(), op(table, numbers, rows))
        assert found.placements == x.placements


@pytest.mark.parametrize("spec", [P("ep"), P()])
def test_matrices_by_columns_and_matrices_that_have_no_rows(spec: P, mesh: DeviceMesh) -> None:
    columns, matrices = torch.randn(8, 8), torch.randn(5, 4, 8)
    ends = torch.tensor([0, 5, 5, 5, 7], dtype=torch.int32)
    transposed = weft.shard(columns.t().contiguous(), mesh, spec).t()
    found = torch._grouped_mm(weft.shard(matrices, mesh, P("ep")), transposed, offs=ends)
    expected = torch._grouped_mm(matrices, columns.t().contiguous().t(), offs=ends)
    torch.testing.assert_close(found.full_tensor()[:, :7], expected[:, :7])


def test_a_sorted_line_stays_split(mesh: DeviceMesh) -> None:
    x = torch.randn(7)
    values, order = weft.shard(x, mesh, P("ep")).sort()
    assert values.mapping.spec == order.mapping.spec == P("ep")
    assert torch.equal(values.full_tensor(), x.sort().values)
