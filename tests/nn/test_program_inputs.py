"""Inputs of compiled programs are taken apart as torch's loops take them apart."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest
import torch
from torch._functorch._aot_autograd import subclass_utils
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from weft import P
from weft.engine.program_inputs import take_apart_at_once
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


def metas_of(inputs: list[object]) -> list[object]:
    mode = FakeTensorMode()
    stand_ins = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in inputs]
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
