"""`local_map` runs plain code on each device's shard; communication inside is what the table of ops says, device by device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import NamedMapping, P
from weft.errors import MismatchError
from weft.runtime.machine import use_separate_memory

MESH = weft.make_mesh({"a": 2, "b": 3})
LINE = weft.make_mesh({"t": 4})
GROUPS = [("a",), ("b",), ("a", "b")]
EVERYWHERE = NamedMapping(MESH, P(("a", "b")))


@pytest.fixture(params=["unified", "separate"], autouse=True, scope="module")
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    use_separate_memory(request.param == "separate")
    yield
    use_separate_memory(False)


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


Locals = list[torch.Tensor]


def in_groups(function: Callable[[Locals], Locals], axes: tuple[str, ...]) -> Callable[[Locals], Locals]:
    """What a function of one group's shards does to those of the whole mesh."""

    def everywhere(shards: Locals) -> Locals:
        result: dict[int, torch.Tensor] = {}
        for group in MESH.groups(axes):
            result.update(zip(group, function([shards[slot] for slot in group]), strict=True))
        return [result[slot] for slot in range(MESH.num_devices)]

    return everywhere


def exchanged(shards: Locals, split: int, concat: int) -> Locals:
    parts = [shard.chunk(len(shards), split) for shard in shards]
    return [torch.cat([part[j] for part in parts], concat) for j in range(len(shards))]


def transposed(shards: Locals, split: int, concat: int) -> Locals:
    parts = [shard.unbind(split) for shard in shards]
    return [torch.stack([part[j] for part in parts], concat) for j in range(len(shards))]


REDUCE = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.amax(0),
    "min": lambda x: x.amin(0),
    "prod": lambda x: x.prod(0),
}


@pytest.mark.parametrize("axes", GROUPS, ids="-".join)
@pytest.mark.parametrize("kind", REDUCE)
def test_all_reduce(kind: str, axes: tuple[str, ...]) -> None:
    check(
        lambda x: weft.all_reduce(x, kind, axes),
        in_groups(lambda shards: [REDUCE[kind](torch.stack(shards))] * len(shards), axes),
    )


@pytest.mark.parametrize("axes", GROUPS, ids="-".join)
def test_reduce_scatter(axes: tuple[str, ...]) -> None:
    check(
        lambda x: weft.reduce_scatter(x, 1, reduce_axes=axes),
        in_groups(lambda shards: list(torch.stack(shards).sum(0).chunk(len(shards), 1)), axes),
    )


@pytest.mark.parametrize("axes", GROUPS, ids="-".join)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_all_gather(dim: int, axes: tuple[str, ...]) -> None:
    check(
        lambda x: weft.all_gather(x, dim), in_groups(lambda shards: [torch.cat(shards, dim)] * len(shards), axes), axes
    )


@pytest.mark.parametrize("axes", GROUPS, ids="-".join)
@pytest.mark.parametrize(("split", "concat"), [(0, 1), (1, 0), (1, 1), (1, 2)])
def test_all_to_all(split: int, concat: int, axes: tuple[str, ...]) -> None:
    check(
        lambda x: weft.all_to_all(x, split, concat),
        in_groups(lambda shards: exchanged(shards, split, concat), axes),
        axes,
        shape=(6, 6, 2),
    )


@pytest.mark.parametrize("axes", GROUPS, ids="-".join)
@pytest.mark.parametrize(("split", "concat"), [(0, 1), (1, 0), (1, 1), (0, 2)])
def test_all_to_all_of_one_part_each(split: int, concat: int, axes: tuple[str, ...]) -> None:
    shape = [2, 2, 2]
    shape[split] = {("a",): 2, ("b",): 3, ("a", "b"): 6}[axes]
    check(
        lambda x: weft.all_to_all(x, split, concat, tiled=False),
        in_groups(lambda shards: transposed(shards, split, concat), axes),
        axes,
        shape=tuple(shape),
    )


def test_ppermute() -> None:
    pairs = [(0, 1), (1, 2), (5, 0)]
    sources = {dst: src for src, dst in pairs}
    check(
        lambda x: weft.ppermute(x, pairs),
        lambda shards: [
            shards[sources[slot]] if slot in sources else torch.zeros_like(shards[slot]) for slot in range(6)
        ],
    )


