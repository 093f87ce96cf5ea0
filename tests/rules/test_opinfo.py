"""PyTorch's own samples of its ops as a second opinion: the first of each, in every run.

`python benchmarks/op_coverage.py` runs more of them and writes the page.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from .harness import memory
from .opinfo import REASONS, Tried, name_of, op_infos, tried

pytestmark = [
    pytest.mark.xdist_group("opinfo"),  # the database takes seconds to load: one worker does it
    pytest.mark.usefixtures("quiet"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the samples are made in host memory"),
]


def faults(samples: list[Tried]) -> list[str]:
    """What went wrong and is not known to: another value, or an op that raises."""
    return [
        f"{sample.op} {way}: {outcome.kind}, {outcome.detail}"
        for sample in samples
        for way, outcome in (("forward", sample.forward), ("backward", sample.backward))
        if outcome.kind == "wrong" or (outcome.kind == "error" and sample.op not in REASONS)
    ]


def share(outcomes: list[str]) -> float:
    """How many of the samples that were compared gave what one device gives."""
    counts = Counter(outcomes)
    return counts["pass"] / (counts["pass"] + counts["wrong"] + counts["error"])


@pytest.mark.parametrize(("layout", "separate"), [("first dim split", True), ("pending sum", False)])
def test_one_device_says_the_same(layout: str, separate: bool) -> None:
    with memory(separate):
        samples = [sample for op in op_infos() for sample in tried(op, 1, layout)]
    assert faults(samples) == []
    assert len(samples) > 600
    assert share([sample.forward.kind for sample in samples]) >= 0.95
    assert share([sample.backward.kind for sample in samples]) >= 0.90


def test_every_reason_is_needed() -> None:
    ops = {name_of(op): op for op in op_infos()}
    for name in REASONS:
        outcomes = [o.kind for sample in tried(ops[name], None) for o in (sample.forward, sample.backward)]
        assert "error" in outcomes
        assert "wrong" not in outcomes


def test_a_wrong_op_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    op = next(op for op in op_infos() if name_of(op) == "exp")
    right = op.op  # type: ignore[attr-defined]
    monkeypatch.setattr(op, "op", lambda x: right(x) + (hasattr(x, "mesh") and 1e-3))
    assert any("exp forward: wrong" in fault for fault in faults(list(tried(op, 1))))
