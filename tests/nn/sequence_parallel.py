"""A transformer whose weights are split over "tp" and whose input is split along the sequence; run by processes too."""

from __future__ import annotations

import copy
from collections import Counter

import torch
from torch import nn

import weft
from examples.models import gpt2, llama
from weft import P
from weft.watch.comm_log import CommLog

BATCH, LENGTH, DIM, DEPTH = 2, 10, 32, 2
MODELS = {
    "gpt2": (lambda: gpt2.GPT2(length=LENGTH, dim=DIM, heads=4, depth=DEPTH), gpt2.LAYOUTS["tp"]),
    "llama": (lambda: llama.Llama(length=LENGTH, dim=DIM, hidden=64, depth=DEPTH), llama.LAYOUTS["tp"]),
}
Found = dict[str, torch.Tensor]


def blocks(name: str) -> nn.Module:
    """The blocks of a model, which take and give a residual stream."""
    torch.manual_seed(0)
    return nn.Sequential(*MODELS[name][0]().double().blocks)


def stream(seed: int = 1) -> torch.Tensor:
    """A residual stream."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64, generator=generator, device="cpu")


def differentiated(model: nn.Module, x: torch.Tensor, weights: torch.Tensor) -> tuple[CommLog, CommLog, Found]:
    """What moves forward and backward, and what comes of it: the result and every gradient, whole."""
    with weft.comm_log() as forward:
        y = model(x)
    with weft.comm_log() as backward:
        (y * weights).sum().backward()
    found = {"result": y.detach(), "input": x.grad} | {name: w.grad for name, w in model.named_parameters()}
    return forward, backward, {n: t.full_tensor() if isinstance(t, weft.Tensor) else t for n, t in found.items()}


def split(name: str, tp: int, dp: int = 1) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The blocks with split weights, and a stream and weights for the result that are split along the sequence."""
    mesh = weft.make_mesh({"dp": dp, "tp": tp})
    layouts = {f"*{pattern}": spec for pattern, spec in MODELS[name][1].items()}
    model = weft.nn.shard_module(copy.deepcopy(blocks(name)), mesh, layouts)
    x, weights = (weft.shard(stream(seed), mesh, P("dp", "tp")) for seed in (1, 2))
    return model, x.requires_grad_(), weights


def moved(log: CommLog) -> dict[str, int]:
    """How often activations, or their gradients, moved, and how."""
    return dict(Counter(record.kind for record in log if record.axes == ("tp",) and len(record.shape) > 1))


def check(name: str, tp: int, dp: int = 1) -> None:
    """What Megatron's sequence parallelism moves, and the numbers of one device."""
    _, _, expected = differentiated(blocks(name), stream().requires_grad_(), stream(2))
    forward, backward, found = differentiated(*split(name, tp, dp))
    for each, value in expected.items():
        torch.testing.assert_close(found[each].cpu(), value, rtol=1e-9, atol=1e-10, msg=each)
    halves = 2 * DEPTH
    assert moved(forward) == {"all_gather": halves, "reduce_scatter": halves}, str(forward)
    # The input of a half is gathered again for the gradients of its weights, instead of being kept whole until then.
    assert moved(backward) == {"all_gather": 2 * halves, "reduce_scatter": halves}, str(backward)
    whole = BATCH // dp * LENGTH * DIM * 8
    assert {record.total_bytes for record in forward if record.total_bytes} == {dp * (tp - 1) * whole}


if __name__ == "__main__":
    weft.distributed.init(devices_per_process=2)
    for each in MODELS:
        check(each, tp=4)
    weft.distributed.shutdown()