def check(
    inside: Callable[[torch.Tensor], torch.Tensor],
    expected: Callable[[Locals], Locals],
    axes: tuple[str, ...] | None = None,
    shape: tuple[int, ...] = (2, 6),
) -> None:
    """An op inside `local_map` does to the shards what `expected` does to a list of them, forward and backward."""
    x = values(6 * shape[0], *shape[1:]).requires_grad_()
    mapped = weft.local_map(inside, EVERYWHERE, EVERYWHERE, axes=axes)
    found = mapped(x).full_tensor()
    wanted = torch.cat(expected(list(x.chunk(6))))
    assert torch.allclose(found, wanted)
    weights = values(*wanted.shape, seed=1)
    (gradient,) = torch.autograd.grad((found * weights).sum(), x)
    (right,) = torch.autograd.grad((wanted * weights).sum(), x)
    assert torch.allclose(gradient, right)


@settings(max_examples=20)
@given(
    before=st.sampled_from([P(), P("a"), P(None, "b"), P(("b", "a")), P("b", "a")]),
    given_as=st.sampled_from([P(), P("b"), P("a", "b"), P(None, ("a", "b"))]),
    shape=st.sampled_from([(5, 7), (6, 6), (1, 4)]),
)
def test_doing_nothing_keeps_the_value(before: P, given_as: P, shape: tuple[int, int]) -> None:
    x = weft.shard(values(*shape), MESH, before).requires_grad_()
    y = weft.local_map(lambda shard: shard, given_as, given_as, mesh=MESH)(x)
    assert torch.equal(y.full_tensor(), x.full_tensor())
    weights = values(*shape, seed=1)
    (y * weights).sum().backward()
    assert torch.allclose(x.grad.full_tensor(), weights)
    assert x.grad.mapping.layout(2) is x.mapping.layout(2)


def test_second_derivatives_are_right() -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        e = (x - weft.all_reduce(x.amax(-1, keepdim=True), "max")).exp()
        return e / weft.all_reduce(e.sum(-1, keepdim=True))

    mapped = weft.local_map(softmax, P(None, "t"), P(None, "t"), mesh=LINE)
    x = values(2, 5).requires_grad_()
    assert torch.allclose(mapped(x).full_tensor(), x.softmax(-1))
    assert torch.autograd.gradcheck(lambda x: mapped(x).full_tensor(), x)
    assert torch.autograd.gradgradcheck(lambda x: mapped(x).full_tensor(), x)


def test_what_replicas_are_used_for_adds_up() -> None:
    x = values(3).requires_grad_()
    mapped = weft.local_map(lambda x: x * (weft.axis_index("t") + 1), None, NamedMapping(LINE, P(), ["t"]))
    mapped(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 10.0, dtype=torch.float64))


def test_several_arguments_and_results_trees_and_options() -> None:
    def inside(
        state: dict[str, torch.Tensor], factor: int, *, add: float
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"y": state["x"] * factor + add}, weft.all_reduce(state["x"].sum())

    mapped = weft.local_map(inside, (P("t"), None), (P("t"), None), mesh=LINE)
    state, total = mapped({"x": values(8)}, 3, add=1.0)
    assert torch.equal(state["y"].full_tensor(), values(8) * 3 + 1)
    assert torch.allclose(total.full_tensor(), values(8).sum())


def test_uneven_shards_and_the_current_mesh() -> None:
    with weft.mesh_context(LINE):
        gathered = weft.local_map(lambda x: weft.all_gather(x, 0), P("t"), None)(values(6, 2))
        doubled = weft.local_map(lambda x: 2 * x, P("t"), P("t"))(values(6, 2))
    assert torch.equal(gathered.full_tensor(), values(6, 2))
    assert torch.equal(doubled.full_tensor(), 2 * values(6, 2))


def test_any_code_runs_inside() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0 and weft.axis_index("t") != 3:
            x.mul_(2)
        return torch.from_numpy(x.cpu().numpy().copy()).to(x.device)

    x = torch.tensor([1.0, -1.0, 2.0, 3.0])
    assert weft.local_map(inside, P("t"), P("t"), mesh=LINE)(x).tolist() == [2.0, -1.0, 4.0, 3.0]
    assert x.tolist() == [1.0, -1.0, 2.0, 3.0]


