"""Trains a model compiled as one graph, and the same model as it is, and says by how much their losses differ.

By itself it runs in one process; started by a launcher, in several, on a device each.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import weft
from tests.models.catalogue import MODELS
from tests.models.layouts import LAYOUTS, laid, sharded
from weft.sharding import DeviceMesh

COMPILED = {"Llama": "ForCausalLM", "GPT-2": "ForCausalLM", "BERT": "ForMaskedLM"}
"""By name, the loss of each model: one that has none looks for it in a way that torch does not compile, sharded or not."""


def apart(name: str, mesh: DeviceMesh, steps: int) -> float:
    """The largest difference between the losses, and between the first logits."""
    case = MODELS[name]
    model = case.fresh().eval()
    model.loss_type = COMPILED[name]
    model, inputs = sharded(model, mesh), laid(case.inputs(), mesh)
    found = []
    for is_compiled in (False, True):
        each = copy.deepcopy(model)
        run = torch.compile(each, backend="aot_eager", fullgraph=True) if is_compiled else each
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-2)
        losses, logits = [], None
        for _ in range(steps):
            optimizer.zero_grad()
            result = run(**inputs)
            result.loss.backward()
            optimizer.step()
            losses.append(result.loss.item())
            logits = result.logits.detach().full_tensor() if logits is None else logits
        found.append((torch.tensor(losses), logits))
    assert found[0][0][0] - found[0][0][-1] > 0.1, "it has learned nothing"
    return max(float((one - other).abs().max()) for one, other in zip(*found, strict=True))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    weft.distributed.init(backend="gloo", timeout=120)
    difference = apart(sys.argv[1], LAYOUTS["tp"].mesh(weft.devices()), 10)
    assert difference < 1e-5, (os.environ["RANK"], difference)
