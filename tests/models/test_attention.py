"""Llama of `transformers` as it is: with its sequence split, and with fewer heads of keys than devices."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch

import weft
from weft import P
from weft.sharding import DeviceMesh, make_mesh

transformers = pytest.importorskip("transformers", reason="needs transformers: make test-models")


LAYERS, HEADS, OF_KEYS, LENGTH = 2, 8, 2, 17


@cache
def model(of_keys: int = OF_KEYS) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": of_keys}
    config = transformers.LlamaConfig(**sizes, **heads, attn_implementation="sdpa")
    return transformers.LlamaForCausalLM(config).double()


def trained(
    ids: torch.Tensor, specs: dict[str, P], mesh: DeviceMesh | None, spec: P, of_keys: int = OF_KEYS
) -> tuple[weft.watch.comm_log.CommLog, dict[str, torch.Tensor]]:
    """What moves in a forward pass, and the logits, the loss and the gradients, whole."""
    one = copy.deepcopy(model(of_keys))
    if mesh is not None:
        weft.nn.shard_module(one, mesh, specs)
        ids = weft.shard(ids, mesh, spec)
    with weft.comm_log() as log:
        result = one(input_ids=ids, labels=ids)
    result.loss.backward()
    found = {"logits": result.logits.detach(), "loss": result.loss.detach()}
    found |= {name: parameter.grad for name, parameter in one.named_parameters()}
    return log, {name: x.full_tensor() if isinstance(x, weft.Tensor) else x for name, x in found.items()}


def check(
    ids: torch.Tensor,
    specs: dict[str, P],
    mesh: DeviceMesh,
    spec: P,
    of_keys: int = OF_KEYS,
    ranks: tuple[int, ...] = (3, 4),
) -> dict[str, int]:
    """What moves in a forward pass of a model that does what the plain one does, without labels and the loss."""
    _, expected = trained(ids, {}, None, spec, of_keys)
    log, found = trained(ids, specs, mesh, spec, of_keys)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)  # norms compute in float32
    kinds = [record.kind for record in log if len(record.shape) in ranks]
    return {kind: kinds.count(kind) for kind in set(kinds)}


def tokens(batches: int) -> torch.Tensor:
    return torch.randint(0, 64, (batches, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("way", ["gather keys", "ring"])
def test_a_split_sequence(way: str, memory: str) -> None:
    """Nothing moves but what attention moves."""
    with weft.prefer(way):
        found = check(tokens(1), {}, make_mesh({"sp": 4}), P(None, "sp"))
    swaps = (5 if way == "ring" else 3) * LAYERS
    round_or_gathered = {"permute": 6 * LAYERS} if way == "ring" else {"all_gather": 2 * LAYERS}
    assert found == {"exchange": swaps} | round_or_gathered


ALL = ("kv", "rep")
LAYOUTS = {
    "keys in groups": ({"dp": 2, "kv": 2, "rep": 2}, ALL, P("kv", None)),
    "keys on every device": ({"dp": 2, "tp": 4}, "tp", P()),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_all_reduces_a_block(name: str, memory: str) -> None:
    axes, over, keys = LAYOUTS[name]
    specs = {f"*.{each}_proj.weight": P(over, None) for each in ("q", "gate", "up")}
    specs |= {f"*.{each}_proj.weight": P(None, over) for each in ("o", "down")}
    specs |= {f"*.{each}_proj.weight": keys for each in ("k", "v")}
    assert check(tokens(2), specs, make_mesh(axes), P("dp")) == {"all_reduce": 2 * LAYERS}


def test_a_split_sequence_and_split_weights(memory: str) -> None:
    """As Megatron's sequence parallelism: norms and residuals stay split, and each half gathers once and scatters once."""
    specs = {f"*.{each}_proj.weight": P("tp", None) for each in ("q", "k", "v", "gate", "up")}
    specs |= {f"*.{each}_proj.weight": P(None, "tp") for each in ("o", "down")}
    found = check(tokens(1), specs, make_mesh({"tp": 4}), P(None, "tp"), HEADS, ranks=(2, 3, 4))
    loss = {"exchange": 2}  # labels are the words one place further
    assert found == {"all_gather": 2 * LAYERS, "reduce_scatter": 2 * LAYERS} | loss
