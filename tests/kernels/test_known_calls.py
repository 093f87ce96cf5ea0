"""A call that is known gives what it gives when it is worked out, for other tensors of the same forms."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.participants import DEVICE, contexts, signals, values
from weft.kernels import (
    DistributedAllGather,
    DistributedAllReduce,
    DistributedAllToAll,
    DistributedBroadcast,
    DistributedReduceScatter,
)
from weft.kernels.collectives import known

COUNT = 4


def empty(rows: int) -> list[torch.Tensor]:
    return [torch.full((rows, 6), -1.0, device=DEVICE) for _ in range(COUNT)]


CALLS = {
    "all_reduce": (DistributedAllReduce, 4, lambda xs: [sum(xs)] * COUNT),
    "all_gather": (DistributedAllGather, 4 * COUNT, lambda xs: [torch.cat(xs)] * COUNT),
    "all_to_all": (DistributedAllToAll, 4, lambda xs: [torch.cat([x[i : i + 1] for x in xs]) for i in range(COUNT)]),
    "reduce_scatter": (DistributedReduceScatter, 1, lambda xs: list(sum(xs).split(1))),
}


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which calls were worked out, and not repeated."""
    monkeypatch.setattr(known, "_ready", known.BoundedCache(64))
    seen: list[str] = []
    remember = known.KnownCall.remember

    def noted(self, launches) -> None:
        seen.append(str(self._key[0]))
        remember(self, launches)

    monkeypatch.setattr(known.KnownCall, "remember", noted)
    return seen


@pytest.mark.parametrize("name", CALLS)
def test_it_is_worked_out_once(name: str, worked_out: list[str]) -> None:
    collective, rows, reference = CALLS[name]
    places, buffers = contexts(COUNT), signals(COUNT)
    kept = []
    for seed in range(3):
        inputs = [values((4, 6), torch.float32, seed * COUNT + i) for i in range(COUNT)]
        outputs = empty(rows)
        versions = [x._version for x in outputs]
        collective.execute(outputs, inputs, buffers, places)
        for output, want in zip(outputs, reference(inputs), strict=True):
            torch.testing.assert_close(output, want)
        assert all(x._version > before for x, before in zip(outputs, versions, strict=True))
        kept += [inputs, outputs]  # so that the next ones lie elsewhere
    assert len(worked_out) == 1


def test_a_broadcast_is_worked_out_once(worked_out: list[str]) -> None:
    places, buffers = contexts(COUNT), signals(COUNT)
    kept = []
    for seed in range(3):
        given, outputs = values((4, 6), torch.float32, seed), empty(4)
        DistributedBroadcast.execute(outputs, given, buffers, places)
        assert all(torch.equal(output, given) for output in outputs)
        kept += [given, outputs]
    assert len(worked_out) == 1


def test_other_options_and_forms_are_other_calls(worked_out: list[str]) -> None:
    places, buffers = contexts(COUNT), signals(COUNT)
    for op, combined in (("sum", torch.sum), ("max", torch.amax)):
        for dtype in (torch.float32, torch.int32):
            inputs = [values((4, 6), dtype, i) for i in range(COUNT)]
            outputs = [torch.empty_like(x) for x in inputs]
            DistributedAllReduce.execute(outputs, inputs, buffers, places, reduce_op=op)
            want = combined(torch.stack(inputs), 0).to(dtype)
            for output in outputs:
                torch.testing.assert_close(output, want)
    assert len(worked_out) == 4


def test_what_overlaps_is_looked_at_each_time(worked_out: list[str]) -> None:
    places, buffers = contexts(COUNT), signals(COUNT)
    for known_before in (False, True):
        inputs = [values((4, 6), torch.float32, i) for i in range(COUNT)]
        want = sum(inputs)
        if known_before:
            DistributedAllReduce.execute(empty(4), inputs, buffers, places)
        DistributedAllReduce.execute(inputs, inputs, buffers, places)  # in place
        for output in inputs:
            torch.testing.assert_close(output, want)
    assert len(worked_out) == 3
    room = torch.zeros(7, 6, device=DEVICE)
    overlapping = [room[:4], room[3:], *empty(4)[2:]]
    with pytest.raises(ValueError, match="overlap in memory"):
        DistributedAllReduce.execute(overlapping, [values((4, 6), torch.float32, i) for i in range(4)], buffers, places)


def test_a_wrong_call_is_refused_though_a_right_one_is_known() -> None:
    places, buffers = contexts(COUNT), signals(COUNT)
    inputs = [values((4, 6), torch.float32, i) for i in range(COUNT)]
    DistributedAllReduce.execute(empty(4), inputs, buffers, places)
    with pytest.raises(ValueError, match="has shape"):
        DistributedAllReduce.execute(empty(3), inputs, buffers, places)
    with pytest.raises(ValueError, match="as many signal buffers"):
        DistributedAllReduce.execute(empty(4), inputs, buffers[:2], places)
