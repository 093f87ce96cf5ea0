"""Products of many dims come as one op where nothing has to be brought, and do what the ops do that torch makes them of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import weft
from weft import P
from weft.runtime import machine
from weft.runtime.machine import residence

from .seen import Seen

MESH = weft.make_mesh({"dp": 2, "tp": 2})
HOME = residence(MESH).device
HEADS = P("dp", "tp")
SPECS = [P(), P("dp"), HEADS, P("dp", None, "tp"), P(None, ("tp", "dp")), P("dp", None, None, "tp")]
SHAPES = {
    "heads": ((4, 2, 3, 6), (4, 2, 6, 5)),
    "uneven": ((3, 5, 2, 4), (3, 5, 4, 2)),
    "broadcast": ((4, 1, 3, 6), (2, 6, 5)),
    "a batch": ((4, 3, 6), (4, 6, 5)),
    "a matrix": ((4, 2, 3, 6), (6, 5)),
    "of nothing": ((4, 0, 3, 6), (4, 0, 6, 5)),
}


@pytest.fixture(params=["separate", "unified"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    machine.use_separate_memory(request.param == "separate")
    yield request.param
    machine.use_separate_memory(False)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, device=HOME)


def laid(x: torch.Tensor, spec: P) -> weft.Tensor:
    return weft.shard(x, MESH, P(*tuple(spec)[: x.dim()])).requires_grad_()


def gradients(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    z = x @ y
    return [z, *torch.autograd.grad((z * z).sum(), (x, y))]


def ops_of(x: torch.Tensor, y: torch.Tensor) -> list[str]:
    """The ops that a product and its gradients come as."""
    grad = (x @ y).detach()
    with Seen() as seen:
        torch.autograd.grad(x @ y, (x, y), grad)
    return seen.names


def test_a_product_is_one_op_and_its_gradient_another() -> None:
    for spec in (HEADS, P("dp"), P(None, ("tp", "dp"))):
        x, y = (laid(numbers(*shape), spec) for shape in SHAPES["heads"])
        assert ops_of(x, y) == ["aten.matmul.default", "aten.matmul_backward.default"]
    x, weight = laid(numbers(4, 2, 3, 6), P("dp")), laid(numbers(6, 4), P(None, "tp"))
    assert ops_of(x, weight) == ["aten.matmul.default", "aten.matmul_backward.default"]


def test_products_that_need_what_lies_elsewhere_come_in_parts() -> None:
    first, second = SHAPES["heads"]
    assert "aten.bmm.default" in ops_of(laid(numbers(*first), P("dp")), laid(numbers(*second), P(None, "dp")))
    assert "aten.matmul.default" not in ops_of(laid(numbers(4, 6), P("dp")), laid(numbers(6, 4), P()))


@pytest.mark.parametrize("name", SHAPES)
def test_a_product_gives_what_plain_torch_gives_and_moves_what_its_parts_move(name: str) -> None:
    plain = [numbers(*shape) for shape in SHAPES[name]]
    expected = gradients(*(x.clone().requires_grad_() for x in plain))
    for specs in product(SPECS, SPECS):
        given = [laid(x, spec) for x, spec in zip(plain, specs, strict=True)]
        told = []
        for in_parts in (True, False, False):
            with weft.comm_log() as log, forward_ad.dual_level() if in_parts else nullcontext():
                found = gradients(*given)
            moved = sorted((record.kind, record.axes, record.total_bytes) for record in log)
            told.append((moved, [x._layout for x in found]))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.full_tensor(), other)
                assert not other.numel() or one.stride() == other.stride()
        assert told[1] == told[2], specs
        # Parts of a product of nothing are brought together: nothing has to lie anywhere.
        assert told[0] == told[1] or name == "of nothing", specs


@pytest.mark.parametrize("turn", [(0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0)], ids=str)
def test_factors_may_lie_in_any_way(turn: tuple[int, ...]) -> None:
    for other in ((0, 1, 2, 3), turn):
        plain = [numbers(4, 4, 4, 4).permute(order) for order in (turn, other)]
        expected = gradients(*(x.clone().requires_grad_() for x in plain))
        found = gradients(*(laid(x, HEADS) for x in plain))
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one.full_tensor(), two)
            assert one.stride() == two.stride()


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).softmax(-1) @ v


def test_attention_by_hand_moves_nothing() -> None:
    plain = [numbers(4, 2, 3, 6).requires_grad_() for _ in range(3)]
    given = [laid(x.detach(), HEADS) for x in plain]
    expected = torch.autograd.grad(attended(*plain).square().sum(), plain)
    for _ in range(2):
        with weft.comm_log() as log:
            found = torch.autograd.grad(attended(*given).square().sum(), given)
        assert not any(record.total_bytes for record in log)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.full_tensor(), other)
            assert one.stride() == other.stride()


def test_the_gradient_of_a_sum_is_cut_where_it_lies() -> None:
    plain = [numbers(*shape).requires_grad_() for shape in SHAPES["heads"]]
    expected = torch.autograd.grad((plain[0] @ plain[1]).sum(), plain)
    given = [laid(x.detach(), HEADS) for x in plain]
    for _ in range(3):
        with Seen() as seen, weft.comm_log() as log:
            found = torch.autograd.grad((given[0] @ given[1]).sum(), given)
        assert "aten.matmul_backward.default" in seen.names
        assert "aten.bmm.default" not in seen.names
        assert not any(record.total_bytes for record in log)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.full_tensor(), other)
            assert one.stride() == other.stride()
            assert one._layout is given[0]._layout


def test_what_a_frozen_factor_need_not_keep_may_be_written_to() -> None:
    for frozen in (0, 1):
        given = [laid(numbers(*shape), HEADS).requires_grad_(k != frozen) for k, shape in enumerate(SHAPES["heads"])]
        factors = [x * 2 for x in given]
        z = factors[0] @ factors[1]
        with torch.no_grad():
            factors[1 - frozen].mul_(0)  # what only the gradient of the frozen one reads
        (found,) = torch.autograd.grad(z.sum(), [given[1 - frozen]])
        (again,) = torch.autograd.grad(((given[0] * 2) @ (given[1] * 2)).sum(), [given[1 - frozen]])
        torch.testing.assert_close(found.full_tensor(), again.full_tensor())


def test_products_are_recomputed_as_they_were_computed() -> None:
    given = [laid(numbers(4, 2, 3, 6), HEADS) for _ in range(3)]
    found = torch.autograd.grad(checkpoint(attended, *given, use_reentrant=False).square().sum(), given)
    expected = torch.autograd.grad(attended(*given).square().sum(), given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.full_tensor(), other.full_tensor())


def in_forward_mode(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        z = forward_ad.make_dual(x, x * 2) @ forward_ad.make_dual(y, y * 3)
        return forward_ad.unpack_dual(z).tangent


FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "jvp": lambda x, y: torch.func.jvp(torch.matmul, (x, y), (x * 2, y * 3))[1],
    "forward mode": in_forward_mode,
    "vmap": torch.func.vmap(torch.matmul),
    "vmap over one": lambda x, y: torch.func.vmap(lambda row: row @ y)(x),
    "second gradient": lambda x, y: torch.func.grad(lambda b: torch.func.grad(lambda a: (a @ b).pow(3).sum())(x).sum())(
        y
    ),
    "double backward": lambda x, y: torch.autograd.grad(
        torch.autograd.grad((x @ y).pow(3).sum(), y, create_graph=True)[0].square().sum(), y, create_graph=True
    )[0],
    "complex": lambda x, y: (torch.complex(x, x) @ torch.complex(y, -y)).abs(),
    "in bfloat16": lambda x, y: (x.bfloat16() @ y.bfloat16()).double(),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_made_of_products(name: str) -> None:
    form = FORMS[name]
    plain = [numbers(*shape).requires_grad_() for shape in SHAPES["heads"]]
    expected = [form(*plain)]
    expected += torch.autograd.grad(expected[0].sum(), plain)
    for spec in (P(), HEADS):
        given = [laid(x.detach(), spec) for x in plain]
        found = [form(*given)]
        found += torch.autograd.grad(found[0].sum(), given)
        for one, other in zip(found, expected, strict=True):
            exact = {} if name != "in bfloat16" else {"rtol": 2e-2, "atol": 2e-1}
            torch.testing.assert_close(one.full_tensor(), other, **exact)


def test_mistakes_are_torchs() -> None:
    x = laid(numbers(4, 2, 3, 6), HEADS)
    for y in (numbers(4, 2, 5, 6), numbers(3, 2, 6, 5), numbers(4, 2, 6, 5).float()):
        with pytest.raises(RuntimeError) as expected:
            x.full_tensor() @ y
        with pytest.raises(RuntimeError) as found:
            x @ weft.shard(y, MESH, P())
        assert type(found.value) is type(expected.value)


def test_products_are_cast_where_torch_casts_them() -> None:
    x, y = (laid(numbers(*shape).float(), HEADS) for shape in SHAPES["heads"])
    with torch.autocast(HOME.type, torch.bfloat16):
        z = x @ y
        assert z.dtype == torch.bfloat16
    of_x, of_y = torch.autograd.grad(z.sum(), (x, y))
    assert of_x.dtype == of_y.dtype == torch.float32


SUMS = {
    "bhqd,bhkd->bhqk": True,
    "bqhd,bkhd->bhqk": True,
    "bhqk,bkhd->bqhd": True,
    "bij,bjk->ibk": True,
    "bij,bkj->bki": True,
    "bhij,bhjk->hbki": True,
    "bqd,hde->bhqe": False,
    "bij,bij->bi": False,
    "bii,bij->bij": False,
}
"""Sums of products, and whether they are products of matrices that have a batch in common."""


@pytest.mark.parametrize("equation", SUMS)
def test_sums_of_products_give_and_lie_as_plain_torchs(equation: str) -> None:
    sizes = dict(zip("bhqdkije", (4, 2, 3, 6, 5, 6, 6, 3), strict=True))
    shapes = [[sizes[name] for name in names] for names in equation.partition("->")[0].split(",")]
    for turned in (False, True):
        plain = [numbers(*shape) for shape in shapes]
        if turned:
            plain = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in plain]

        def grown(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            z = torch.einsum(equation, x, y)
            return [z, *torch.autograd.grad((z * z).sum(), (x, y))]

        expected = grown(*(x.clone().requires_grad_() for x in plain))
        for spec in (P(), P("dp"), P("dp", "tp"), P(None, "tp", "dp")):
            given = [laid(x, spec) for x in plain]
            for one, other in zip(grown(*given), expected, strict=True):
                torch.testing.assert_close(one.full_tensor(), other)
                assert one.stride() == other.stride()


@pytest.mark.parametrize("equation", SUMS)
def test_sums_of_products_are_products_where_they_can_be(equation: str) -> None:
    sizes = dict(zip("bhqdkije", (4, 2, 3, 6, 5, 6, 6, 3), strict=True))
    x, y = (
        laid(numbers(*(sizes[name] for name in names)), P("dp") if SUMS[equation] else P())
        for names in equation.partition("->")[0].split(",")
    )
    if equation.startswith("bhij"):
        x, y = (laid(t.full_tensor(), HEADS) for t in (x, y))
    with Seen() as seen:
        torch.einsum(equation, x, y)
    assert ("aten.matmul.default" in seen.names) is SUMS[equation]


def test_mistakes_in_sums_of_products_are_torchs() -> None:
    x, y = laid(numbers(4, 2, 3, 6), HEADS), laid(numbers(4, 2, 5, 7), HEADS)
    with pytest.raises(RuntimeError, match="does not broadcast"):
        torch.einsum("bhqd,bhkd->bhqk", x, y)
    one = laid(numbers(4, 1, 5, 6), P("dp"))
    found = torch.einsum("bhqd,bhkd->bhqk", x, one)  # broadcast
    expected = torch.einsum("bhqd,bhkd->bhqk", x.full_tensor(), one.full_tensor())
    torch.testing.assert_close(found.full_tensor(), expected)
