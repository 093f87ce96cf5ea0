"""`StepRun`: one batch through a pipeline, in the order that the schedule says. Each process does the entries of its own places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch

from ...engine.moves.passing_on import passed_on
from ...schedules import Entry, Work
from ...tensor.tensor import Tensor, public
from .activation import Activation, StageOutputs, settled
from .known import KnownActivations
from .ownership import is_here
from .stage import KeptMicrobatch, Stage

__all__ = ["BACKWARD", "FORWARD", "StepRun"]

AHEAD = 3
"""For so many entries ahead, what is to come from others is waited for in the background."""
FORWARD, BACKWARD = "/pipeline forward", "/pipeline backward"
"""The purposes of groups: what goes on and what comes back wait for nothing of each other."""
Microbatch = tuple[torch.Tensor, ...]
Loss = Callable[..., torch.Tensor]


@final
class StepRun:
    """What one step knows: the microbatches, what is kept of them, what is on its way."""

    def __init__(
        self,
        stages: Sequence[Stage],
        known: KnownActivations,
        microbatches: int,
        seed: int,
        *,
        inputs: Sequence[Microbatch],
        targets: Sequence[Microbatch] = (),
        loss: Loss | None = None,
        scale: float = 1.0,
    ) -> None:
        self._stages, self._known, self._microbatches, self._seed = stages, known, microbatches, seed
        self._inputs, self._targets, self._loss, self._scale = inputs, targets, loss, scale
        self._here = [is_here(stage.mesh) for stage in stages]
        self._kept: dict[tuple[int, int], KeptMicrobatch] = {}
        self._arriving: dict[Entry, tuple[Tensor | None, ...]] = {}
        self._sent: dict[Entry, tuple[Tensor, ...]] = {}
        self.results: dict[int, tuple[Tensor, ...]] = {}
        """What the last stage gave for each microbatch: its loss, or its outputs."""

    def do(self, order: Sequence[Entry]) -> None:
        """Does the entries of this process, and waits until all that it sends has gone."""
        mine = [entry for entry in order if self._here[entry.stage]]
        stages = [self._stages[number] for number in sorted({entry.stage for entry in mine})]
        for stage in stages:
            stage.begin()
        try:
            self._walk(mine)
        except BaseException:
            for stage in stages:
                stage.abandon()
            raise
        for stage in stages:
            stage.settle()

    def _walk(self, mine: Sequence[Entry]) -> None:
        split = {(each.stage, each.microbatch) for each in mine if each.work is Work.WEIGHT}
        last = {entry.stage: entry for entry in mine}
        for number, entry in enumerate(mine):
            for later in mine[number : number + AHEAD]:
                self._expect(later, now=later is entry)
            match entry.work:
                case Work.FORWARD:
                    self._forward(entry)
                case Work.BACKWARD:
                    self._backward(entry, split=(entry.stage, entry.microbatch) in split)
                case Work.WEIGHT:
                    kept = self._kept.pop((entry.stage, entry.microbatch))
                    self._stages[entry.stage].weight_gradients(kept)
            if entry is last[entry.stage]:
                self._stages[entry.stage].end()
        for entry in list(self._sent):
            self._gone(entry)

    def _expect(self, entry: Entry, *, now: bool) -> None:
        """Begins to receive what an entry needs of others, once it is known what that is."""
        if entry in self._arriving:
            return
        forward = entry.work is Work.FORWARD
        giver = entry.stage - 1 if forward else entry.stage + 1
        if entry.work is Work.WEIGHT or not 0 <= giver < len(self._stages) or self._here[giver]:
            return
        source = self._stages[giver if forward else entry.stage]
        passed = self._known.awaited(source) if now else self._known.passed(source)
        if passed is not None:
            absent = [each.absent(self._stages[giver].mesh) for each in passed.tensors]
            self._arriving[entry] = self._passed_on(absent, passed, giver, entry)

    def _passed_on(
        self, tensors: Sequence[Tensor | None], passed: StageOutputs, giver: int, entry: Entry
    ) -> tuple[Tensor | None, ...]:
        """What a stage gives to the stage of an entry, on its way there; of what comes back, only gradients."""
        forward = entry.work is Work.FORWARD
        mesh = self._stages[entry.stage].mesh
        found: list[Tensor | None] = []
        for number, (each, x) in enumerate(zip(passed.tensors, tensors, strict=True)):
            if x is None or not (forward or each.requires_grad):
                found.append(None)
                continue
            tag = (entry.stage * self._microbatches + entry.microbatch) * len(passed.tensors) + number
            if self._stages[giver].mesh != mesh:
                x = public(passed_on(x, each.layout(mesh), "pipeline", FORWARD if forward else BACKWARD, tag))
            found.append(x)
        return tuple(found)

    def _hand_over(self, tensors: Sequence[Tensor | None], passed: StageOutputs, giver: int, entry: Entry) -> None:
        """Gives an entry what it needs, here or elsewhere."""
        found = self._passed_on(tensors, passed, giver, entry)
        if self._here[entry.stage]:
            self._arriving[entry] = found
        else:
            self._sent[entry] = tuple(x for x in found if x is not None)

    def _gone(self, entry: Entry) -> None:
        """Waits until what an entry elsewhere needs has gone."""
        for x in self._sent.pop(entry, ()):
            x.wait()

    def _forward(self, entry: Entry) -> None:
        stage = self._stages[entry.stage]
        inputs = self._begun(entry)
        with self._random(entry):
            outputs, several = stage.outputs(inputs)
            last = stage is self._stages[-1]
            if last and self._loss is not None:
                outputs = (self._loss_of(outputs, several, entry.microbatch),)
        if torch.is_grad_enabled():
            self._kept[entry.stage, entry.microbatch] = KeptMicrobatch(inputs, outputs)
        given = tuple(public(each.detach()) for each in outputs)
        passed = StageOutputs(tuple(Activation.of(public(each)) for each in outputs), several)
        self._known.learn(stage, passed, entry.microbatch)
        if last:
            self.results[entry.microbatch] = given
        else:
            self._hand_over(given, passed, entry.stage, Entry(Work.FORWARD, entry.stage + 1, entry.microbatch))

    def _begun(self, entry: Entry) -> list[Tensor]:
        """What comes into a stage, as the beginning of a graph of its own."""
        if not entry.stage:
            return [public(x) for x in self._inputs[entry.microbatch]]
        passed = self._known.awaited(self._stages[entry.stage - 1])
        inputs = []
        for x, each in zip(self._arriving.pop(entry), passed.tensors, strict=True):
            assert x is not None
            begun = public(x.detach())
            inputs.append(begun.requires_grad_() if each.requires_grad and torch.is_grad_enabled() else begun)
        return inputs

    def _loss_of(self, outputs: Sequence[torch.Tensor], several: bool, microbatch: int) -> torch.Tensor:
        assert self._loss is not None
        first = (tuple(outputs),) if several else tuple(outputs)
        found = self._loss(*first, *(self._targets[microbatch] if self._targets else ()))
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"{found!r}"
            raise TypeError(f"the loss of a pipeline is one number for each microbatch, but it gave {what}")
        return settled(found.reshape(()), self._stages[-1].mesh, "pipeline")

    def _backward(self, entry: Entry, *, split: bool) -> None:
        stage, at = self._stages[entry.stage], (entry.stage, entry.microbatch)
        kept = self._kept[at] if split else self._kept.pop(at)
        if stage is self._stages[-1]:
            gradients: tuple[torch.Tensor | None, ...] = (torch.full_like(kept.outputs[0], self._scale),)
        else:
            gradients = self._arriving.pop(entry)
            self._gone(Entry(Work.FORWARD, entry.stage + 1, entry.microbatch))  # it came back, so it has gone
        found = stage.backward(kept, gradients, split=split)
        if entry.stage:
            passed = self._known.awaited(self._stages[entry.stage - 1])
            before = Entry(Work.BACKWARD, entry.stage - 1, entry.microbatch)
            self._hand_over(found, passed, entry.stage, before)

    @contextmanager
    def _random(self, entry: Entry) -> Iterator[None]:
        """Random numbers that depend on the step, the stage and the microbatch: not on who does what when."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(self._seed + entry.stage * self._microbatches + entry.microbatch)
            yield
