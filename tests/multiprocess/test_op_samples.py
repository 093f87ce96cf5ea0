"""PyTorch's own samples, made as views, give in 2 processes what they give in plain torch: a part of them in every run."""

from __future__ import annotations

import pytest
import torch

from tests.multiprocess.op_samples import run

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the samples are made in host memory"),
]


def test_op_samples() -> None:
    ended = run(16, 3, 2)
    assert [(each.status, each.out) for each in ended] == [(0, "all equal\n")] * 2, ended[0].err
