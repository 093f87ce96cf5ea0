"""From a trainer to an inference server: parameters move between meshes that share no device.

    python examples/trainer_to_inference.py

Devices 0 to 3 train with fully sharded parameters, devices 4 to 7 serve with tensor parallelism. After each step the
parameters move from the one layout to the other: any layout, any mesh, and each byte that a server needs crosses once.
"""

from __future__ import annotations

import copy

import torch
from models.gpt2 import GPT2, LAYOUTS
from torch.nn import functional

import weft
from weft import CPU, DeviceMesh, P


def update(server: torch.nn.Module, trained: torch.nn.Module) -> weft.watch.comm_log.CommLog:
    """Brings the trained parameters to the server's devices and layouts; says what moved."""
    with torch.no_grad(), weft.comm_log() as log:
        for mine, theirs in zip(server.parameters(), trained.parameters(), strict=True):
            mine.copy_(weft.to_device(theirs, sharding=mine.mapping))
    return log


def main() -> None:
    """Trains, transfers and serves; compares with one device."""
    torch.manual_seed(0)
    training = DeviceMesh([CPU(i) for i in range(4)], (4,), ("fsdp",))
    serving = DeviceMesh([CPU(i) for i in range(4, 8)], (4,), ("tp",))
    plain = GPT2(vocabulary=32, length=8, dim=16, heads=4, depth=1).double()
    trained = weft.nn.shard_module(copy.deepcopy(plain), training, {"*": P("fsdp")})
    server = weft.nn.shard_module(copy.deepcopy(plain), serving, LAYOUTS["tp"])
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, trained)]

    for i in range(3):
        tokens = torch.randint(0, 32, (4, 8))
        for model, optimizer, batch in zip(
            (plain, trained), optimizers, (tokens, weft.shard(tokens, training, P("fsdp"))), strict=True
        ):
            optimizer.zero_grad()
            logits = model(batch)
            functional.cross_entropy(logits.flatten(0, 1), batch.flatten()).backward()
            optimizer.step()
        log = update(server, trained)
        with torch.no_grad():
            served = server(weft.shard(tokens, serving, P()))
            torch.testing.assert_close(served.full_tensor(), plain(tokens), rtol=1e-9, atol=1e-12)
        needed = sum(sum(s.numel() * s.itemsize for s in x.local_shards) for x in server.parameters())
        assert log.total_bytes == needed, (log.total_bytes, needed)
        print(
            f"step {i}: {log.total_bytes:,} bytes crossed to the server, which holds {needed:,}; its logits are those of one device"
        )


if __name__ == "__main__":
    main()
