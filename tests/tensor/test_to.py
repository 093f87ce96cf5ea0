"""`Tensor.to`, its kin, and tensors on the meta device: every form of torch's calls, and the layout stays."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import weft
from weft import P
from weft.runtime.machine import residence

MESH = weft.make_mesh({"dp": 2, "tp": 2})
HOME = residence(MESH).device.type
SPECS = [P("dp", "tp"), P(None, ("tp", "dp")), P()]
Call = Callable[[torch.Tensor], torch.Tensor]
DOUBLE = torch.zeros(1, dtype=torch.float64)

CALLS: dict[str, Call] = {
    "()": lambda x: x.to(),
    "(device)": lambda x: x.to(HOME),
    "(device=)": lambda x: x.to(device=HOME),
    "(torch.device)": lambda x: x.to(torch.device(HOME)),
    "(device, None, False)": lambda x: x.to(torch.device(HOME), None, False),
    "(device, None, True, False)": lambda x: x.to(HOME, None, True, False),
    "(device, None, copy=True)": lambda x: x.to(HOME, None, copy=True),
    "(device, dtype)": lambda x: x.to(HOME, torch.float64),
    "(device, same dtype)": lambda x: x.to(HOME, torch.float32),
    "(device, dtype, True, True)": lambda x: x.to(HOME, torch.float32, True, True),
    "(device=, dtype=, non_blocking=)": lambda x: x.to(device=HOME, dtype=torch.int32, non_blocking=True),
    "(None)": lambda x: x.to(None),
    "(None, dtype)": lambda x: x.to(None, torch.float64),
    "(dtype)": lambda x: x.to(torch.float16),
    "(same dtype)": lambda x: x.to(torch.float32),
    "(dtype, non_blocking)": lambda x: x.to(torch.float64, True),
    "(dtype, False, copy)": lambda x: x.to(torch.float32, False, True),
    "(dtype=)": lambda x: x.to(dtype=torch.bool),
    "(copy=True)": lambda x: x.to(copy=True),
    "(memory_format=)": lambda x: x.to(memory_format=torch.preserve_format),
    "(other)": lambda x: x.to(DOUBLE.to(HOME)),
    "(tensor=)": lambda x: x.to(tensor=DOUBLE.to(HOME)),
    "(other, non_blocking, copy)": lambda x: x.to(DOUBLE.to(HOME).float(), True, True),
    "(itself)": lambda x: x.to(x),
    "float": lambda x: x.float(),
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "int": lambda x: x.int(),
    "type(dtype)": lambda x: x.type(torch.float64),
    "type(same)": lambda x: x.type(torch.float32),
    "type_as": lambda x: x.type_as(DOUBLE.to(HOME)),
    "its own device's method": lambda x: getattr(x, HOME)(),
    "with memory_format": lambda x: getattr(x, HOME)(memory_format=torch.preserve_format),
    "as_tensor": torch.as_tensor,
    "as_tensor dtype": lambda x: torch.as_tensor(x, dtype=torch.float64),
}


def plain() -> torch.Tensor:
    return (torch.arange(24.0).reshape(4, 6) - 7).to(HOME)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_every_form_gives_what_torch_gives_and_the_layout_stays(call: str, spec: P) -> None:
    x = plain()
    ours = weft.shard(x, MESH, spec)
    expected, found = CALLS[call](x), CALLS[call](ours)
    assert isinstance(found, weft.Tensor)
    assert (found is ours) == (expected is x)
    assert found.dtype == expected.dtype
    assert found._layout is ours._layout
    assert torch.equal(found.full_tensor(), expected)


@pytest.mark.parametrize("call", ["(device, dtype)", "(other)", "(device, None, copy=True)"])
def test_the_gradient_comes_back(call: str) -> None:
    x = weft.shard(plain(), MESH, P("dp")).requires_grad_()
    CALLS[call](x).square().sum().backward()
    assert torch.equal(x.grad.full_tensor(), 2 * plain())
    assert x.grad._layout is x._layout


def test_what_torch_refuses_is_refused() -> None:
    x = weft.shard(plain(), MESH, P("dp"))
    for call in (
        lambda t: t.to(HOME, 3, 4, 5, 6),
        lambda t: t.to("nowhere"),
        lambda t: t.to(other=t),
        lambda t: t.to([1]),
    ):
        with pytest.raises((TypeError, RuntimeError)) as expected:
            call(plain())
        with pytest.raises(expected.type):
            call(x)


def test_a_mapping_or_a_weft_device_may_come_with_a_dtype() -> None:
    x = weft.shard(plain(), MESH, P("dp"))
    there = weft.NamedMapping(MESH, P(None, "tp"))
    for moved in (x.to(there, torch.float64), x.to(device=there, dtype=torch.float64), x.to(there, DOUBLE.dtype, True)):
        assert moved.mapping.spec == P(None, "tp")
        assert moved.dtype == torch.float64
    single = x.to(MESH.devices[1], torch.float64)
    assert single.mesh.devices == (MESH.devices[1],)
    assert torch.equal(single.full_tensor(), plain().double())


def model(device: str | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8, device=device), nn.BatchNorm1d(8, device=device), nn.Linear(8, 4, device=device)
    )


PATTERNS = {"0.*": P("tp"), "2.weight": P(None, "tp")}

MODULE_CALLS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "to(device)": lambda m: m.to(HOME),
    "to(device, non_blocking=)": lambda m: m.to(HOME, non_blocking=True),
    "to(torch.device, dtype)": lambda m: m.to(torch.device(HOME), torch.float64),
    "to(dtype)": lambda m: m.to(torch.bfloat16),
    "to(tensor)": lambda m: m.to(DOUBLE.to(HOME)),
    "to(memory_format=)": lambda m: m.to(memory_format=torch.channels_last),
    "own device": lambda m: getattr(m, HOME)(),
    "float": lambda m: m.float(),
    "double": lambda m: m.double(),
    "half": lambda m: m.half(),
    "type": lambda m: m.type(torch.float64),
    "_apply": lambda m: m._apply(lambda t: t * 2),
}


@pytest.mark.parametrize("call", MODULE_CALLS)
def test_modules_go_where_they_are_told_and_keep_their_layouts(call: str) -> None:
    one = model().to(HOME)
    other = weft.nn.shard_module(copy.deepcopy(one), MESH, PATTERNS)
    layouts = {name: x._layout for name, x in other.state_dict().items()}
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    one, other = MODULE_CALLS[call](one), MODULE_CALLS[call](other)
    for (name, expected), found in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert found.dtype == expected.dtype
        assert found._layout is layouts[name]
        assert torch.equal(found.full_tensor(), expected)
    assert all(isinstance(p, nn.Parameter) for p in other.parameters())
    if next(one.parameters()).dtype in (torch.float32, torch.float64):
        x = torch.randn(6, 4, dtype=next(one.parameters()).dtype, device=HOME)
        for each in (one, other):
            each(x).square().sum().backward()
        optimizer.step()  # holds the same parameters as before
        with torch.no_grad():
            for expected, found in zip(one.parameters(), other.parameters(), strict=True):
                assert found.grad._layout is found._layout
                torch.testing.assert_close(found.full_tensor(), expected - 0.1 * expected.grad)


MADE_LIKE: dict[str, Callable[[torch.Tensor, str | None], torch.Tensor]] = {
    "empty_like": lambda x, device: torch.empty_like(x, device=device),
    "zeros_like": lambda x, device: torch.zeros_like(x, device=device),
    "ones_like": lambda x, device: torch.ones_like(x, device=device, dtype=torch.int32),
    "full_like": lambda x, device: torch.full_like(x, 3.0, device=device),
    "rand_like": lambda x, device: torch.rand_like(x, device=device),
    "new_empty": lambda x, device: x.new_empty(x.shape, device=device),
    "new_zeros": lambda x, device: x.new_zeros(x.shape, device=device),
    "new_full": lambda x, device: x.new_full(x.shape, 2.0, device=device),
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("make", MADE_LIKE)
def test_what_is_made_like_a_tensor_lies_like_it_on_any_device(make: str, spec: P, transposed: bool) -> None:
    real = weft.shard(plain(), MESH, spec)
    real = real.mT if transposed else real
    for x in (real, real.to("meta")):
        for device in (None, HOME, "meta"):
            made = MADE_LIKE[make](x, device)
            like = MADE_LIKE[make](torch.empty_strided(x.shape, x.stride(), device=x.device), device)
            assert made._layout is x._layout
            assert made.device == like.device
            assert made.dtype == like.dtype
            assert [shard.device for shard in made.local_shards] == [made.device] * 4
            assert [tuple(s.shape) for s in made.local_shards] == [tuple(s.shape) for s in x.local_shards]
            if "rand" not in make:
                assert made.stride() == like.stride()
            if not made.is_meta and make not in ("empty_like", "new_empty", "rand_like"):
                assert torch.equal(made.full_tensor(), like)


def test_what_is_made_like_a_pending_tensor_is_not_pending() -> None:
    pending = weft.from_local(
        [torch.ones(4, 3, device=HOME)] * 4, weft.NamedMapping(MESH, P(None, "tp"), unreduced=["dp"])
    )
    for device in (None, HOME, "meta"):
        assert torch.zeros_like(pending, device=device)._layout is pending._layout.resolved


def test_going_to_meta_keeps_all_but_the_values() -> None:
    x = weft.shard(plain(), MESH, P("dp", "tp"))
    for y in (x.to("meta"), x.to(torch.device("meta"), torch.float64), x.mT.to("meta"), x.sum(0).to("meta")):
        assert y.is_meta
        assert all(shard.is_meta for shard in y.local_shards)
    assert x.to("meta")._layout is x._layout
    assert x.to("meta").stride() == x.stride()
    assert (x.to("meta") @ x.to("meta").mT)._layout is (x @ x.mT)._layout


@pytest.mark.parametrize(
    "call",
    {
        "to": lambda x: x.to(HOME),
        "to dtype": lambda x: x.to(HOME, torch.float64),
        "own method": lambda x: getattr(x, HOME)(),
        "copy_ to plain": lambda x: plain().copy_(x),
        "copy_ to sharded": lambda x: weft.shard(plain(), MESH, P("dp")).copy_(x),
        "tolist": lambda x: x.tolist(),
    }.items(),
    ids=lambda item: item[0],
)
def test_nothing_comes_out_of_meta(call: tuple[str, Call]) -> None:
    x = weft.shard(plain(), MESH, P("dp")).to("meta")
    with pytest.raises(NotImplementedError, match=r"^Cannot copy out of meta tensor; no data!$"):
        call[1](x)


def test_meta_shards_make_a_meta_tensor() -> None:
    shards = [torch.empty(2, 3, device="meta") for _ in range(4)]
    for mapping in (
        weft.NamedMapping(MESH, P("dp", "tp")),
        weft.NamedMapping(MESH, P("dp"), unreduced=["tp"]),
    ):
        x = weft.from_local(shards, mapping)
        assert x.is_meta
        assert x.mapping == mapping
        assert tuple(x.shape) == (4, 6 if mapping.is_fully_resolved else 3)
    with pytest.raises(ValueError, match="all have values or are all on the meta device, but got shards on meta"):
        weft.from_local([*shards[:3], torch.ones(2, 3)], weft.NamedMapping(MESH, P("dp", "tp")))


def test_a_module_goes_through_meta_and_comes_back_in_its_layouts() -> None:
    with torch.device("meta"):
        made = model("meta")
    weft.nn.shard_module(made, MESH, PATTERNS, init=lambda module: None)
    layouts = [x._layout for x in made.state_dict().values()]
    made = made.to("meta")
    assert all(x.is_meta for x in made.state_dict().values())
    with pytest.raises(NotImplementedError, match=r"torch\.nn\.Module\.to_empty"):
        made.to(HOME)
    made = made.to_empty(device=HOME)
    expected = model().to(HOME)
    made.load_state_dict(expected.state_dict())
    assert [x._layout for x in made.state_dict().values()] == layouts
    for one, other in zip(expected.state_dict().values(), made.state_dict().values(), strict=True):
        assert torch.equal(other.full_tensor(), one)
    x = torch.randn(6, 4, device=HOME)
    for each in (expected, made):
        each(x).square().sum().backward()
    for one, other in zip(expected.parameters(), made.parameters(), strict=True):
        torch.testing.assert_close(other.grad.full_tensor(), one.grad)
        assert other.grad._layout is other._layout


VIEWS: dict[str, Call] = {
    "as it is": lambda x: x,
    "turned": lambda x: x.permute(*reversed(range(x.dim()))),
    "swapped": lambda x: x.transpose(0, -1),
    "sliced": lambda x: x[..., ::2],
    "expanded": lambda x: x.unsqueeze(0).expand(2, *x.shape),
}


@pytest.mark.parametrize("shape", [(4, 6, 2), (4, 1, 6), (1, 1, 3), (4, 0, 2), (2, 3, 4, 4)], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_strides_of_what_is_made_like_a_tensor_are_torchs(view: str, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, device=HOME)
    for options in ({}, {"memory_format": torch.contiguous_format}, {"memory_format": torch.preserve_format}):
        for spec in (P("dp"), P(None, "tp")):
            one, other = VIEWS[view](x), VIEWS[view](weft.shard(x, MESH, spec))
            like = torch.empty_strided(other.shape, other.stride(), device=HOME)
            assert one.shape == other.shape
            for device in (None, "meta"):
                made = torch.zeros_like(other, device=device, **options)
                assert made.stride() == torch.zeros_like(like, device=device, **options).stride()


def test_random_numbers_like_a_tensor_are_torchs_in_any_order_of_dims() -> None:
    x = weft.shard(plain(), MESH, P("dp", "tp"))
    for like in (x, x.mT):
        torch.manual_seed(0)
        found = torch.rand_like(like)
        torch.manual_seed(0)
        assert torch.equal(
            found.full_tensor(), torch.rand_like(torch.empty_strided(like.shape, like.stride(), device=HOME))
        )
