"""The `Trainer` of Transformers over several processes: each runs it on the whole model, and what it saves is saved once.

Transformers would copy the model into each process and give each its own rows. Here the processes hold one model together,
and a batch is the global one. So `joined` lets Transformers take itself for alone, `SharedArguments` says which process
writes, and `ShardedTrainer` saves and loads what none of the processes has whole.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

import weft
from weft import P

OPTIMIZER = "optimizer"
"""The folder of a checkpoint that holds the optimizer's and the scheduler's state, in shards."""


def joined(**options: Any) -> None:  # noqa: ANN401 - what `weft.distributed.init` takes
    """Joins the processes that torchrun started, and hides them from libraries that would each do so in their own way."""
    weft.distributed.init(**options)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def _meet() -> None:
    """Waits until all processes are here: none has this sum before all have brought their part."""
    count = len(weft.devices())
    weft.shard(torch.ones(count), weft.make_mesh({"all": count}), P("all")).sum().item()


class SharedArguments(TrainingArguments):
    """Arguments of which every process knows which one it is; `per_device_train_batch_size` is that of the whole batch."""

    @property
    def process_index(self) -> int:
        """The index of this process."""
        return weft.distributed.process_index()

    @property
    def local_process_index(self) -> int:
        """The same: only the first of all processes writes and logs."""
        return weft.distributed.process_index()


class ShardedTrainer(Trainer):
    """A trainer whose checkpoints the processes write together: weights as Transformers does, the optimizer in shards."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Gathers the weights in all processes; the first writes them, and the others wait until it has."""
        whole = weft.checkpoint.full_state_dict(self.model)
        if self.args.should_save:
            self._save(output_dir, state_dict=whole)
        _meet()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        weft.checkpoint.save(self._states(), Path(output_dir) / OPTIMIZER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            weft.checkpoint.load(Path(checkpoint) / OPTIMIZER, self._states())

    def _states(self) -> dict[str, object]:
        assert self.optimizer is not None
        return {"optimizer": getattr(self.optimizer, "optimizer", self.optimizer), "scheduler": self.lr_scheduler}

    def _save_rng_state(self, output_dir: str) -> None:
        if self.args.should_save:  # it is the same in all
            super()._save_rng_state(output_dir)
