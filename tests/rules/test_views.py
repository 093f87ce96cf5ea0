"""Views and reshapes of tensors in any layout are those of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from .case import Case
from .harness import GRID, LINE, check, laid, layouts, memory

X = torch.randn(4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "view flat": lambda x: x.view(120),
    "view merge first": lambda x: x.view(24, 5),
    "view merge last": lambda x: x.view(4, 30),
    "view split": lambda x: x.view(2, 2, 3, 2, 5),
    "view regroup": lambda x: x.view(6, 4, 5),
    "view does not nest": lambda x: x.view(8, 15),
    "view with ones": lambda x: x.view(1, 4, 1, 6, 5, 1),
    "view -1": lambda x: x.view(-1, 10),
    "reshape of a transpose": lambda x: x.transpose(0, 1).reshape(12, 10),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(0, -1),
    "mT": lambda x: x.mT,
    "t": lambda x: x[0].t(),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(),
    "squeeze dim": lambda x: x.unsqueeze(1).squeeze(1),
    "squeeze not": lambda x: x.squeeze(1),
    "squeeze a split one": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "expand new": lambda x: x.expand(2, 4, 6, 5),
    "expand one": lambda x: x[:, :1].expand(-1, 3, -1),
    "expand_as": lambda x: x[:1].expand_as(x),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "ravel": lambda x: x.ravel(),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "view_as": lambda x: x.view_as(torch.empty(20, 6)),
    "atleast": lambda x: torch.atleast_3d(x[0, 0]),
    "broadcast": lambda x: torch.broadcast_to(x, (3, 4, 6, 5)),
    "detach": lambda x: x * x.detach(),
    "view dtype": lambda x: x.view(torch.int64).view(torch.float64),
    "view dtype narrower": lambda x: x.view(torch.int32).view(torch.float64),
    "view_as_complex": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(4, 15, 2))),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=0),
    "repeat_interleave flat": lambda x: x.repeat_interleave(3),
    "meshgrid": lambda x: torch.meshgrid(x[:, 0, 0], x[0, :, 0], indexing="ij"),
    "rearranged twice": lambda x: x.view(2, 2, 6, 5).permute(1, 0, 2, 3).reshape(4, 30),
}


CASES = {name: Case(function, (X,), limit=8) for name, function in VIEWS.items()}


@pytest.mark.parametrize("name", CASES)
def test_views_of_any_layout(name: str) -> None:
    CASES[name].check()


@pytest.mark.parametrize(
    "shapes", [((7,), (7, 1)), ((1, 1), (1,)), ((0, 3), (3, 0, 2)), ((6,), (2, 3)), ((10,), (5, 2)), ((3, 5), (15,))]
)
def test_reshapes_of_odd_sizes(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    before, after = shapes
    x = torch.arange(torch.Size(before).numel(), dtype=torch.float64).reshape(before)
    check(lambda x: x.reshape(after) * 2, x)


def test_views_of_a_scalar() -> None:
    check(
        lambda x: (x.view(1), x.reshape(1, 1), x.expand(3), x.squeeze(), x.unsqueeze(0)),
        torch.tensor(2.0, dtype=torch.float64),
    )


def _shapes(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    """The shapes of so many elements, ones included."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]

    def more(first: int) -> st.SearchStrategy[tuple[int, ...]]:
        if first == size:
            return st.just((size,))
        return _shapes(size // first).map(lambda rest: (first, *rest)) if first > 1 else st.just((1, size))

    return st.sampled_from(divisors).flatmap(more)


@given(st.data())
def test_any_reshape_of_any_layout(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40), label="size")
    before, after = data.draw(_shapes(size), label="before"), data.draw(_shapes(size), label="after")
    mesh = data.draw(st.sampled_from([LINE, GRID]), label="mesh")
    layout = data.draw(st.sampled_from(layouts(mesh, len(before))), label="layout")
    x = torch.arange(size, dtype=torch.float64).reshape(before)
    with memory(data.draw(st.booleans(), label="separate")):
        ours = laid(x, layout)
        view = ours.view(after)
        assert view.full_tensor().equal(x.view(after))
        assert view.view(before).full_tensor().equal(x)
        view.mul_(2)
        assert ours.full_tensor().equal(x * 2)
        ours.add_(1)
        assert view.full_tensor().equal((x * 2 + 1).view(after))
