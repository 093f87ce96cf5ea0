"""Models with experts, in sizes that a test can afford: what they lose in some steps, on one device and with experts split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import transformers as hf

import weft
from tests.models.catalogue import WORDS
from weft import P
from weft.sharding import DeviceMesh
from weft.watch.comm_log import CommLog

STEPS, EXPERTS, DIM, BATCH, LENGTH = 10, 8, 16, 8, 6

_SMALL = {
    "vocab_size": WORDS, "hidden_size": DIM, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_experts_per_tok": 2,
}  # fmt: skip
MODELS = {
    "Mixtral": lambda how: hf.MixtralForCausalLM(
        hf.MixtralConfig(
            **_SMALL, num_key_value_heads=2, head_dim=4, num_local_experts=EXPERTS, experts_implementation=how
        )
    ),
    "DeepSeek-V3": lambda how: hf.DeepseekV3ForCausalLM(
        hf.DeepseekV3Config(
            **_SMALL, num_key_value_heads=4, moe_intermediate_size=24, n_routed_experts=EXPERTS, n_shared_experts=1,
            n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
            qk_nope_head_dim=4, v_head_dim=4, experts_implementation=how,
        )
    ),
}  # fmt: skip
SPECS = {"*.experts.gate_up_proj": P("ep"), "*.experts.down_proj": P("ep")}


@dataclass(frozen=True)
class Step:
    """One step of training."""

    loss: float
    log: CommLog
    tokens: list[torch.Tensor]
    """For each layer with experts, which of them each token chose."""


def steps(name: str, mesh: DeviceMesh | None, how: str = "grouped_mm", count: int = STEPS) -> Iterator[Step]:
    """Trains a model; on a mesh, its experts and the batch are split over `ep`."""
    torch.manual_seed(0)
    model = MODELS[name](how)
    words = torch.randint(3, WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    chosen: list[torch.Tensor] = []
    if mesh is not None:
        weft.nn.shard_module(model, mesh, SPECS)
        words = weft.shard(words, mesh, P("ep"))
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.register_forward_pre_hook(lambda _, given: chosen.append(given[1]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(count):
        chosen.clear()
        with weft.comm_log() as log:
            loss = model(input_ids=words, labels=words).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss.item(), log, [x.full_tensor() if isinstance(x, weft.Tensor) else x for x in chosen])


def differences(name: str, mesh: DeviceMesh, how: str = "grouped_mm", count: int = STEPS) -> list[str]:
    """What is not as on one device, and what moves that should not."""
    said = []
    pairs = zip(steps(name, None, how, count), steps(name, mesh, how, count), strict=True)
    for number, (one, other) in enumerate(pairs):
        if abs(one.loss - other.loss) > 1e-5:
            said.append(f"the loss of step {number} is {other.loss}, not {one.loss}")
        check = _moved_wrongly if how == "grouped_mm" else _moved_wrongly_in_a_loop
        said += [f"step {number}: {each}" for each in check(other, mesh.num_devices)]
    return said


def _moved_wrongly_in_a_loop(step: Step, devices: int) -> Iterator[str]:
    """The same, expert by expert."""
    apart = sum(_apart(chosen, devices) for chosen in step.tokens)
    rows = sum(r.total_bytes // (4 * DIM) for r in step.log if r.rows and len(r.shape) == 2 and r.shape[1] == DIM)
    if rows != 4 * apart:
        yield f"rows that moved: {rows}, not {4 * apart}"
    sizes = {DIM, 24}, {DIM, 48}  # one that is sent to all is the only one of a stack, in the log
    moved = [r for r in step.log if len(r.shape) == 3 and set(r.shape[1:]) in sizes and r.total_bytes]
    if moved:
        yield f"matrices of experts moved: {moved[0]}"


def _moved_wrongly(step: Step, devices: int) -> Iterator[str]:
    """Of rows as wide as a token, those whose token and expert lie apart move there and back, forward and backward."""
    apart = [_apart(chosen, devices) for chosen in step.tokens]
    rows = [r.total_bytes // (4 * DIM) for r in step.log if r.rows and r.shape == (BATCH * LENGTH * 2, DIM)]
    expected = [count for count in apart for _ in range(2)]
    if rows != expected + expected[::-1]:
        yield f"rows that moved: {rows}, not {expected} and back"
    moved = [r for r in step.log if len(r.shape) == 3 and r.shape[0] == EXPERTS and r.total_bytes]
    if moved:
        yield f"matrices of experts moved: {moved[0]}"


def _apart(chosen: torch.Tensor, devices: int) -> int:
    """How many choices are of experts that lie on another device than their token."""
    owner = torch.arange(EXPERTS) * devices // EXPERTS
    tokens = torch.arange(len(chosen)) * devices // len(chosen)
    return int((owner[chosen] != tokens[:, None]).sum())
