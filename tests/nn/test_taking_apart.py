"""Inputs of compiled programs are taken apart as torch's loops take them apart, and results have their own strides."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest
import torch
from torch._functorch._aot_autograd import subclass_utils
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from weft import P
from weft.engine.programs.taking_apart import read_strides_behind_sizes, take_apart_at_once
from weft.runtime.machine import use_separate_memory

MESH = weft.make_mesh({"dp": 2, "tp": 2})


@pytest.fixture(params=[True, False], ids=["separate", "unified"])
def inputs(request: pytest.FixtureRequest) -> Iterator[list[object]]:
    use_separate_memory(request.param)
    x = weft.shard(torch.randn(5, 6), MESH, P("dp"))
    pending = weft.shard(torch.randn(4, 6), MESH, P(None, ("dp", "tp"))).sum(1)
    yield [torch.randn(3), x, 7, torch.nn.Parameter(x), pending, x[:, 2], weft.shard(torch.randn(2, 0), MESH, P("tp"))]
    use_separate_memory(False)


class Asked:
    """Torch's loops, which remember how many inputs they were given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, inputs: list[object], **rest: object) -> list[object]:
        self.count += len(inputs)
        taken: list[object] = subclass_utils.runtime_unwrap_tensor_subclasses(inputs, **rest)
        return taken


def stand_in(x: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if not isinstance(x, weft.Tensor):
        return mode.from_tensor(x, static_shapes=True)
    names, known = x.__tensor_flatten__()
    pieces = {name: mode.from_tensor(getattr(x, name), static_shapes=True) for name in names}
    return weft.Tensor.__tensor_unflatten__(pieces, known, x.shape, x.stride())


def metas_of(inputs: list[object]) -> list[object]:
    mode = FakeTensorMode()
    stand_ins = [stand_in(x, mode) if isinstance(x, torch.Tensor) else x for x in inputs]
    metas: list[object] = subclass_utils.create_subclass_meta(stand_ins)
    for meta in metas:
        if hasattr(meta, "make_runtime_safe"):
            meta.make_runtime_safe()
    return metas


@pytest.mark.parametrize("has_sizes", [True, False])
def test_inputs_become_what_the_loops_of_torch_make_of_them(inputs: list[object], has_sizes: bool) -> None:
    rest = {"append_symints": has_sizes, "subclass_metas": metas_of(inputs) if has_sizes else None}
    loops = Asked()
    wrappers = types.ModuleType("wrappers")
    vars(wrappers)["runtime_unwrap_tensor_subclasses"] = loops
    take_apart_at_once(wrappers)
    found = vars(wrappers)["runtime_unwrap_tensor_subclasses"](inputs, **rest)
    assert loops.count == 0
    assert list(map(id, found)) == list(map(id, loops(inputs, **rest)))


def test_open_sizes_are_left_to_torch(inputs: list[object]) -> None:
    metas = metas_of(inputs)
    opened = metas[1]
    opened.outer_size, opened.arg_count = (None, 6), opened.arg_count + 1  # type: ignore[attr-defined]
    loops = Asked()
    wrappers = types.ModuleType("wrappers")
    vars(wrappers)["runtime_unwrap_tensor_subclasses"] = loops
    take_apart_at_once(wrappers)
    found = vars(wrappers)["runtime_unwrap_tensor_subclasses"](inputs, append_symints=True, subclass_metas=metas)
    assert loops.count == 1
    assert 5 in [x for x in found if isinstance(x, int)]


def test_a_torch_without_loops_stays_as_it_is() -> None:
    wrappers = types.ModuleType("wrappers")
    before = dict(vars(wrappers))
    take_apart_at_once(wrappers)
    assert vars(wrappers) == before


def test_open_strides_are_read_behind_open_sizes() -> None:
    class Meta:
        arg_count = 5
        outer_size = (None, 3, None)
        outer_stride = (None, None, 1)

    read_strides_behind_sizes(Meta)
    given = ["piece", 4, 6, 18, 6, "of the next"]
    found = Meta().compute_outer_size_and_stride(given, curr_start_idx=1)  # type: ignore[attr-defined]
    assert found == ([4, 3, 6], [18, 6, 1])


@pytest.mark.parametrize("is_separate", [True, False], ids=["separate", "unified"])
def test_results_with_open_sizes_lie_as_they_do_uncompiled(is_separate: bool) -> None:
    use_separate_memory(is_separate)
    torch._dynamo.reset()

    def grown(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], 1).transpose(0, 1) * 2

    compiled = torch.compile(grown, backend="aot_eager", dynamic=True)
    for rows in (4, 6, 10):
        x = weft.shard(torch.randn(rows, 5, 3), MESH, P("dp"))
        assert (compiled(x).shape, compiled(x).stride()) == (grown(x).shape, grown(x).stride())
    use_separate_memory(False)
