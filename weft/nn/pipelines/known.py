"""`KnownActivations`: what stages pass on for inputs of one kind, written down by the first process that sees it, for the others."""

from __future__ import annotations

from typing import cast, final

from ...runtime.processes import world
from ...runtime.processes.agreement.notices import notice, write_notice
from ...runtime.processes.mesh_processes import owners_of
from .activation import StageOutputs
from .stage import Stage

__all__ = ["KnownActivations"]


@final
class KnownActivations:
    """What is known of a pipeline's activations for inputs of one kind. The first microbatch of the first step tells."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._passed: dict[int, StageOutputs] = {}
        self._with_gradient: dict[int, tuple[str, ...]] = {}

    def passed(self, stage: Stage) -> StageOutputs | None:
        """What a stage passes on, if that is known here."""
        return self._passed.get(stage.number)

    def awaited(self, stage: Stage) -> StageOutputs:
        """What a stage passes on, as a process that has seen it has written down."""
        if stage.number not in self._passed:
            words = notice(f"{self._name}/passed/{stage.number}", owners_of(stage.mesh)[0])
            self._passed[stage.number] = StageOutputs.from_json(words)
        return self._passed[stage.number]

    def learn(self, stage: Stage, passed: StageOutputs, microbatch: int) -> None:
        """Keeps what a stage has passed on; raises if it was something else for an earlier microbatch."""
        known = self._passed.setdefault(stage.number, passed)
        if known is passed:
            self._write(stage, "passed", passed.to_json())
        elif known != passed:
            raise ValueError(
                f"stage {stage.number} gave {passed} for microbatch {microbatch}, but {known} before: "
                "all microbatches of a step have the same sizes, dtypes and layouts"
            )

    def learn_gradients(self, stage: Stage) -> None:
        """Keeps which parameters of a stage have a gradient, the first time."""
        if stage.number not in self._with_gradient:
            names = [name for name, x in stage.module.named_parameters() if x.grad is not None]
            self._with_gradient[stage.number] = tuple(names)
            self._write(stage, "gradients", names)

    def with_gradient(self, stage: Stage) -> tuple[str, ...]:
        """The parameters of a stage that have a gradient after a step, as one of its processes has written down."""
        if stage.number not in self._with_gradient:
            words = notice(f"{self._name}/gradients/{stage.number}", owners_of(stage.mesh)[0])
            self._with_gradient[stage.number] = tuple(cast("list[str]", words))
        return self._with_gradient[stage.number]

    def _write(self, stage: Stage, what: str, words: object) -> None:
        here = world.current()
        if here.count > 1 and not here.is_fake and owners_of(stage.mesh)[0] == here.process:
            write_notice(f"{self._name}/{what}/{stage.number}", words)
