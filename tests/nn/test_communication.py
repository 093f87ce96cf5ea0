"""A transformer block moves what its layouts make necessary, and nothing else."""

from __future__ import annotations

import pytest
import torch

import weft
from examples.models import gpt2, llama
from weft import P
from weft.runtime.machine import use_separate_memory

MESH = weft.make_mesh({"dp": 2, "tp": 2})
BLOCKS = {
    "gpt2": (lambda: gpt2.Block(16, 4), gpt2.LAYOUTS),
    "llama": (lambda: llama.Block(16, 4, 4, 32, 8), llama.LAYOUTS),
}
PARTS = ("attention", "perceptron")


def block(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    make, layouts = BLOCKS[name]
    return weft.nn.shard_module(make(), MESH, layouts["tp"])


def stream(spec: P) -> torch.Tensor:
    return weft.shard(torch.randn(4, 8, 16), MESH, spec).requires_grad_()


def moved(log) -> dict[str, int]:
    """How often each kind of communication moved activations, or their gradients, over "tp"."""
    kinds: dict[str, int] = {}
    for record in log:
        if record.total_bytes and record.axes == ("tp",) and (record.op != "gradient" or len(record.shape) == 3):
            kinds[record.kind] = kinds.get(record.kind, 0) + 1
    return kinds


@pytest.mark.parametrize("name", BLOCKS)
def test_tensor_parallel_takes_two_all_reduces_each_way(name: str) -> None:
    module = weft.nn.shard_activations(block(name), MESH, outputs=dict.fromkeys(PARTS, P("dp")))
    weights = stream(P("dp")).detach()
    with weft.comm_log() as forward:
        y = module(stream(P("dp")))
    assert {record.kind for record in forward} == {"all_reduce"}
    assert moved(forward) == {"all_reduce": 2}
    with weft.comm_log() as backward:
        (y * weights).sum().backward()
    assert moved(backward) == {"all_reduce": 2}


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_an_unchanged_block_takes_two_all_reduces_each_way_too(name: str, separate: bool) -> None:
    use_separate_memory(separate)
    try:
        module, weights = block(name), stream(P("dp")).detach()
        with weft.comm_log() as forward:
            y = weft.shard(module(stream(P("dp"))), MESH, P("dp"))
        assert forward.counts() == {"all_reduce": 2}
        with weft.comm_log() as backward:
            (y * weights).sum().backward()
        assert moved(backward) == {"all_reduce": 2}
    finally:
        use_separate_memory(False)


@pytest.mark.parametrize("name", BLOCKS)
def test_sequence_parallel_takes_two_gathers_and_two_reduce_scatters_each_way(name: str) -> None:
    module = weft.nn.shard_activations(
        block(name), MESH, inputs=dict.fromkeys(PARTS, P("dp")), outputs=dict.fromkeys(PARTS, P("dp", "tp"))
    )
    weights = stream(P("dp", "tp")).detach()
    with weft.comm_log() as forward:
        y = module(stream(P("dp", "tp")))
    assert len([record for record in forward if record.total_bytes]) == 4
    assert moved(forward) == {"all_gather": 2, "reduce_scatter": 2}
    with weft.comm_log() as backward:
        (y * weights).sum().backward()
    assert moved(backward) == {"all_gather": 2, "reduce_scatter": 2}
    assert y.mapping.spec == P("dp", "tp", None)


def test_data_parallel_reduces_each_gradient_once() -> None:
    module = weft.nn.shard_module(gpt2.Block(16, 4), MESH, {})
    with weft.comm_log() as log:
        loss = module(stream(P("dp"))).square().mean()
        loss.backward()
    reduced = [record for record in log if record.op == "gradient" and record.total_bytes]
    weights = sum(p.numel() * p.itemsize for p in module.parameters())
    assert {record.axes for record in log if record.total_bytes} <= {("dp",), ("tp", "dp"), ("dp", "tp")}
    assert sum(record.total_bytes for record in reduced) <= 2 * weights * (4 - 1)
