"""Freed memory that is kept between pieces in use goes back to the system where it is more than the bound."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys

import pytest
import torch

import weft.tensor  # which tells the C library to keep memory
from weft.runtime.memory.host_bound import HeldToBound, _own_pages
from weft.runtime.memory.host_memory import pool_size

pytestmark = pytest.mark.skipif(not pool_size(), reason="the C library here cannot be told to keep memory")

_MIB = 1 << 20
_LOSSES = """
import torch, weft
from weft import P
mesh = weft.make_mesh({"dp": 2})
model = torch.nn.Linear(256, 1024)
weft.nn.shard_module(model, mesh, {})
losses = []
def own():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon:"))
first = own()
for _ in range(60):
    x = weft.shard(torch.randn(1024, 256), mesh, P("dp"))
    loss = model(x).square().mean()
    losses.append(loss.detach())
    loss.backward()
before = own()
from time import sleep
sleep(1.1)
import gc
gc.collect()
print(before - first, own() - first)
"""


def test_gaps_between_what_is_kept_go_back() -> None:
    large, kept = [], []
    for _ in range(50):
        large.append(torch.ones(_MIB))
        kept.append(torch.ones(500))
    del large
    before = _own_pages()
    HeldToBound(ctypes.CDLL(None), 50 * _MIB).hold()
    assert before - _own_pages() > 100 * _MIB
    assert all(x.sum() == 500 for x in kept)


def test_what_is_within_the_bound_stays() -> None:
    del [torch.ones(_MIB) for _ in range(10)][:]
    before = _own_pages()
    HeldToBound(ctypes.CDLL(None), 1 << 40).hold()
    assert before - _own_pages() < 20 * _MIB


def test_a_program_that_keeps_its_losses_stays_within_the_bound() -> None:
    given = {**os.environ, "WEFT_HOST_POOL": str(50 * _MIB)}
    done = subprocess.run([sys.executable, "-c", _LOSSES], capture_output=True, text=True, env=given, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before // 2


def test_who_looks_is_asked_after_collections() -> None:
    assert weft.tensor is not None
    assert any(isinstance(getattr(each, "__self__", None), HeldToBound) for each in gc.callbacks)
