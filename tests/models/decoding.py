"""Decoding: a Llama that is split as Megatron splits it generates, and what moves for each word is noted."""

from __future__ import annotations

import torch
import transformers as hf

import weft
from weft import P
from weft.sharding import DeviceMesh
from weft.watch.comm_log import CommRecord

LAYERS, BATCH, DIM = 2, 4, 64
CACHES = ("growing", "static")
SPECS = {
    "*.[qkv]_proj.weight": P("tp", None),
    "*.o_proj.weight": P(None, "tp"),
    "*.gate_proj.weight": P("tp", None),
    "*.up_proj.weight": P("tp", None),
    "*.down_proj.weight": P(None, "tp"),
    "*.embed_tokens.weight": P("tp", None),
    "lm_head.weight": P("tp", None),
}
FEW_KEYS = {"*.[kv]_proj.weight": P("kv", None)} | {
    name: P(*(("kv", "rep") if axis == "tp" else axis for axis in spec)) for name, spec in SPECS.items()
}
"""For fewer heads of keys than devices: two of them, each on a group of devices."""


def model(heads_of_keys: int = 8) -> torch.nn.Module:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=64, hidden_size=DIM, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=heads_of_keys, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).eval()


def prompt(*, padded: bool = False) -> dict[str, torch.Tensor]:
    """Words, and which of them count; padded: sequences of different lengths, padding on the left."""
    words = torch.randint(3, 64, (BATCH, 5), generator=torch.Generator().manual_seed(1))
    counts = torch.ones_like(words)
    if padded:
        counts[1, :2] = counts[3, :4] = 0
    return {"input_ids": words, "attention_mask": counts}


def generated(
    given: dict[str, torch.Tensor], mesh: DeviceMesh | None, cache: str, count: int, heads_of_keys: int = 8
) -> tuple[torch.Tensor, list[list[CommRecord]]]:
    """The words, and what moved for each of them after the first."""
    llama = model(heads_of_keys)
    kept: dict[str, object] = {}
    if mesh is not None:
        weft.nn.shard_module(llama, mesh, SPECS if heads_of_keys == 8 else FEW_KEYS)
        # Whether there is padding is asked of the whole mask for every word: one that all devices have answers at once.
        specs = {"input_ids": P("dp"), "attention_mask": P()}
        given = {name: weft.shard(x, mesh, specs[name]) for name, x in given.items()}
    if cache == "static":
        kept["past_key_values"] = hf.StaticCache(config=llama.config, max_cache_len=80)
        if mesh is not None:
            weft.nn.shard_cache(kept["past_key_values"])
    begins: list[int] = []
    llama.register_forward_pre_hook(lambda *_: begins.append(len(log)))
    with weft.comm_log() as log:
        words = llama.generate(**given, **kept, max_new_tokens=count, min_new_tokens=count, do_sample=False)
    ends = [*begins[1:], len(log)]
    moved = [log.records[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return words.full_tensor() if isinstance(words, weft.Tensor) else words, moved[1:]
