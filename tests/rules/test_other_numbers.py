"""A call that was made before gives, with other numbers, what plain torch gives with these: nothing keeps a number.

Floats are no part of what a call is known by, so each op that takes one is called three times, then with others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

import weft
from weft import P
from weft.engine.op_plan import Repeat
from weft.engine.sharded import ShardedTensor
from weft.handlers import creation_like
from weft.rules.call import BoundCall
from weft.sharding.layout import Layout

from .harness import laid, memory
from .numbers import REFUSED, SIZES_FOLLOW, Recorded, recorded
from .opinfo import LAYOUTS, MESH, _compared

pytestmark = [
    pytest.mark.xdist_group("opinfo"),  # the database takes seconds to load: one worker does it
    pytest.mark.usefixtures("quiet"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the samples are made in host memory"),
]

PLACES: dict[str, Callable[[torch.Tensor], Layout]] = {
    **{name: LAYOUTS[name] for name in ("first dim split", "pending sum")},
    "replicated": lambda x: Layout.replicated(MESH, x.dim()),
}
USUAL: tuple[Callable[[float], object], ...] = (lambda x: x * 0.625, lambda _: 2, lambda _: 3)
ODD: tuple[Callable[[float], object], ...] = (
    lambda x: -x,
    lambda _: 0.0,
    lambda _: math.inf,
    lambda _: math.nan,
    lambda x: x,
)

NO_LAW = {
    "_fused_sdp_choice": "asks which kernel torch would take, not for a value",
    "_upsample_bilinear2d_aa": "with a scale that its sizes do not have, torch reads what lies beside the image",
}
"""Ops that are not compared, and why."""
TWO_ANSWERS = ("shrink_backward", "hardtanh_backward", "logit_backward", "huber_loss_backward", "_fused_adam")
"""Ops for which torch itself has two answers with odd numbers: one in a vector, one in what is left of a row."""


def calls_of(call: Recorded) -> Iterator[Recorded]:
    """A call three times, then with other numbers and other values."""
    yield from (call, call, call)
    for change in USUAL:
        yield call.with_numbers(change)
    yield call.with_values()
    if not any(part in str(call.func) for part in (*SIZES_FOLLOW, *TWO_ANSWERS)):
        for change in ODD:
            yield call.with_numbers(change)


def fault(call: Recorded, place: Callable[[torch.Tensor], Layout]) -> str:
    """What a call gives that plain torch does not give."""
    try:
        expected = call.results(torch.clone)
    except REFUSED as error:
        try:
            call.results(lambda x: laid(x, place(x), exact=True))
        except REFUSED:
            return ""
        return f"{call} is accepted: plain torch raises {error}"
    try:
        found = call.results(lambda x: laid(x, place(x), exact=True))
    except REFUSED as error:
        return f"{call} is refused: {type(error).__name__}: {error}"
    outcome = _compared(found, expected)
    return "" if outcome.kind == "pass" else f"{call}: {outcome.detail}"


def faults(call: Recorded, layout: str) -> list[str]:
    with torch.no_grad():
        return [f"{layout}: {said}" for each in calls_of(call) if (said := fault(each, PLACES[layout]))]


@pytest.mark.parametrize("separate", [True, False], ids=["apart", "one memory"])
def test_no_number_is_kept(separate: bool) -> None:
    asked = [call for call in recorded() if not any(name in str(call.func) for name in NO_LAW)]
    assert len({call.func for call in asked}) > 200
    with memory(separate):
        # Layouts take turns; another one has its turn in the other memory.
        found = [said for at, call in enumerate(asked) for said in faults(call, list(PLACES)[(at + separate) % 3])]
    assert not found, "\n".join(found)


def test_a_number_that_is_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What repeats a call with the arguments of the first one is found at the next number."""
    made = creation_like._like_again

    def keeping(call: BoundCall, x: ShardedTensor, result: ShardedTensor) -> Repeat | None:
        again = made(call, x, result)
        return None if again is None else lambda _args, _kwargs: again(call.args, call.kwargs)

    monkeypatch.setattr(creation_like, "_like_again", keeping)
    call = Recorded(torch.ops.aten.full_like.default, (torch.ones(4, 3), 0.25), {})
    with memory(True):
        found = faults(call, "first dim split")
    assert found[0].startswith("first dim split: aten.full_like.default with [0.15625]: ")


def test_numbers_of_two_types_are_told_apart() -> None:
    """In a list of numbers beside a list of tensors each is of its own type, which the type of a result follows."""
    x = torch.arange(4)
    ours = [weft.shard(x, MESH, P("x")) for _ in range(2)]
    for numbers in ([2, 2], [2, 2.0], [2, True], [2.0, 2], [True, 2]):
        expected = torch._foreach_mul([x > 1, x], numbers)
        found = torch._foreach_mul([ours[0] > 1, ours[1]], numbers)
        assert [y.dtype for y in found] == [y.dtype for y in expected]
        for y, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(y.full_tensor(), wanted)
