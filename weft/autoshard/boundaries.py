"""`ModuleBoundaries`: where activations can be brought somewhere: as the first argument or the result of a module."""

from __future__ import annotations

from typing import final

from .program import RecordedOp, RecordedProgram, RecordedValue

__all__ = ["ModuleBoundaries"]


@final
class ModuleBoundaries:
    """The values that modules take first and give.

    >>> import torch
    >>> from weft.autoshard.recording import record
    >>> program, _ = record(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), torch.ones(2, 4))
    >>> between = program.values[program.ops[0].outputs[0]]
    >>> ModuleBoundaries(program).makers(between), ModuleBoundaries(program).takers(between)
    (['0'], ['1'])
    """

    def __init__(self, program: RecordedProgram) -> None:
        self._makers: dict[int, list[str]] = {}
        self._takers: dict[int, list[str]] = {}
        for known, found in ((program.module_outputs, self._makers), (program.module_inputs, self._takers)):
            for name, number in known.items():
                if name:
                    found.setdefault(number, []).append(name)

    def makers(self, value: RecordedValue) -> list[str]:
        """The modules whose result a value is."""
        return self._makers.get(value.number, [])

    def takers(self, value: RecordedValue) -> list[str]:
        """The modules whose first argument a value is."""
        return self._takers.get(value.number, [])

    def takers_around(self, value: RecordedValue, op: RecordedOp) -> list[str]:
        """The modules whose first argument a value is, and inside which an op is called."""
        return [name for name in self.takers(value) if op.path == name or op.path.startswith(f"{name}.")]

    def can_be_brought(self, value: RecordedValue) -> bool:
        """Whether a value can be brought somewhere for all that take it."""
        return value.kind == "activation" and bool(self.makers(value) or self.takers(value))

    def can_be_brought_for(self, value: RecordedValue, op: RecordedOp) -> bool:
        """Whether a value that one op takes can be brought somewhere for it."""
        return value.kind == "activation" and bool(self.makers(value) or self.takers_around(value, op))
