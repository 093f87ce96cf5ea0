"""What is collected for Adam's steps at once is what Adam's own class collects, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from weft.handlers.lists.collecting import collect_known

from .harness import LINE, memory

KINDS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "AdamW": torch.optim.AdamW,
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
}


def _parameters(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Three, of which the second has no gradient."""
    made: list[torch.Tensor] = [
        weft.shard(torch.ones(rows, 2, dtype=dtype), LINE, weft.P("x")).requires_grad_() for rows in (4, 3, 8)
    ]
    (made[0] * 2).sum().abs().backward()
    (made[2] * 3).sum().abs().backward()
    return made


def _lists() -> list[list[torch.Tensor]]:
    return [[] for _ in range(6)]


def _own(optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
    """What its class collects."""
    lists = _lists()
    assert not optimizer._init_group(optimizer.param_groups[0], *lists)  # type: ignore[attr-defined]
    return lists


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_collected_at_once_is_what_the_class_collects(kind: str, separate: bool) -> None:
    with memory(separate):
        optimizer = KINDS[kind](_parameters())
        assert not collect_known(optimizer, optimizer.param_groups[0], _lists()), "there are no states yet"
        optimizer.step()
        found = _lists()
        assert collect_known(optimizer, optimizer.param_groups[0], found)
        gradients = [x.grad for x in found[0]]
        assert [[id(x) for x in each] for each in _own(optimizer)] == [
            [id(x) for x in each] for each in (found[0], gradients, *found[2:])
        ]
        for x, gradient in zip(gradients, found[1], strict=True):  # which may be held plain
            assert isinstance(x, weft.Tensor)
            torch.testing.assert_close(
                x.full_tensor(), gradient.full_tensor() if isinstance(gradient, weft.Tensor) else gradient
            )


def test_what_needs_the_class_is_left_to_it() -> None:
    of_numbers = torch.optim.AdamW(_parameters(torch.complex128))
    by_a_tensor = torch.optim.AdamW(_parameters(), lr=torch.tensor(0.1))
    of_others = torch.optim.RMSprop(_parameters())
    beside_plain = torch.optim.AdamW([*_parameters(), torch.ones(2, requires_grad=True)])
    forgotten, without = torch.optim.AdamW(_parameters()), torch.optim.AdamW(_parameters())
    for optimizer in (of_numbers, by_a_tensor, of_others, beside_plain, forgotten, without):
        optimizer.step()
        lists = _lists()
        if optimizer is forgotten:
            del optimizer.state[optimizer.param_groups[0]["params"][0]]
        if optimizer is without:
            without.param_groups[0]["amsgrad"] = True  # of which there are no states
        assert not collect_known(optimizer, optimizer.param_groups[0], lists)
        assert lists == _lists(), "nothing is in the lists that the class is to fill"
