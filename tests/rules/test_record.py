"""What every op does is on record: where its results and gradients lie, and what moves for them, in both memories."""

from __future__ import annotations

import pytest
import torch

from .opinfo import REASONS, name_of, op_infos
from .record import lines, recorded

pytestmark = [
    pytest.mark.xdist_group("opinfo"),  # the database takes seconds to load: one worker does it
    pytest.mark.usefixtures("quiet"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the samples are made in host memory"),
]


def differences(ops: list[object]) -> list[str]:
    """What is no longer as on record; `python -m tests.rules.record` writes it anew."""
    known = recorded()
    found = []
    for op in ops:
        before, now = known.get(name_of(op), []), list(lines(op))
        found += [f"- {line}" for line in before if line not in now] + [
            f"+ {line}" for line in now if line not in before
        ]
    return found


same_torch = pytest.mark.skipif(
    torch.__version__.split(".")[:2] != ["2", "13"],
    reason="the record is of torch 2.13: others take other steps, and have other samples",
)


@same_torch
@pytest.mark.parametrize("part", range(4))
def test_every_op_does_what_is_on_record(part: int) -> None:
    assert "\n".join(differences(op_infos()[part::4])) == ""


@same_torch
def test_every_op_is_on_record_and_none_gives_another_value() -> None:
    known = recorded()
    assert sorted(known) == sorted(name_of(op) for op in op_infos())
    bad = [
        line
        for name, each in known.items()
        for line in each
        if "wrong" in line or ("error" in line and name not in REASONS)
    ]
    assert bad == []


def test_another_layout_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    op = next(op for op in op_infos() if name_of(op) == "exp")
    right = op.op  # type: ignore[attr-defined]
    monkeypatch.setattr(op, "op", lambda x: right(x).flip(0).flip(0))
    assert any(line.startswith("+ exp, first dim split") for line in differences([op]))
