"""What plain torch refuses to write, or copies before it writes, sharded tensors refuse and copy too."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable

import pytest
import torch

import weft
from weft.runtime import machine
from weft.sharding import ReduceOp
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

MESH = weft.make_mesh({"a": 2, "b": 2})
LAYOUTS = {
    "replicated": Layout(MESH, [[], []]),
    "split": Layout(MESH, [["a"], ["b"]]),
    "split twice": Layout(MESH, [["b", "a"], []]),
    "pending": Layout(MESH, [[], ["b"]], {"a": ReduceOp.SUM}),
}
OVERLAPS = (
    "x.copy_(x)", "x.copy_(x[:])", "x.copy_(x.t())", "x.t().copy_(x)", "x[1:].copy_(x[:-1])", "x[:-1].copy_(x[1:])", "x[:2].copy_(x[2:])",
    "x.view(-1)[1:].copy_(x.view(-1)[:-1])", "x.view(-1).copy_(x.view(-1))", "x[0].copy_(x[1])", "x[0].copy_(x[0])", "x[:1].copy_(x[1])", "x[:1].copy_(x[0])",
    "x[:1, 0].copy_(x[0, 1])", "x[None, ..., 0] = x[..., 1]", "x[0][None, ..., 0] = x[0][..., 1]",
    "x.data.copy_(x.t())", "x.detach()[1:].copy_(x[:-1])", "x[...] = x.t()", "x[1:] = x[:-1]", "x.copy_(x.t().clone())", "x.copy_(x[0])", "x[0].copy_(x.t()[0])",
    "x.add_(x)", "x.add_(x.t())", "x[1:].add_(x[:-1])", "x[:2].mul_(x[2:])", "x[1:].sub_(x[:-1], alpha=2)", "x.addcmul_(x.t(), x)", "x.lerp_(x.t(), 0.5)",
    "x.masked_fill_(x.t() > 0, 1)", "x.div_(x.view(-1).view(4, 4))", "x.t().add_(x.t())",
    "torch.add(x[1:], 1, out=x[:-1])", "torch.add(x, x, out=x)", "torch.neg(x.t(), out=x)", "torch.mul(x[:2], 2, out=x[2:])",
    "x.index_put_((i,), x[2:])", "x[i] = x[:2]", "x.index_add_(0, i, x[:2])", "x.index_copy_(0, i, x[:2])", "x.index_copy_(0, j, x)", "x.index_reduce_(0, i, x[:2], 'prod')",
    "x[:2].index_add_(0, i, x[2:])", "x.scatter_(0, k, x[:2])", "x.scatter_add_(0, k, x[:2])", "x.scatter_reduce_(0, k, x[:2], 'sum')", "x[2:].scatter_(0, k, x[:2])",
    "x.put_(i, x[0, :2])", "x.put_(i, x[0, :2].clone())", "torch.gather(x, 0, k, out=x[:2])", "torch.gather(x[:2], 0, k, out=x[2:])",
    "torch.index_select(x, 0, i, out=x[:2])", "torch.index_select(x, 0, j, out=x)", "torch.take(x, i, out=x[0, :2])", "torch.cat([x[2:3], x[:1]], out=x[:2])",
    "torch.cat([x[2:3], x[3:]], out=x[:2])", "torch.stack([x[2], x[0]], out=x[:2])", "torch.masked_select(x[0], x[0] > 0, out=x[0])", "y = x.sum(0); y.mul_(2); torch.take(y, i, out=y[1:3])", "torch.where(x > 3, x, x.t(), out=x)",
    "x.addr_(x[0], x[1])", "x.addr_(x[0], x[:, 1])", "x[:2].addr_(x[2, :2], x[3])", "torch._foreach_mul_([x[1:]], [x[:-1]])", "torch._foreach_add_([x[:2]], [x[2:]])",
    "torch.where(x > 3, x, x, out=x)", "torch.cumsum(x, 0, out=x)", "torch.cumsum(x[:2], 0, out=x[1:3])", "torch.logcumsumexp(x, 0, out=x.t())",
    "torch.amax(x, 0, out=x[0])", "torch.max(x, 0, out=(x[0], n))", "torch.max(x, 0, out=(x[:, 0], n))", "torch.mode(x[1:], 0, out=(x[0], n))", "torch.aminmax(x, dim=0, out=(x[0], x[1]))",
    "torch.kthvalue(x, 1, 0, out=(x[0], n))", "torch.sort(x, 0, out=(x.t(), n))", "torch.topk(x, 4, 0, out=(x.t(), n))", "torch.renorm(x, 2, 0, 1, out=x.t())",
    "torch.scatter(x, 0, k, x, out=x)", "torch.scatter_add(x, 0, k, x.clone(), out=x.t())", "torch._C._nn.gelu(x, out=x.t())", "torch._C._nn.mse_loss(x, x, reduction=0, out=x.t())",
    "x.copy_(x.unsqueeze(2))", "x.index_add_(0, s, x[2:])", "x[:2].index_add_(0, s, x[2:])", "x.index_add_(0, s, x[:2])",
    "torch.cat([x[0, :2].view(torch.int32), x[1, :2].view(torch.int32)], out=x)", "torch.sub(x[0, None], x, out=x[0, None])", "y = x[:1]; torch.sub(y, x.clone(), out=y)",
    "torch.scatter(x, 0, k, 1.5, out=x)", "torch.scatter(x, 0, k, x[:2].clone(), out=x)", "torch.scatter_add(x, 0, k, x, out=x)", "torch.scatter(x[1:], 0, k, 1.5, out=x[:-1])",
    "torch.neg(x, out=x); x.copy_(x.t())", "y = x[:1]; torch.neg(y, out=y); y.copy_(y[::2])", "torch.cat([x[2:3], x[3:] + 1], out=x[:3])", "torch.cat([x[1:2], x[3:] + 1], out=x[:3])",
    "torch.gather(x, 1, k.T.repeat(1, 2), out=x.expand(3, 4, 4))", "torch.cat([x[2:], x[:2]], out=x.expand(3, 4, 4))", "torch.gather(x.clone(), 1, k.T.repeat(1, 2), out=x.expand(3, 4, 4))",
    "torch.stack([x[3], x[2]], out=x)", "torch.stack([x[3], x[0]], out=x)",
    *(line.replace("= x", f"= x[{part}]") for part in (":0", ":, :0") for line in ("y = x; y.index_add_(0, e, y)", "y = x; y[e] = y", "y = x; y.put_(e, y)", "y = x; torch.gather(y, 0, e[:, None], out=y)",
    "y = x; y.scatter_(0, e[:, None], y)", "y = x; torch.take(y, e, out=y)", "y = x; torch.cat([y], out=y)", "y = x; y.copy_(y)", "y = x; torch.stack([y, y], out=y)", "y = x.reshape(-1); torch.cat([y, y], out=y)")),
)  # fmt: skip
"""Some of these read nothing of what they write to, which torch lets through; the others it refuses."""
INDICES = {
    "n": torch.tensor([0] * 4),
    "i": torch.tensor([0, 1]),
    "j": torch.tensor([3, 1, 0, 2]),
    "k": torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]]),
    "e": torch.tensor([], dtype=torch.int64),
    "s": torch.tensor([1, 0]),
}


def outcome(line: str, x: torch.Tensor) -> object:
    given = {name: index.clone().to(x.device) for name, index in INDICES.items()}
    if isinstance(x, weft.Tensor):
        given["s"] = weft.shard(given["s"], MESH, weft.P("a"))
    try:
        exec(line, {"x": x, "torch": torch, **given})
    except RuntimeError as error:
        return str(error)
    return x.full_tensor() if isinstance(x, weft.Tensor) else x


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning", "ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("line", OVERLAPS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_writes_to_what_is_partly_read_are_refused_as_torch_does(name: str, line: str) -> None:
    plain = torch.arange(16.0, dtype=torch.float64).reshape(4, 4) + 1
    x = weft.shard(plain, MESH, named_mapping(LAYOUTS[name]))
    expected = outcome(line, plain.clone())
    for _ in range(2):
        found = outcome(line, x.clone())
        assert type(found) is type(expected), (found, expected)
        if isinstance(expected, str):
            assert found == expected
        else:
            assert torch.equal(found, expected)
    assert torch.equal(x.full_tensor(), plain)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("line", ["torch.cat([x[:1], x[:1] + 1j], out=x)", "torch.cat([x, x + 1j], out=x)", "torch.stack([x[0], x[1] * 1j], out=x[:2])"])  # fmt: skip
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_joined_is_told_to_be_of_a_wrong_dtype_before_it_is_told_to_share_memory(name: str, line: str) -> None:
    for x in (torch.ones(4, 4), weft.shard(torch.ones(4, 4), MESH, named_mapping(LAYOUTS[name]))):
        with pytest.raises(
            TypeError, match=r"torch.cat\(\): input types can't be cast to the desired output type Float"
        ):
            eval(line, {"x": x, "torch": torch})


def test_what_only_some_devices_have_has_the_memory_that_it_is_selected_of() -> None:
    for x in (torch.ones(6, 5, 1), weft.shard(torch.ones(6, 5, 1), MESH, weft.P("a", None, "b"))):
        with pytest.raises(RuntimeError, match=r"refer to a single memory location"):
            x.copy_(x[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_torch_lets_through_is_let_through(name: str) -> None:
    x = weft.shard(torch.ones(4, 4), MESH, named_mapping(LAYOUTS[name]))
    x[:, 1:].copy_(x[:, :-1])
    assert torch.equal(x.full_tensor(), torch.ones(4, 4))


SHARED = tuple(
    f"{view}\n{write}"
    for view in ("v = x[:1].expand(4, 4)", "v = x.as_strided((4, 3), (1, 1))", "v = x.unfold(1, 3, 1)")
    for write in (
        "v.add_(2)", "v.copy_(v + 1)", "v.addcmul_(v + 1, v + 2)", "v.masked_fill_(v > 6, 0)", "v.fill_(3)", "torch.mul(v, 2, out=v)", "v[0].mul_(3)",
        "v.index_add_(0, torch.tensor([0, 2]), v[:2] + 1)", "torch._foreach_copy_([v], [v + 1])", "torch._foreach_mul_([v, v], 2.0)",
        "torch._foreach_addcmul_([v], [v + 1], [v + 2], 2.0)", "torch._foreach_zero_([v])", "v.fill_(torch.tensor(3.0))", "v.fill_(v[0, 0].clone())", "v[0] = 3", "v[...] = 3", "torch.cat([v[:2] + 1, v[2:] + 1], out=v)",
    )
)  # fmt: skip
"""Writes to views of which several elements are one: torch refuses most where they are expanded, and else the last counts."""


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors is deprecated")
@pytest.mark.parametrize("line", SHARED)
@pytest.mark.parametrize("name", LAYOUTS)
def test_writes_to_elements_that_are_one_do_what_torch_does(name: str, line: str) -> None:
    plain = torch.arange(16.0, dtype=torch.float64).reshape(4, 4) + 1
    expected = outcome(line, plain.clone())
    for _ in range(2):
        found = outcome(line, weft.shard(plain, MESH, named_mapping(LAYOUTS[name])).clone())
        assert type(found) is type(expected), (found, expected)
        assert found == expected if isinstance(expected, str) else torch.equal(found, expected)


RESOLVED = (
    "x.conj().resolve_conj()", "torch.resolve_conj(x.conj())", "x.conj()[0].resolve_conj()", "x.conj().t().resolve_conj()", "x.conj().conj().resolve_conj()",
    "x.resolve_conj()", "x.conj().imag.resolve_neg()", "torch.resolve_neg(x.conj().imag)", "x.imag.resolve_neg()", "x.conj().detach().resolve_conj()", "x.mH.resolve_conj()",
    "torch._neg_view(x).resolve_neg()", "x.conj()", "x.conj().imag", "x.conj().real", "x.mH[0]", "x.conj().clone()", "x.conj().view(-1)",
)  # fmt: skip


@pytest.mark.parametrize("line", RESOLVED)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_torch_copies_is_a_copy(name: str, line: str) -> None:
    plain = torch.arange(16.0, dtype=torch.float64).reshape(4, 4) * (1 + 2j)
    x = weft.shard(plain, MESH, named_mapping(LAYOUTS[name]))
    found, expected = eval(line, {"x": x, "torch": torch}), eval(line, {"x": plain, "torch": torch})
    assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
    assert torch.equal(found.full_tensor(), expected)
    for each in (found, expected):
        each.mul_(3)
    assert torch.equal(x.full_tensor(), plain)
    x.add_(1)
    plain.add_(1)
    assert torch.equal(found.full_tensor(), expected)
    assert torch.equal((found * 2).full_tensor(), expected * 2)
    assert torch.equal(copy.deepcopy(found).full_tensor(), expected)


VIEWS = ("x", "x[0]", "x[1:3]", "x.t()", "x.view(-1)[::2]", "x.diagonal()", "x[1:].t()[0]", "x.detach()", "x.data", "x.detach()[1:]", "x[:, None]", "x.clone()",
    "torch.nn.Parameter(x).data", "torch.nn.Parameter(x).detach()[1:]",)  # fmt: skip


@pytest.mark.parametrize("line", VIEWS)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("is_first", [True, False])
def test_copies_share_memory_where_what_they_are_copies_of_does(name: str, line: str, is_first: bool) -> None:
    plain = torch.arange(16.0, dtype=torch.float64).reshape(4, 4) + 1
    x = weft.shard(plain, MESH, named_mapping(LAYOUTS[name]))
    seen = []
    for each in (plain.clone(), x):
        view = eval(line, {"x": each, "torch": torch})
        copies = copy.deepcopy([view, each] if is_first else [each, view])
        shown, base = copies if is_first else reversed(copies)
        base.mul_(2)
        before = shown.clone()
        shown.add_(1)
        assert shown.is_leaf
        seen.append((base, before, shown, shown.stride()))
    for expected, found in zip(*seen, strict=True):
        assert torch.equal(found.full_tensor(), expected) if isinstance(found, weft.Tensor) else found == expected
    assert torch.equal(x.full_tensor(), plain)
    assert shown._layout is view._layout


TURNED = (
    "y = x.data; x.t_()", "y = x[1:].t(); x.t_()", "y = x.t().detach()", "y = x.view(16)[4:].data", "y = x[1]; y.resize_(2, 2); y = y.t()",
    "y = x[2]; y.resize_(0, 3); y = y.t()", "y = x[:, None]; x.unsqueeze_(0)", "y = x.data.t()",
)  # fmt: skip


@pytest.mark.parametrize("line", TURNED)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("is_first", [True, False])
def test_copies_of_what_was_turned_share_memory(name: str, line: str, is_first: bool) -> None:
    plain, seen = torch.arange(16.0).reshape(4, 4), []
    for x in (plain, weft.shard(plain.clone(), MESH, named_mapping(LAYOUTS[name]))):
        here: dict[str, torch.Tensor] = {"x": x}
        exec(line, {}, here)
        given = [here["y"], x] if is_first else [x, here["y"]]
        copies = copy.deepcopy(given)
        for each in copies:
            each.mul_(2)
        seen.append([(y.stride(), y.tolist()) for y in (*copies, *given)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "line",
    [
        *("x[1:]", "x[None, :, 1::2]", "x.view(16)", "x.view(2, 8)[:, 3:]", "x[2]", "x.diagonal()", "x.T[1:]"),
        *("x[1:].view(torch.uint8)[:, 4:]", "torch.view_as_complex(x.view(8, 2))"),
    ],
)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("is_first", [True, False])
def test_copies_of_what_is_detached_share_memory_with_those_of_the_whole(name: str, line: str, is_first: bool) -> None:
    plain, seen = torch.arange(16.0).reshape(4, 4), []
    for x in (plain, weft.shard(plain.clone(), MESH, named_mapping(LAYOUTS[name]))):
        copies = copy.deepcopy([x, eval(line, {"x": x, "torch": torch}).detach()][:: 1 if is_first else -1])
        for each in copies:
            each.mul_(2)
        seen.append([(y.stride(), y.tolist()) for y in (*copies, x)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("line", ["y = z[::2]; x.data = z.detach()", "x.data = z.detach(); y = z[::2]", "x.set_(z.detach()); y = z[:, 1:]",
    "y = x[::3]; z = x[1:].mT; x.data = torch.zeros_like(x)"])  # fmt: skip
@pytest.mark.parametrize("name", LAYOUTS)
def test_views_show_what_is_written_to_memory_that_was_given_away(name: str, line: str) -> None:
    seen = []
    for is_plain in (True, False):
        x, z = torch.arange(16.0).reshape(4, 4), torch.ones(4, 4)
        if not is_plain:
            x, z = (weft.shard(each, MESH, named_mapping(LAYOUTS[name])) for each in (x, z))
        here: dict[str, torch.Tensor] = {"x": x, "z": z}
        exec(line, {"torch": torch}, here)
        seen.append([])
        for k, written in enumerate((here["x"], here["y"], here["z"], here["z"].detach())):
            written.add_(k + 1)
            seen[-1] += [here[each].tolist() for each in "xyz"]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_part_of_other_data_grows_there(name: str) -> None:
    seen = []
    for is_plain in (True, False):
        x, z = torch.arange(16.0).reshape(4, 4), torch.ones(4)
        if not is_plain:
            x, z = weft.shard(x, MESH, named_mapping(LAYOUTS[name])), weft.shard(z, MESH, weft.P("a"))
        view = x[1:]
        view.data = view.clone()
        torch.add(z, 2, out=view[0, :0].resize_(4))
        seen.append([x.tolist(), view.tolist()])
    assert seen[0] == seen[1]


def test_tensors_are_swapped_where_nobody_shows_them() -> None:
    x, z = weft.shard(torch.ones(4), MESH, weft.P("a")), weft.shard(torch.zeros(4, 4), MESH, weft.P("a"))
    torch.neg(x, out=x)
    torch.utils.swap_tensors(x, z)
    assert (x.shape, z.tolist()) == ((4, 4), [-1] * 4)
    shown = x.data
    with pytest.raises(RuntimeError, match=r"Expected use_count of t1 to be 1"):
        torch.utils.swap_tensors(x, z)
    shown.add_(1)
    assert x.tolist() == [[1] * 4] * 4


@pytest.mark.parametrize("line", ["x.T", "x.view(16)", "x[1:]", "x.expand(4, 4)", "x"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_view_with_other_data_is_copied_with_these(name: str, line: str) -> None:
    x = weft.shard(torch.ones(4, 4, dtype=torch.float64), MESH, named_mapping(LAYOUTS[name]))
    view = eval(line, {"x": x})
    view.data = view.data * 2
    copied, before = copy.deepcopy([view, x])
    assert torch.equal(copied.full_tensor(), torch.full(view.shape, 2.0, dtype=torch.float64))
    assert torch.equal(before.full_tensor(), x.full_tensor())


@pytest.mark.parametrize(
    "line", ["x.T", "x.mT", "x.reshape(-1)", "x.movedim(0, 1)", "x.permute(1, 0)", "x[1:]", "x.split([1, 3])[1]"]
)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_views_that_are_taken_in_inference_mode_show_what_they_are_views_of(
    name: str, line: str, requires_grad: bool
) -> None:
    plain = torch.arange(16.0, dtype=torch.float64).reshape(4, 4) + 1
    seen = []
    for x in (plain.clone(), weft.shard(plain, MESH, named_mapping(LAYOUTS[name]))):
        other = x[1:3]
        x.requires_grad_(requires_grad)
        with torch.inference_mode():
            view = eval(line, {"x": x})
            seen.append([view.requires_grad, view.is_inference(), view._is_view()])
        with torch.no_grad():
            view.mul_(3)
        seen[-1] += [view.tolist(), other.tolist(), x.tolist()]
    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("shape", [(16, 16), (4, 4), (0,)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_product_of_all_elements_with_all_is_written_to_where_its_result_lies(
    name: str, shape: tuple[int, ...]
) -> None:
    plain = torch.arange(16.0, dtype=torch.float64).reshape(4, 4)
    x = weft.shard(plain, MESH, named_mapping(LAYOUTS[name]))
    for layout in (Layout(MESH, [["a"], ["b"]][: len(shape)]), Layout.replicated(MESH, len(shape))):
        out = weft.shard(torch.zeros(shape, dtype=torch.float64), MESH, named_mapping(layout))
        assert torch.kron(x, plain, out=out) is out
        assert torch.equal(out.full_tensor(), torch.kron(plain, plain))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_plain_out_may_grow_though_it_was_laid_out_before(name: str) -> None:
    """Which shares its memory with the copies until one of them is written to; torch cannot make that grow."""
    out = torch.arange(16.0).reshape(4, 4)
    x = weft.shard(out, MESH, named_mapping(LAYOUTS[name]))
    joined = torch.cat([x, x])
    assert torch.add(joined, 1, out=out) is out
    assert torch.equal(out, torch.arange(16.0).reshape(4, 4).repeat(2, 1) + 1)
    assert torch.equal(x.full_tensor(), torch.arange(16.0).reshape(4, 4))


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_of_parameters_share_no_memory(name: str) -> None:
    parameter = torch.nn.Parameter(weft.shard(torch.ones(4, 4), MESH, named_mapping(LAYOUTS[name])))
    copied, alias = copy.deepcopy([parameter, parameter.detach()])
    copied.data.add_(1)
    assert torch.equal(alias.full_tensor(), torch.ones(4, 4))
    expanded = copy.deepcopy(torch.nn.Parameter(parameter.detach()[0].expand(2, 4)))
    assert expanded.stride() == (4, 1)
    expanded.data[0].zero_()
    assert expanded.tolist() == [[0] * 4, [1] * 4]


@pytest.mark.parametrize("shape", [(), (3,), (4, 4), (2, 6), (1, 2, 3)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_data_may_have_any_shape(name: str, shape: tuple[int, ...]) -> None:
    x = weft.shard(torch.ones(4, 4), MESH, named_mapping(LAYOUTS[name])).requires_grad_()
    value = torch.randn(shape)
    x.data = value
    assert x.shape == shape
    assert x._layout is (LAYOUTS[name].resolved if len(shape) == 2 else Layout.replicated(MESH, len(shape)))
    assert torch.equal(x.detach().full_tensor(), value)
    (x * 2).sum().backward()
    assert torch.equal(x.grad.full_tensor(), torch.full(shape, 2.0))


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (4, 1), (5, 2)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_diagonals_are_filled_where_dims_have_one_element(name: str, shape: tuple[int, ...]) -> None:
    for wrap in (False, True):
        x, expected = weft.shard(torch.zeros(shape), MESH, named_mapping(LAYOUTS[name])), torch.zeros(shape)
        for each in (x, expected):
            each.fill_diagonal_(3, wrap=wrap)
            each.unsqueeze(0)[0, :, :1].view(-1).add_(1)
        assert torch.equal(x.full_tensor(), expected)


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_expanded_view_shows_what_is_written_to_its_base(name: str) -> None:
    x, expected = weft.shard(torch.zeros(4, 1), MESH, named_mapping(LAYOUTS[name])), torch.zeros(4, 1)
    wide, widened = x.expand(4, 3), expected.expand(4, 3)
    for each in (x, expected):
        each.add_(torch.arange(4.0)[:, None])
    assert torch.equal(wide.full_tensor(), widened)
    assert torch.equal((wide * 2).full_tensor(), widened * 2)


@pytest.mark.parametrize(
    "write", ["copied.add_(1)", "view.add_(1)", "view[0] = 3", "copied[0] = 3", "torch.ge(copied, 9, out=copied)"]
)
@pytest.mark.parametrize(
    "view", ["copied.unflatten(0, (2, 4))", "copied.t().t().view(2, 4, 6)", "copied.view(4, 2, 6)[1:]"]
)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_reshaped_copy_and_its_views_show_what_is_written_to_the_other(name: str, view: str, write: str) -> None:
    plain = torch.arange(48.0).reshape(2, 6, 4)
    layout = LAYOUTS[name]
    for splits in ([*layout.splits, []], [[], *layout.splits]):
        seen = []
        for x in (plain, weft.shard(plain, MESH, named_mapping(Layout(MESH, splits, layout.pending)))):
            here = {"copied": x.mT.reshape(8, 6), "torch": torch}
            exec(f"read = copied.t()[0]\nview = {view}\n{write}\nview.mul_(2)", here)
            seen.append([here[each].tolist() for each in ("view", "copied", "read")] + [x.tolist()])
        assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "write",
    ["fill_diagonal_(9)", "true_divide_(2)", "clip_(0, 1)", "unbind(1)[0].square_()", "copy_(torch.square(x, out=x))"],
)
@pytest.mark.parametrize("name", LAYOUTS)
def test_views_show_what_is_written_in_inference_mode(name: str, write: str) -> None:
    seen = []
    for plain in (True, False):
        x = torch.arange(16.0).reshape(4, 4) - 5
        x = x if plain else weft.shard(x, MESH, named_mapping(LAYOUTS[name]))
        views, count = (x[1:], x.t()[:, 1], x.view(2, 8)), x._version
        with torch.inference_mode():
            exec(f"x.{write}", {"x": x, "torch": torch})
        seen.append([x._version > count, *(view.tolist() for view in (x, *views))])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_out_that_grows_in_inference_mode_stays_what_it_was(name: str) -> None:
    x, out = (weft.shard(torch.ones(size, 4), MESH, named_mapping(LAYOUTS[name])) for size in (4, 0))
    with torch.inference_mode():
        torch.add(x, 1, out=out)
    assert not out.is_inference()
    assert out.add_(1).tolist() == [[3] * 4] * 4


def test_writes_to_plain_tensors_of_a_list_are_counted() -> None:
    plain, x = torch.ones(4, 4), weft.shard(torch.ones(4, 4), MESH, weft.P("a"))
    for tensors in ([plain, x], [plain, x[1:, 1:]]):
        count = plain._version
        torch._foreach_add_(tensors, 1)
        assert plain._version > count


@pytest.mark.parametrize(
    "line", ["x[1:3].view(torch.complex128)", "torch.view_as_complex(x[1:3])", "x[1:].view(torch.complex128)[0]"]
)
def test_larger_elements_than_those_of_a_part_begin_where_torch_has_them_begin(line: str) -> None:
    plain = torch.arange(9.0, dtype=torch.float64)
    for x in (plain, weft.shard(plain, MESH, weft.P("a")), weft.shard(plain, MESH, weft.P())):
        with pytest.raises(RuntimeError, match=r"storage_offset.* divisible by 2"):
            eval(line, {"x": x, "torch": torch})


@pytest.mark.parametrize("name", LAYOUTS)
def test_views_of_a_view_that_was_given_other_memory_show_what_it_was(name: str) -> None:
    plain, seen = torch.arange(16.0).reshape(4, 4), []
    for x in (plain, weft.shard(plain.clone(), MESH, named_mapping(LAYOUTS[name]))):
        view = x[1:]
        shown = view.view(12)
        view.set_(x)
        seen.append([])
        for written in (view, x, shown):
            written[:2] = 3
            written.add_(1)
            seen[-1] += [each.tolist() for each in (shown, view, x)]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", LAYOUTS)
def test_memory_that_is_given_bears_no_marks(name: str) -> None:
    seen = []
    for lay in (torch.clone, lambda plain: weft.shard(plain, MESH, named_mapping(LAYOUTS[name]))):
        x, y, z = (lay(torch.arange(16.0).reshape(4, 4) * factor) for factor in (1 + 2j, 1j, 1))
        y.set_(x.conj())
        z.set_(x.conj().imag)
        z.mul_(3)
        seen.append([each.tolist() for each in (x, y, z)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("layout", "shape", "line"),
    [
        (Layout(MESH, [["b"], ["a"]]), (6, 4), "x.view(-1).as_strided((3, 1, 4), (2, 2, 1), 11)"),
        (Layout(MESH, [["a"], [], []]), (3, 1, 5), "x.expand(-1, 4, -1).ravel().as_strided((4, 3), (4, 2))"),
        (Layout(MESH, [[], [], ["a"]]), (5, 4, 5), "y = x.ravel(); torch._foreach_add_([y.t(), y], 1)"),
        (
            Layout(MESH, [["b"], ["a"]]),
            (2, 1),
            "y = x.as_strided((1,), (1,)); torch._foreach_clamp_min_([y, y.t()], 3)",
        ),
        (
            Layout(MESH, [[], [], ["a", "b"]]),
            (8, 1, 2),
            "y = x.view(2, 8); y.ravel().copy_(x.view(-1)); y.view(16) + 1",
        ),
        (Layout(MESH, [["a"], ["b"], []]), (6, 2, 2), "y = x.mT.swapaxes(0, 2); y.diagonal(-1, 2, 0).copy_(y[..., 0])"),
    ],
    ids=["strided", "expanded and strided", "listed", "selected and listed", "copied to itself", "written"],
)
def test_what_is_merged_is_told_before_what_is_made_of_it(
    layout: Layout, shape: tuple[int, ...], line: str, memory: str
) -> None:
    seen = []
    for is_apart in (memory != "separate", memory == "separate"):  # which others find then
        machine.use_separate_memory(is_apart)
        x = weft.shard(torch.arange(float(math.prod(shape))).reshape(shape), MESH, named_mapping(layout))
        with weft.comm_log() as log:
            exec(line, {"x": x, "torch": torch})
        seen.append([(each.kind, each.op, each.shape) for each in log])
    assert seen[0] == seen[1]
    assert len(seen[0]) > 1


def test_what_a_write_moves_is_told_in_one_order() -> None:
    x, value = weft.shard(torch.ones(2, 5), MESH, weft.P(None, "a")), weft.shard(torch.ones(3), MESH, weft.P("b"))
    with weft.comm_log() as log:
        x.ravel().put_(torch.tensor([3, 8, 0]), value)
    assert [(each.op, each.axes) for each in log] == [
        ("reshape", ("a",)),
        ("reshape", ("a",)),
        ("aten.put_.default", ("a",)),
        ("aten.put_.default", ("b",)),
    ]


def test_what_is_told_of_merged_dims_that_were_written_to() -> None:
    x = weft.shard(torch.ones(2, 1, 4), MESH, weft.P(None, None, ("b", "a")))
    with weft.comm_log() as log:
        merged = x.ravel()
        merged.cumsum_(-1)
        before = len(log)
        merged.reshape(2, 2, 2).zero_()
    assert [(each.op, each.shape) for each in log][before:] == [("reshape", (2, 4)), ("reshape", (2, 1, 4))]


def test_what_a_view_is_read_again_for_is_told_by_one_name() -> None:
    x = weft.shard(torch.ones(1), MESH, weft.P("a"))
    view = x.reshape(())
    x.add_(1)
    with weft.comm_log() as log:
        view = view.data
    assert view.item() == 2
    assert {each.op for each in log} <= {"aten.reshape.default"}


@pytest.mark.parametrize("out", ["x[:1, None, 1:]", "x[None, :1]", "x[3:, None, :2]"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_product_is_written_to_a_part_with_dims_of_one(name: str, out: str) -> None:
    x, expected = weft.shard(torch.ones(4, 4), MESH, named_mapping(LAYOUTS[name])), torch.ones(4, 4)
    for each in (x, expected):
        into = eval(out, {"x": each})
        torch.matmul(each.clone()[None, 1:2], torch.ones(4, into.shape[-1]), out=into)
    assert x.tolist() == expected.tolist()


def test_dtypes_that_an_out_cannot_take_are_refused_as_torch_does() -> None:
    x, out = torch.ones(4, 4), torch.ones(8, 4, dtype=torch.int64)
    for a, b in ((x, out), (weft.shard(x, MESH, weft.P("a")), weft.shard(out, MESH, weft.P("a")))):
        with pytest.raises(TypeError, match=r"input types can't be cast to the desired output type Long"):
            torch.cat([a, a], out=b)


@pytest.mark.parametrize("split", [["a", "b"], ["b"]], ids=["by both", "by one"])
def test_views_of_a_reshaped_copy_show_what_is_written(split: list[str], memory: str) -> None:
    """A reshape of what has gaps is a copy, which may lie where it did until somebody needs it elsewhere: not once it is written to."""
    plain = torch.arange(48.0).reshape(8, 6)
    for layout in (Layout(MESH, [split, []]), Layout(MESH, [[], split])):
        x = weft.shard(plain.clone(), MESH, named_mapping(layout))
        for view in (lambda y: y, lambda y: y.t(), lambda y: y.t().t(), lambda y: y.view(8, 2), lambda y: y[:, 1:]):
            found, expected = (view(whole[:, 4:].reshape(2, 8)) for whole in (x, plain))
            for each in (found, expected):
                each.mul_(3)
            for read in (torch.ravel, lambda v: v @ v.mT, lambda v: v.sum(0), lambda v: v + 0):
                torch.testing.assert_close(weft.shard(read(found), MESH, weft.P()).full_tensor(), read(expected))
        assert torch.equal(x.full_tensor(), plain)


RESIZED = (
    "v = x[1:3]; v.resize_(3, 4)", "v = x.t(); v.resize_(2, 3)", "v = x.view(-1)[4:]; v.resize_(5)", "v = x[1:3, 1:3]; v.resize_(2, 3)", "v = x[1:]; v.resize_(2, 6)",
    "v = x[1:]; v.resize_as_(x[:2])", "v = x[1]; x.resize_(3, 4)", "v = x[:2]; torch.add(z, 1, out=v)", "v = x.view(-1)[2:4]; torch.mul(z, 2, out=v)",
    "v = x[3]; torch.mul(z[:, :0], 2, out=v)", "v = x.t()[1:3]; torch.mul(z.t(), 2, out=v)", "v = x[1:3]; v.as_strided_((2, 5), (5, 1), 3)",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("line", RESIZED)
@pytest.mark.parametrize("name", LAYOUTS)
def test_views_of_another_size_show_the_same_memory(name: str, line: str) -> None:
    seen = []
    for plain in (True, False):
        x, z = torch.arange(16.0).reshape(4, 4), torch.arange(12.0).reshape(3, 4)
        if not plain:
            x, z = weft.shard(x, MESH, named_mapping(LAYOUTS[name])), weft.shard(z, MESH, weft.P("a"))
        here = {"x": x, "z": z, "torch": torch}
        exec(line, here)
        v = here["v"]
        assert isinstance(v, torch.Tensor)
        v.mul_(3)
        x.add_(1)
        seen.append([(y.stride(), y.tolist()) for y in (x, v, v * 2)])
    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    "line", ["x.resize_(2, 4)", "torch.amax(x, 0, out=x.detach()[0])", "torch.amax(z, 0, True, out=x)"]
)
@pytest.mark.parametrize("name", LAYOUTS)
def test_views_of_what_was_cut_short_are_copied(name: str, line: str) -> None:
    seen = []
    for plain in (True, False):
        x, z = torch.arange(16.0).reshape(4, 4), torch.ones(3, 4)
        if not plain:
            x, z = weft.shard(x, MESH, named_mapping(LAYOUTS[name])), weft.shard(z, MESH, weft.P("a"))
        views = [x[3], x[1:].mT, x.view(2, 8)[1]]
        exec(line, {"x": x, "z": z, "torch": torch})
        seen.append([y.tolist() for y in copy.deepcopy([*views, x])])
    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("line", ["x[1:].resize_(4, 4)", "torch.add(z, 1, out=x[3])", "v = x[0]; x.resize_(5, 4)",
    "torch.neg(torch.ones(5, 5), out=x.detach())", "v = x.detach(); torch.neg(torch.ones(5, 5), out=x)",
    "x = x.detach(); v = x.view(torch.int16).mT; torch.neg(torch.ones(5, 5), out=x)",
    "exec('with torch.inference_mode(): x = x * 1'); v = x.view(torch.float64).mT; torch.neg(torch.ones(5, 5), out=x)"])  # fmt: skip
def test_memory_that_others_show_does_not_grow(line: str) -> None:
    x = weft.shard(torch.arange(16.0).reshape(4, 4), MESH, weft.P("a", "b"))
    with pytest.raises(RuntimeError, match=r"it shares memory with views that would have to grow with it"):
        exec(line, {"x": x, "z": torch.ones(4, 4), "torch": torch})
    assert x.tolist() == torch.arange(16.0).reshape(4, 4).tolist()


@pytest.mark.parametrize(
    "line",
    ["torch.exp(x, out=y)", "torch.mm(x, x, out=y)", "torch.max(x, 0, out=(y, i))", "torch.sort(x, 0, out=(y, i))", "torch.cat([x, x], out=y)"],
)  # fmt: skip
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_out_of_another_shape_is_warned_of_as_torch_does(name: str, line: str) -> None:
    def told(lay: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
        values = {"x": lay(torch.rand(4, 4)), "y": lay(torch.ones(3, 2)), "i": lay(torch.ones(3, 2, dtype=torch.int64))}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(line, {"torch": torch, **values})
        return [str(each.message).partition(". ")[0] for each in caught]

    expected = told(lambda x: x)
    assert expected
    for _ in range(2):
        assert told(lambda x: weft.shard(x, MESH, named_mapping(LAYOUTS[name]))) == expected


@pytest.mark.parametrize("given", ["x", "y"])
@pytest.mark.parametrize("line", ["x[...] = y", "x.copy_(y[...])", "y.copy_(x)", "y[...] = x.view(4, 4)"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_view_that_was_given_other_memory_is_not_what_it_was_a_view_of(name: str, line: str, given: str) -> None:
    plain, seen = torch.arange(16.0).reshape(4, 4), []
    for x in (plain, weft.shard(plain.clone(), MESH, named_mapping(LAYOUTS[name]))):
        here = {"x": x, "y": x[...]}
        here[given].data = here[given].clone()
        here["y"].mul_(2)
        exec(line, here)
        seen.append([here[each].tolist() for each in "xy"])
    assert seen[0] == seen[1]


def test_merged_dims_are_read_again_in_the_layout_that_they_have() -> None:
    plain = torch.arange(40.0).reshape(4, 5, 2)
    x = weft.shard(plain.clone(), MESH, weft.P("a", "b"))
    merged, expected = (each.split([2, 3], -2)[0].reshape(2, 4, 2) for each in (x, plain))
    assert len(merged.local_shards) == 4
    assert torch.equal(merged.view(-1).full_tensor(), expected.view(-1))
    merged.view(-1).mul_(2)
    assert torch.equal(merged.full_tensor(), expected * 2)


@pytest.mark.parametrize(
    "view", ["x.as_strided((3, 2), (2, 3), 3)", "x.unfold(1, 3, 1)[1:, 0]", "x[:, :1].expand(4, 3)[1]"]
)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_torch_counts_apart_shows(name: str, view: str) -> None:
    plain, seen = torch.arange(16.0).reshape(4, 4), []
    for x in (plain, weft.shard(plain.clone(), MESH, named_mapping(LAYOUTS[name]))):
        others, shown = [x[:, 1:], x[1:3]], eval(view, {"x": x})
        shown.data.fill_(3)
        seen.append([each.tolist() for each in (x, *others, shown)])
        shown.fill_(5)
        seen[-1] += [each.tolist() for each in (x, *others, shown)]
    assert seen[0] == seen[1]


TOLD = (
    ("x = weft.shard(torch.ones(2, 1, 1), MESH, weft.P(None, ('a', 'b')))", "v = x.ravel()", "x.add_(1)", "with torch.inference_mode(): v * 2"),
    ("x = weft.shard(torch.ones(2, 4, 4).permute(1, 2, 0), MESH, weft.P('a', None, 'b'))", "v = torch.zeros_like(x)", "v.set_(x)", "v[3, ..., 1:2]"),
)  # fmt: skip


@pytest.mark.parametrize("lines", TOLD)
def test_what_is_read_again_is_told_alike_in_both_memories(lines: tuple[str, ...], memory: str) -> None:
    seen = []
    for is_separate in (True, False):
        machine.use_separate_memory(is_separate)
        with weft.comm_log() as log:
            exec("\n".join(lines), {"torch": torch, "weft": weft, "MESH": MESH})
            seen.append([(each.kind, each.axes, each.op, each.shape, each.total_bytes) for each in log])
    machine.use_separate_memory(memory == "separate")
    assert seen[0] == seen[1]
