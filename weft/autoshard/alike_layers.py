"""Layers that repeat: modules of a row with the same ops on the same shapes are laid out alike, so they are solved once."""

from __future__ import annotations

from collections.abc import Iterator

from .program import RecordedOp, RecordedProgram

__all__ = ["Repeats", "repeats_of"]


class Repeats:
    """Which op and which value stands for which, of those that are alike.

    >>> import torch
    >>> from weft.autoshard.recording import record
    >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    >>> program, _ = record(torch.nn.Sequential(block(), block(), block()), torch.ones(2, 4))
    >>> repeats_of(program).ops
    [2, 3, 2, 3, 2, 3]
    """

    def __init__(self, program: RecordedProgram) -> None:
        self.ops = list(range(len(program.ops)))
        self.values = list(range(len(program.values)))
        self._program = program

    def layer_is(self, layer: str, first: str, ops: list[RecordedOp], like: list[RecordedOp]) -> None:
        """Says that a layer is like another."""
        for op, other in zip(ops, like, strict=True):
            self.ops[op.number] = self.ops[other.number]
            for mine, its in zip(op.outputs, other.outputs, strict=True):
                self.values[mine] = self.values[its]
        names = self._program.names
        for name, number in names.items():
            if name.startswith(f"{layer}.") and f"{first}.{name[len(layer) + 1 :]}" in names:
                self.values[number] = self.values[names[f"{first}.{name[len(layer) + 1 :]}"]]


def repeats_of(program: RecordedProgram) -> Repeats:
    """The layers of a program that are like others; one in the middle stands for all: it has layers around it."""
    found = Repeats(program)
    # Outer layers first: what is inside a layer that repeats is known by the layer that it repeats.
    for layers in _rows(program.layers):
        known: dict[object, list[tuple[str, list[RecordedOp]]]] = {}
        for layer in layers:
            ops = [op for op in program.ops if op.path == layer or op.path.startswith(f"{layer}.")]
            if not ops or any(found.ops[op.number] != op.number for op in ops):
                continue
            signature = _signature(program, layer, ops)
            known.setdefault(signature, []).append((layer, ops))
        for alike in known.values():
            middle, like = alike[len(alike) // 2]
            for layer, ops in alike:
                if layer != middle:
                    found.layer_is(layer, middle, ops, like)
    return found


def _rows(layers: list[str]) -> Iterator[list[str]]:
    rows: dict[str, list[str]] = {}
    for layer in layers:
        rows.setdefault(layer.rpartition(".")[0], []).append(layer)
    yield from sorted(rows.values(), key=lambda row: row[0].count("."))


def _signature(program: RecordedProgram, layer: str, ops: list[RecordedOp]) -> tuple[object, ...]:
    """What a layer does: its ops in order, and where inside the layer their inputs come from."""
    inside = {op.number: at for at, op in enumerate(ops)}

    def origin(number: int) -> object:
        value = program.values[number]
        if value.producer in inside:
            return inside[value.producer], value.output
        if value.kind == "parameter" and (value.name or "").startswith(f"{layer}."):
            return (value.name or "")[len(layer) :], value.shape, value.dtype, value.needs_grad
        return value.kind == "constant", value.shape, value.dtype

    return tuple((op.path[len(layer) :], op.signature, tuple(map(origin, op.inputs)), op.flops) for op in ops)
