"""Two transformer layers, tensor-parallel over four devices, written as one graph; the same in plain torch beside it.

    python examples/graph_transformer.py

Each device holds a quarter of the heads and of the hidden units. A layer adds up what the devices contribute with two
all-reduces: one after attention, one after the two linear maps. The graph is compiled once and runs for any batch and
any length.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from weft import graph as wg
from weft.graph import DeviceRef, Graph, Signals, TensorType, TensorValue, ops

WIDTH, HEADS, HIDDEN, LAYERS, PARTS = 64, 8, 256, 2, 4
DEVICES = [DeviceRef.CPU(i) for i in range(PARTS)]
HEAD = WIDTH // HEADS

Weights = dict[str, torch.Tensor]


def weights(generator: torch.Generator) -> list[Weights]:
    """The weights of each layer, whole, as a checkpoint would give them."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64) / rows**0.5

    return [
        {
            "query": matrix(WIDTH, WIDTH),
            "key": matrix(WIDTH, WIDTH),
            "value": matrix(WIDTH, WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, HIDDEN),
            "down": matrix(HIDDEN, WIDTH),
            "norm_1": torch.ones(WIDTH, dtype=torch.float64),
            "norm_2": torch.ones(WIDTH, dtype=torch.float64),
        }
        for _ in range(LAYERS)
    ]


def plain(x: torch.Tensor, layers: list[Weights]) -> torch.Tensor:
    """The model in plain torch, on one device."""
    batch, length, _ = x.shape
    for layer in layers:
        y = F.rms_norm(x, (WIDTH,), layer["norm_1"], 1e-6)
        q, k, v = (
            (y @ layer[name]).reshape(batch, length, HEADS, HEAD).transpose(1, 2) for name in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + mixed.reshape(batch, length, WIDTH) @ layer["out"]
        y = F.rms_norm(x, (WIDTH,), layer["norm_2"], 1e-6)
        x = x + F.silu(y @ layer["up"]) @ layer["down"]
    return x


def attention(y: TensorValue, projections: TensorValue, out: TensorValue) -> TensorValue:
    """One device's heads: `projections` are its columns of query, key and value, stacked by `shard_and_stack`."""
    batch, length, _ = y.shape
    q, k, v = ((y @ projections[i]).reshape([batch, length, HEADS // PARTS, HEAD]).transpose(1, 2) for i in range(3))
    mixed = ops.attention(q, k, v, causal=True).transpose(1, 2)
    return mixed.reshape([batch, length, WIDTH // PARTS]) @ out


def parallel(layers: list[Weights]) -> tuple[Graph, Signals]:
    """The model as a graph, its weights cut over the devices when the model is loaded."""
    signals = Signals(DEVICES)
    kind = TensorType("float64", ["batch", "length", WIDTH])
    with Graph("transformer", input_types=[kind, *signals.input_types()]) as graph:
        x, *buffers = graph.inputs
        xs = ops.distributed_broadcast(x, buffers)
        for layer in layers:
            kept = {name: ops.constant(data) for name, data in layer.items()}
            stacked = ops.shard_and_stack([kept["query"], kept["key"], kept["value"]], DEVICES, axis=1)
            cut = {
                name: [part[0] for part in ops.shard_and_stack([kept[name]], DEVICES, axis=axis)]
                for name, axis in (("out", 0), ("up", 1), ("down", 0))
            }
            norms = [[kept[name].to(device) for device in DEVICES] for name in ("norm_1", "norm_2")]
            ys = [ops.rms_norm(x, norm) for x, norm in zip(xs, norms[0], strict=True)]
            parts = [attention(y, w, out) for y, w, out in zip(ys, stacked, cut["out"], strict=True)]
            xs = [x + part for x, part in zip(xs, ops.allreduce.sum(parts, buffers), strict=True)]
            ys = [ops.rms_norm(x, norm) for x, norm in zip(xs, norms[1], strict=True)]
            parts = [ops.silu(y @ up) @ down for y, up, down in zip(ys, cut["up"], cut["down"], strict=True)]
            xs = [x + part for x, part in zip(xs, ops.allreduce.sum(parts, buffers), strict=True)]
        graph.output(xs[0])
    return graph, signals


def main() -> None:
    """Build, price, compile and run the graph, and compare it with plain torch."""
    layers = weights(torch.Generator().manual_seed(0))
    start = time.perf_counter()
    graph, signals = parallel(layers)
    model = wg.compile(graph)
    print(f"{graph!r}, built and compiled in {time.perf_counter() - start:.2f} s")
    print("\nwhat a batch of 4 with 32 positions costs each device:")
    print(graph.cost(batch=4, length=32))
    print("\nbatch  length  largest difference from plain torch")
    for batch, length in ((1, 16), (4, 32), (7, 5)):
        x = torch.randn(batch, length, WIDTH, dtype=torch.float64)
        difference = (model(x, *signals.buffers()) - plain(x, layers)).abs().max().item()
        print(f"{batch:>5}  {length:>6}  {difference:.1e}")
        assert difference < 1e-12


if __name__ == "__main__":
    main()
