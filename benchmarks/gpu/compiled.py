"""Checks a compiled model on NCCL: four processes on one GPU compute, compiled and not, what plain torch computes.

    python benchmarks/gpu/compiled.py [--gloo]

A GPT-2-like model in float64, data x tensor parallel, forward and backward. `--gloo` shows on a machine without a GPU that it
runs. Prints the largest differences as JSON last, and fails where one is above 1e-9.
"""
# ruff: noqa: E402 - what is imported lies beside this folder

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch

import weft
from examples.models import gpt2
from tests.multiprocess.launching import environment, free_port
from weft import P

PROCESSES = 4
ALLOWED = 1e-9
ON_GLOO = "--gloo" in sys.argv


def differences() -> dict[str, float]:
    """The largest difference of losses and of gradients to those of plain torch, uncompiled and compiled."""
    weft.distributed.init(backend="gloo" if ON_GLOO else "nccl", timeout=120)
    where = "cpu" if ON_GLOO else "cuda"
    torch.manual_seed(0)
    plain = gpt2.GPT2(64, 16, 64, 4, 1).to(where, torch.float64)
    tokens = torch.randint(64, (8, 16), device=where)
    expected = plain(tokens).square().mean()
    expected.backward()
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, gpt2.LAYOUTS["tp"])
    batch = weft.shard(tokens, mesh, P("dp"))
    found = {}
    for way, run in {"eager": model, "compiled": torch.compile(model, fullgraph=True)}.items():
        model.zero_grad()
        loss = run(batch).square().mean()
        loss.backward()
        found[f"{way}, loss"] = float((loss.detach().full_tensor() - expected.detach()).abs())
        found[f"{way}, gradients"] = max(
            float((other.grad.full_tensor() - one.grad).abs().max())
            for one, other in zip(plain.parameters(), model.parameters(), strict=True)
        )
    weft.distributed.shutdown()
    return found


def main() -> int:
    """Starts the processes; in each of them, compares."""
    if "RANK" in os.environ:
        found = differences()
        print(json.dumps({"process": os.environ["RANK"], "torch": str(torch.__version__), **found}), flush=True)
        return int(max(found.values()) > ALLOWED)
    port = free_port()
    # The processes of one GPU are hosts of their own to NCCL, and meet on the loopback interface.
    extra = {"NCCL_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env=environment(process, PROCESSES, port, extra))
        for process in range(PROCESSES)
    ]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main())
