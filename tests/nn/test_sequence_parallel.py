"""Plain models whose weights are split, and whose input is split along the sequence: Megatron's sequence parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from tests.multiprocess.launching import Processes
from tests.nn.sequence_parallel import MODELS, check, differentiated, split
from weft.runtime.machine import use_separate_memory

PROGRAM = Path(__file__).with_name("sequence_parallel.py")


@pytest.fixture(params=["apart", "one"])
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    use_separate_memory(request.param == "apart")
    yield request.param
    use_separate_memory(False)


@pytest.mark.parametrize(("tp", "dp"), [(2, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("name", MODELS)
def test_a_half_gathers_once_and_scatters_once(name: str, tp: int, dp: int, memory: str) -> None:
    check(name, tp, dp)


@pytest.mark.multiprocess
def test_two_processes_do_the_same() -> None:
    with Processes([str(PROGRAM)], 2) as processes:
        ended = processes.wait(200)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err


def test_norms_and_residuals_stay_split(memory: str) -> None:
    model, x, weights = split("llama", 4)
    seen: list[tuple[weft.Placement, ...]] = []

    def look(_: nn.Module, given: tuple[torch.Tensor], y: torch.Tensor) -> None:
        seen.extend((given[0].placements, y.placements))
        given[0].register_hook(lambda grad: seen.append(grad.placements))

    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.register_forward_hook(look)
    differentiated(model, x, weights)
    assert len(seen) == 12
    assert set(seen) == {x.placements}


def test_gradients_that_add_up_in_place_gather_no_more(memory: str) -> None:
    """Each weight's gradient is written to between two uses of what was gathered."""
    model, x, weights = split("llama", 4)
    counts = [differentiated(model, x, weights)[1].counts() for _ in range(3)]
    assert counts[0] == counts[1] == counts[2]
    _, _, found = differentiated(model, x, weights)
    _, _, once = differentiated(*split("llama", 4))
    for name in ("input", "0.attention.q_proj.weight", "1.norm_2.weight"):
        torch.testing.assert_close(found[name], 4 * once[name])


def test_without_gradients_too(memory: str) -> None:
    model, x, _ = split("gpt2", 4)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), weft.comm_log() as log:
            model(x)
        assert log.counts() == {"all_gather": 4, "reduce_scatter": 4}
