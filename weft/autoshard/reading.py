"""What a solution says of a program: layouts of parameters and of the batch, and where activations have to be brought."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from ..sharding.layout import Layout
from .modelling import Model
from .problem import Assignment
from .recording import RecordedValue

__all__ = ["Pins", "Reading"]


@dataclass(slots=True)
class Pins:
    """Modules, and the layouts to which their first argument or their result is brought."""

    inputs: dict[str, Layout] = field(default_factory=dict)
    outputs: dict[str, Layout] = field(default_factory=dict)


@final
class Reading:
    """A solution of a model, in the words of the program."""

    def __init__(self, model: Model, choice: Assignment) -> None:
        self.model, self.choice, self.program = model, choice, model.program

    def layout(self, number: int) -> Layout:
        """The layout of a parameter or an input."""
        first = self.model.repeats.values[number]
        return self.model.layouts[first][self.choice[self.model.layout_variables[first]]]

    def parameters(self) -> dict[str, Layout]:
        """The layout of each name."""
        return {name: self.layout(number) for name, number in self.program.names.items()}

    def made(self, value: RecordedValue) -> Layout:
        """The layout in which a value is made."""
        if value.producer is None:
            return self.layout(value.number)
        op = self.model.repeats.ops[value.producer]
        return self.model.ways[op][self.choice[self.model.op_variables[op]]].outputs[value.output]

    def lies(self, value: RecordedValue) -> Layout:
        """The layout to which a value is brought for all that take it."""
        first = self.model.repeats.values[value.number]
        landings = self.model.landings.get(first)
        if landings is None:
            return self.made(value)
        return landings[self.choice[self.model.landing_variables[first]]].layout

    def needed(self, user: int, at: int) -> Layout:
        """The layout in which an op takes one of its inputs."""
        op = self.model.repeats.ops[user]
        return self.model.ways[op][self.choice[self.model.op_variables[op]]].inputs[at]

    def pins(self) -> Pins:
        """Where activations move in the solution: the modules there have to be told."""
        pins = Pins()
        for value in self.program.values:
            if value.kind != "activation":
                continue
            made, lies = self.made(value), self.lies(value)
            if lies is not made and made.splits != lies.splits:
                self._pin_result(value, lies, pins)
            for user, at in value.users:
                need = self.needed(user, at)
                if need is not lies and need.splits != lies.splits and not need.pending:
                    self._pin_use(value, user, need, pins)
        return pins

    def _pin_result(self, value: RecordedValue, layout: Layout, pins: Pins) -> None:
        makers = [name for name, number in self.program.module_outputs.items() if number == value.number and name]
        if makers:
            pins.outputs[max(makers, key=lambda name: name.count("."))] = layout
            return
        takers = [name for name, number in self.program.module_inputs.items() if number == value.number and name]
        for name in takers:
            if not any(name.startswith(f"{other}.") for other in takers):
                pins.inputs[name] = layout

    def _pin_use(self, value: RecordedValue, user: int, layout: Layout, pins: Pins) -> None:
        path = self.program.ops[user].path
        around = [
            name
            for name, number in self.program.module_inputs.items()
            if number == value.number and name and (path == name or path.startswith(f"{name}."))
        ]
        if around:
            pins.inputs[max(around, key=lambda name: name.count("."))] = layout
        elif len(value.users) == 1:
            self._pin_result(value, layout, pins)
