"""Small movements between devices that are one in truth: what box by box gives, in few calls, and in memory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from tests.tensor.strategies import layouts, meshes, shapes
from weft.runtime import in_process, machine, small_movements
from weft.runtime.holding import holding
from weft.sharding import ReduceOp
from weft.sharding.layout import Layout

KINDS = tuple(ReduceOp)
DTYPES = [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn]


@pytest.fixture(autouse=True, scope="module")
def apart() -> Iterator[None]:
    machine.use_separate_memory(True)
    yield
    machine.use_separate_memory(False)


def pieces_of(layout: Layout, shape: tuple[int, ...], dtype: torch.dtype, turned: bool) -> tuple[torch.Tensor, ...]:
    """Random pieces: the same numbers where devices hold the same."""
    here, made = holding(layout), []
    for k in range(here.count):
        box = here.piece_shape(k, shape)
        numbers = torch.Generator().manual_seed(hash((here.box(k, shape), here.coords[k] if layout.pending else 0)))
        drawn = torch.randint(-3, 4, box[::-1] if turned else box, generator=numbers)
        drawn = drawn.to(here.devices[k])
        made.append((drawn.mT if turned and len(box) > 1 else drawn.view(box)).to(dtype))
    return tuple(made)


def bits(x: torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    return tuple(x.shape), x.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


@given(st.data(), shapes, st.sampled_from(DTYPES), st.booleans())
def test_as_box_by_box(data: st.DataObject, shape: tuple[int, ...], dtype: torch.dtype, turned: bool) -> None:
    mesh = data.draw(meshes())
    source = data.draw(layouts(mesh, len(shape), pending=not dtype.is_complex, kinds=KINDS))
    target = data.draw(layouts(mesh, len(shape)))
    if source.pending and (
        dtype is torch.float8_e4m3fn
        or (ReduceOp.AVG in dict(source.pending).values() and dtype in (torch.int32, torch.bool))
    ):
        source = source.resolved
    pieces = pieces_of(source, shape, dtype, turned and len(shape) == 2)
    before = list(map(bits, pieces))
    found = in_process.move(pieces, source, target, shape)
    with patch.object(small_movements, "_SMALL", -1):
        expected = in_process.move(pieces, source, target, shape)
    assert [x.stride() for x in found] == [x.stride() for x in expected]
    assert list(map(bits, found)) == list(map(bits, expected))
    if found is not pieces:  # where nothing moves, nothing is made
        for result in found:
            result.zero_()
        assert list(map(bits, pieces)) == before
        assert len({x.data_ptr() for x in found if x.numel()}) == sum(bool(x.numel()) for x in found)


class Counted(TorchDispatchMode):
    """How many ops run."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("source", "target", "most"),
    [
        (((("d",), ()), {}), ((), ()), 8 + 8),  # memory, and a result each
        (((("d",), ()), {}), ((), ("d",)), 8 + 8 + 8),  # cuts, too
        ((((), ()), {"d": ReduceOp.SUM}), (("d",), ()), 1 + 7 + 1 + 8 + 8),  # one total of eight, cut
        ((((), ()), {"d": ReduceOp.SUM}), ((), ()), 1 + 7 + 8 + 8),
    ],
)
def test_calls_are_as_many_as_devices_not_as_pairs_of_them(source: Any, target: Any, most: int) -> None:
    mesh = weft.make_mesh({"d": 8})
    one, other = Layout(mesh, *source), Layout(mesh, target)
    pieces = pieces_of(one, (16, 16), torch.float32, turned=False)
    in_process.move(pieces, one, other, (16, 16))
    with Counted() as counted:
        in_process.move(pieces, one, other, (16, 16))
    assert counted.calls <= most
