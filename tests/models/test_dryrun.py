"""A whole step of a large model on paper, from an unchanged model of transformers."""

from __future__ import annotations

import pytest
import torch

import weft
from weft import P

transformers = pytest.importorskip("transformers", reason="needs transformers: make test-models")


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()


def patterns(columns: str | None) -> dict[str, P]:
    wide = ("*q_proj.weight", "*k_proj.weight", "*v_proj.weight", "*gate_proj.weight", "*up_proj.weight")
    rows = P(("tp", columns)) if columns else P("tp")
    return {
        **dict.fromkeys(wide, P("tp", columns)),
        **dict.fromkeys(("*o_proj.weight", "*down_proj.weight"), P(columns, "tp")),
        **dict.fromkeys(("*embed_tokens.weight", "lm_head.weight"), rows),
    }


@pytest.mark.parametrize(
    ("sizes", "columns"), [({"dp": 1280, "tp": 8}, None), ({"dp": 64, "tp": 8}, "dp")], ids=["tp × dp", "tp + fsdp"]
)
def test_llama_70b_on_devices_that_nobody_has(sizes: dict[str, int], columns: str | None) -> None:
    config = transformers.LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    count = sizes["dp"] * sizes["tp"]
    mesh = weft.make_mesh(sizes, devices=[weft.Accelerator(i) for i in range(count)])
    weft.nn.shard_module(model, mesh, patterns(columns))
    ids = weft.shard(torch.empty(sizes["dp"], 4096, dtype=torch.int64, device="meta"), mesh, P("dp"))
    report = weft.dryrun(step, model, torch.optim.AdamW(model.parameters()), ids, topology="h100")
    held = sum(x.local_shards[0].nbytes for x in model.parameters())  # type: ignore[attr-defined]
    assert report.devices == count
    assert report.memory.most["parameters"] == report.memory.most["gradients"] == held
    assert report.memory.most["optimizer state"] == 2 * held
    # Six operations a parameter and token, and those of attention.
    least = 6 * 70e9 * 4096 / sizes["tp"]
    assert least < report.flops < 1.5 * least
    assert any("modeling_llama.py" in each.line.where and each.line.is_backward for each in report.operations)
    assert not any("batch" in each.what for each in report.findings)