def test_modes_reach_the_inside() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        return weft.all_reduce(x @ x.T)

    with torch.no_grad(), torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        y = weft.local_map(inside, P("t"), None, mesh=LINE)(torch.ones(4, 4, requires_grad=True))
    assert not y.requires_grad
    assert y.dtype == torch.bfloat16


def test_communication_is_logged() -> None:
    with weft.comm_log() as log:
        weft.local_map(lambda x: weft.all_reduce(weft.ppermute(x, [(0, 1)])), P("t"), None, mesh=LINE)(torch.ones(4))
    assert log.counts() == {"permute": 1, "all_reduce": 1}


def ask_differently(x: torch.Tensor) -> torch.Tensor:
    if weft.axis_index("t") == 2:
        return weft.ppermute(x, [(0, 1)])
    return weft.all_reduce(x)


def return_early(x: torch.Tensor) -> torch.Tensor:
    return x if weft.axis_index("t") == 3 else weft.all_reduce(x)


def fail_on_one(x: torch.Tensor) -> torch.Tensor:
    if weft.axis_index("t") == 1:
        raise KeyError("broken")
    return weft.all_reduce(x)


ERRORS = {
    "different calls": (ask_differently, P("t"), P("t"), MismatchError, "device 0 (t=0) calls all_reduce(x) at"),
    "an early return": (return_early, P("t"), P("t"), MismatchError, "device 0 (t=0) waits in all_reduce at"),
    "an error inside": (fail_on_one, P("t"), P("t"), KeyError, "broken"),
    "unequal shards": (weft.all_reduce, NamedMapping(LINE, P("t")), P("t"), MismatchError, "holds (2,) of torch.float64, but device 2 (t=2) holds (1,)"),
    "no dim": (weft.all_gather, P("t"), None, TypeError, "all_gather inside local_map needs axis="),
    "a bad dim": (lambda x: weft.all_gather(x, 3), P("t"), None, ValueError, "all_gather: dim 3 is out of range"),
    "parts that do not fit": (lambda x: weft.all_to_all(x, 0, 0), P(), P("t"), ValueError, "dim 0 (size 6 on each device) must be divisible by the group, 4 devices along 't'"),
    "different replicas": (lambda x: x + weft.axis_index("t"), P(), P(), ValueError, "device 0 (t=0) and device 1 (t=1) returned different values"),
    "not a tensor": (lambda x: 3, P(), P(), TypeError, "must return plain tensors, but returned a int"),
    "other results": (lambda x: x, P(), (P(), P()), TypeError, "was given 2 out_mappings, but the function returned a Tensor"),
    "another structure": (lambda x: {weft.axis_index("t"): x}, P(), P(), TypeError, "must return the same structure"),
    "arguments": (lambda x: x, (P(), P()), P(), TypeError, "was given 2 in_mappings, but the function is called with 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_what_goes_wrong_is_said(case: str) -> None:
    inside, given_as, returned, error, message = ERRORS[case]
    with pytest.raises(error, match=re.escape(message)):
        weft.local_map(inside, given_as, returned, mesh=LINE)(values(6))


def test_an_error_names_the_device() -> None:
    with pytest.raises(KeyError) as caught:
        weft.local_map(fail_on_one, P("t"), P("t"), mesh=LINE)(values(4))
    assert caught.value.__notes__ == ["raised on device 1 (t=1) of a local_map"]


def test_what_cannot_be_set_up_is_said() -> None:
    with pytest.raises(TypeError, match="cannot tell the mesh"):
        weft.local_map(lambda x: x, P(), P())
    with pytest.raises(ValueError, match="name two meshes"):
        weft.local_map(lambda x: x, NamedMapping(LINE, P()), NamedMapping(MESH, P()))
    with pytest.raises(ValueError, match="contributions to a pending reduction have no value of their own"):
        weft.local_map(lambda x: x, NamedMapping(LINE, P(), ["t"]), P(), mesh=LINE)
    with pytest.raises(RuntimeError, match="outside local_map no single device does"):
        weft.axis_index("t")
    with pytest.raises(RuntimeError, match=r"cannot run inside torch\.func transforms"):
        torch.func.grad(weft.local_map(lambda x: x.sum(), P(), P(), mesh=LINE))(values(2))
