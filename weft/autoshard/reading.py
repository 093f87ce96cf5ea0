"""What a solution says of a program: layouts of parameters and of the batch, and where activations have to be brought."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from ..sharding.layout import Layout
from .boundaries import ModuleBoundaries
from .modelling import Landing, LayoutModel
from .problem import Assignment
from .program import RecordedValue
from .ways import OpWay

__all__ = ["Pin", "Pins", "Reading"]


@dataclass(frozen=True, slots=True)
class Pin:
    """Where an activation is brought."""

    layout: Layout
    shape: tuple[int, ...]
    seconds: float
    """Of the movement, and of that of its gradient back."""
    nbytes: int
    """What a device holds of it there."""


@dataclass(slots=True)
class Pins:
    """Modules, and where their first argument or their result is brought."""

    inputs: dict[str, Pin] = field(default_factory=dict)
    outputs: dict[str, Pin] = field(default_factory=dict)


@final
class Reading:
    """A solution of a model, in the words of the program."""

    def __init__(self, model: LayoutModel, choice: Assignment) -> None:
        self.model, self.choice, self.program = model, choice, model.program
        self._modules = ModuleBoundaries(model.program)

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
        return self.way(value.producer).outputs[value.output]

    def landing(self, value: RecordedValue) -> Landing | None:
        """Where a value is brought for all that take it; None where only one op does."""
        first = self.model.repeats.values[value.number]
        landings = self.model.landings.get(first)
        return None if landings is None else landings[self.choice[self.model.landing_variables[first]]]

    def way(self, number: int) -> OpWay:
        """The way in which an op is computed."""
        op = self.model.repeats.ops[number]
        return self.model.ways[op][self.choice[self.model.op_variables[op]]]

    def pins(self) -> Pins:
        """Where activations move in the solution: the modules there have to be told."""
        pins = Pins()
        for value in self.program.values:
            if value.kind != "activation":
                continue
            made, landing = self.made(value), self.landing(value)
            if landing is not None:  # what an op brings for itself beyond that comes again in the backward pass
                if made.splits != landing.layout.splits:
                    self._pin_result(value, self._pin(value, landing.layout, landing.gradient), pins)
                continue
            for user, at in value.users:
                way = self.way(user)
                need = way.inputs[at]
                if need.splits != made.splits and not need.pending:
                    self._pin_use(value, user, self._pin(value, need, way.gradients[at]), pins)
        return pins

    def _pin(self, value: RecordedValue, layout: Layout, gradient: Layout) -> Pin:
        made, prices = self.made(value), self.model.prices
        seconds = prices.movement(made, layout, value)
        if value.needs_grad:
            seconds += prices.movement(gradient, made.resolved, value)
        return Pin(layout, value.shape, seconds, prices.held(layout, value))

    def _pin_result(self, value: RecordedValue, pin: Pin, pins: Pins) -> None:
        makers, takers = self._modules.makers(value), self._modules.takers(value)
        if makers:
            pins.outputs[max(makers, key=_depth)] = pin
            return
        for name in takers:
            if not any(name.startswith(f"{other}.") for other in takers):
                pins.inputs[name] = pin

    def _pin_use(self, value: RecordedValue, user: int, pin: Pin, pins: Pins) -> None:
        around = self._modules.takers_around(value, self.program.ops[user])
        if around:
            pins.inputs[max(around, key=_depth)] = pin
        elif self._modules.makers(value):
            self._pin_result(value, pin, pins)


def _depth(name: str) -> int:
    return name.count(".")
