"""What each of several processes runs for `test_processes`."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

import weft
from tests.autoshard.models import language_loss
from tests.paper.llama import VOCABULARY, Llama
from weft import P
from weft.paper.machine import Machine
from weft.planning import Link


def check(machine: Machine | None) -> weft.nn.AutoshardChoice:
    """A model in the layouts that are chosen for it gives the loss and the gradients of plain torch."""
    torch.manual_seed(0)
    plain = Llama(2).double()
    ids = torch.randint(0, VOCABULARY, (8, 32))
    model = copy.deepcopy(plain)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    choice = weft.nn.autoshard(model, mesh, ids, topology=machine, loss=lambda logits: language_loss(logits, ids))
    choice.apply()
    batch = choice.shard_batch(ids)
    assert isinstance(batch, torch.Tensor)
    expected, found = language_loss(plain(ids), ids), language_loss(model(batch), batch)
    for loss in (expected, found):
        loss.backward()
    torch.testing.assert_close(found.full_tensor(), expected)
    for (name, mine), its in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), its.grad, msg=name)
    return choice


def main() -> None:
    """Chooses for a machine on which everything is worth splitting, and for the one at hand, which each process measures."""
    weft.distributed.init(devices_per_process=2)
    link = Link(0.0, 1e12)
    slow = replace(Machine.preset("h100"), topology=weft.Topology(link, link, link, link), launch=0.0, bandwidth=1e9)
    assert check(slow).batch != P(None, None)
    print(sorted(check(None).patterns.items(), key=str))
    weft.distributed.shutdown()


if __name__ == "__main__":
    main()
