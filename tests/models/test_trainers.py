"""Trainers of other libraries train a sharded model to the losses of the plain one, save it and resume."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch.utils.data import DataLoader, TensorDataset, default_collate

import weft
from weft import P

hf = pytest.importorskip("transformers", reason="needs transformers: make test-models")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate: make test-models")
lightning = pytest.importorskip("lightning", reason="needs lightning: make test-models")

WORDS = 48
MESH = weft.make_mesh({"dp": 2, "tp": 2})
FORMS = {"plain": (False, False), "sharded": (True, False), "sharded, batch split": (True, True)}
Losses = list[float]

pytestmark = pytest.mark.usefixtures("memory", "_alone")


@pytest.fixture
def _alone() -> Iterator[None]:
    """accelerate keeps its state for the whole process, Lightning tells much about it."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def network(sharded: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(*layers).double()
    return weft.nn.shard_module(model, MESH, {"0.*": P("tp"), "3.weight": P(None, "tp")}) if sharded else model


def rows(split: bool) -> DataLoader[list[torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randn(24, 8, generator=draw, dtype=torch.float64), torch.randint(0, 4, (24,), generator=draw)
    )

    def collated(batch: list[object]) -> object:
        whole = default_collate(batch)
        return [weft.shard(x, MESH, P("dp")) for x in whole] if split else whole

    return DataLoader(data, 4, collate_fn=collated)


def with_accelerate(sharded: bool, split: bool, folder: Path) -> Losses:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network(sharded)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, rows(split), scheduler)

    def epoch() -> Iterator[float]:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            yield loss.item()

    torch.manual_seed(1)
    first = list(epoch())
    accelerator.save_state(folder)
    accelerator.save_model(model, folder / "model")
    second = list(epoch())
    accelerator.load_state(folder)
    assert list(epoch()) == second
    return first + second


def with_fabric(sharded: bool, split: bool, folder: Path) -> Losses:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    model = network(sharded)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    loader = fabric.setup_dataloaders(rows(split))

    def epoch() -> Iterator[float]:
        torch.manual_seed(1)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()

    first = list(epoch())
    fabric.save(folder / "state.ckpt", {"model": model, "optimizer": optimizer, "epoch": 1})
    second = list(epoch())
    assert fabric.load(folder / "state.ckpt", {"model": model, "optimizer": optimizer}) == {"epoch": 1}
    assert list(epoch()) == second
    return first + second


class Network(lightning.LightningModule):
    def __init__(self, sharded: bool) -> None:
        super().__init__()
        self.network, self.losses = network(sharded), []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("validation", F.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def with_lightning(sharded: bool, split: bool, folder: Path) -> Losses:
    def trainer(epochs: int) -> object:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": True}
        where = {"accelerator": "cpu", "devices": 1, "default_root_dir": folder}
        return lightning.Trainer(max_epochs=epochs, gradient_clip_val=0.5, **where, **quiet)

    model, resumed = Network(sharded), Network(sharded)
    first = trainer(2)
    torch.manual_seed(1)
    first.fit(model, rows(split), rows(split))
    second = trainer(3)
    torch.manual_seed(2)
    second.fit(resumed, rows(split), rows(split), ckpt_path=first.checkpoint_callback.best_model_path)
    return model.losses + resumed.losses + [second.callback_metrics["validation"].item()]


LOOPS: dict[str, Callable[[bool, bool, Path], Losses]] = {
    "accelerate": with_accelerate,
    "Lightning Fabric": with_fabric,
    "Lightning": with_lightning,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_sharded_model_has_the_losses_of_the_plain_one(loop: str, tmp_path: Path) -> None:
    found = {}
    for form, (sharded, split) in FORMS.items():
        (tmp_path / form).mkdir()
        found[form] = LOOPS[loop](sharded, split, tmp_path / form)
    for form in FORMS:
        assert found[form] == pytest.approx(found["plain"], rel=1e-9), form
    assert len(set(found["plain"])) > 10  # something was learned


def llama(sharded: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=WORDS, tie_word_embeddings=True, **sizes)).double()
    patterns = {"*q_proj.weight": P("tp"), "*up_proj.weight": P("tp"), "*down_proj.weight": P(None, "tp")}
    return weft.nn.shard_module(model, MESH, patterns) if sharded else model


def hugging_face_trainer(sharded: bool, split: bool, folder: Path) -> object:
    draw = torch.Generator().manual_seed(0)
    data = [{"input_ids": (x := torch.randint(3, WORDS, (6,), generator=draw)), "labels": x} for _ in range(24)]

    def collated(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        whole = default_collate(batch)
        return {name: weft.shard(x, MESH, P("dp")) for name, x in whole.items()} if split else whole

    often = {"max_steps": 6, "save_steps": 3, "logging_steps": 1, "learning_rate": 1e-2}
    arguments = hf.TrainingArguments(
        str(folder), per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True, **often
    )
    return hf.Trainer(llama(sharded), arguments, train_dataset=data, eval_dataset=data[:8], data_collator=collated)


def test_the_trainer_of_transformers_trains_saves_and_resumes(tmp_path: Path) -> None:
    found = {}
    for form, (sharded, split) in FORMS.items():
        whole, resumed = (hugging_face_trainer(sharded, split, tmp_path / form) for _ in range(2))
        whole.train()
        resumed.train(resume_from_checkpoint=str(tmp_path / form / "checkpoint-3"))
        histories = [[h["loss"] for h in t.state.log_history if "loss" in h] for t in (whole, resumed)]
        assert histories[0] == histories[1]
        assert isinstance(resumed.model.lm_head.weight, weft.Tensor) == sharded
        whole.save_model(tmp_path / form / "last")
        again = hf.LlamaForCausalLM.from_pretrained(tmp_path / form / "last", dtype=torch.float64)
        kept = weft.checkpoint.full_state_dict(resumed.model)
        assert all(torch.equal(x, kept[name]) for name, x in again.state_dict().items())
        found[form] = [*histories[0], whole.evaluate()["eval_loss"]]
    for form in FORMS:
        assert found[form] == pytest.approx(found["plain"], rel=1e-6), form  # the model computes its loss in float32
