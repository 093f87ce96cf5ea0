"""PyTorch's own samples of its ops as a second opinion: a few of each, in every run.

`python benchmarks/op_coverage.py` runs all of them and writes the page.
"""

from __future__ import annotations

import warnings

import pytest

from .harness import memory
from .opinfo import LAYOUTS, REASONS, name_of, op_infos, tried

PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("layout", "separate"), [("first dim split", True), ("pending sum", False)])
def test_one_device_says_the_same(part: int, layout: str, separate: bool) -> None:
    assert layout in LAYOUTS
    wrong = []
    with memory(separate), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_infos()[part::PARTS]:
            for sample in tried(op, 1, layout):
                for way, outcome in (("forward", sample.forward), ("backward", sample.backward)):
                    if outcome.kind == "wrong" or (outcome.kind == "error" and sample.op not in REASONS):
                        wrong.append(f"{sample.op} {way}: {outcome.kind}, {outcome.detail}")
    assert not wrong, "\n".join(wrong)


def test_every_reason_is_needed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ops = {name_of(op): op for op in op_infos()}
        for name in REASONS:
            outcomes = [o.kind for sample in tried(ops[name], None) for o in (sample.forward, sample.backward)]
            assert "error" in outcomes
            assert "wrong" not in outcomes
