"""Trains a sharded Llama with the `Trainer` of Transformers in several processes; saves, resumes, and compares with plain.

Started by a launcher: trainer_processes.py FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch.utils.data import default_collate
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

import weft
from examples.models.trainer import ShardedTrainer, SharedArguments, joined
from weft import P

WORDS, STEPS = 48, 20


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, tie_word_embeddings=True, **sizes)).double()


def trained(folder: Path, mesh: weft.DeviceMesh | None, resume: str | None = None) -> Trainer:
    """The trainer after all steps; without a mesh the plain one."""
    draw = torch.Generator().manual_seed(0)
    data = [{"input_ids": (x := torch.randint(3, WORDS, (6,), generator=draw)), "labels": x} for _ in range(80)]
    model = llama()
    if mesh is not None:
        patterns = {"*q_proj.weight": P("tp"), "*up_proj.weight": P("tp"), "*down_proj.weight": P(None, "tp")}
        weft.nn.shard_module(model, mesh, patterns)

    def collated(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        whole = default_collate(rows)
        return whole if mesh is None else {name: weft.shard(x, mesh, P("dp")) for name, x in whole.items()}

    often = {"max_steps": STEPS, "save_steps": STEPS // 2, "logging_steps": 1, "learning_rate": 1e-2}
    arguments = SharedArguments(
        str(folder), per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True, **often
    )
    kind = Trainer if mesh is None else ShardedTrainer
    trainer = kind(model, arguments, train_dataset=data, data_collator=collated)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main(folder: Path) -> None:
    """Compares losses, and what was saved."""
    joined(backend="gloo", timeout=120, devices_per_process=2)
    count = len(weft.devices())
    mesh = weft.make_mesh({"dp": count // 2, "tp": 2})
    whole = trained(folder, mesh)
    assert len(losses(whole)) == STEPS
    resumed = trained(folder, mesh, str(folder / f"checkpoint-{STEPS // 2}"))
    assert losses(resumed)[-STEPS // 2 :] == losses(whole)[-STEPS // 2 :], (losses(resumed), losses(whole))
    assert isinstance(resumed.model.lm_head.weight, weft.Tensor)
    whole.save_model(str(folder / "last"))
    kept = weft.checkpoint.full_state_dict(resumed.model)
    again = LlamaForCausalLM.from_pretrained(folder / "last", dtype=torch.float64)
    assert all(torch.equal(x, kept[name]) for name, x in again.state_dict().items())
    plain = trained(folder / f"plain {weft.distributed.process_index()}", None)
    torch.testing.assert_close(torch.tensor(losses(whole)), torch.tensor(losses(plain)), rtol=1e-5, atol=1e-6)
    weft.distributed.shutdown()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
