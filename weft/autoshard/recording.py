"""`record`: the forward pass of a model as a list of ops on values, each with the module that it came from.

Nothing is computed: the model is copied to paper and called once. Ops come as their rules know them (a linear layer is one op),
because gradients follow from the rules too: what the forward pass splits, the backward pass adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from ..engine.sharded import ShardedTensor
from ..paper.taking import Taken, taken
from .forward_recorder import ForwardRecorder
from .program import RecordedProgram
from .trial import thinking

__all__ = ["Batch", "record"]

Batch = torch.Tensor | Sequence[object] | Mapping[str, object]
"""What a model is called with: one tensor, arguments, or arguments by name."""


def record(
    model: torch.nn.Module, batch: Batch, loss: Callable[[object], torch.Tensor] | None = None
) -> tuple[RecordedProgram, object]:
    """The ops of a model on a batch, and the batch with values in place of its tensors.

    >>> program, _ = record(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), torch.ones(2, 4))
    >>> [(op.path, str(op.func)) for op in program.ops]
    [('0', 'aten.linear.default'), ('1', 'aten.relu.default')]
    """
    given = _TakenWhole()
    with torch.no_grad():
        here, data = taken((model, batch), given)
    recorder = ForwardRecorder()
    for name, parameter in here.named_parameters(remove_duplicate=False):
        value = recorder.known(parameter)
        if value is None:
            value = recorder.know(
                parameter, name=name, kind="parameter", needs_grad=parameter.requires_grad, is_weight=True
            )
        recorder.program.names[name] = value.number
    for buffer in here.buffers():
        recorder.know(buffer, kind="constant")
    inputs = _numbered(data, recorder)
    with thinking(), torch.inference_mode(), recorder.following(here), recorder:
        try:
            result = _called(here, data)
        except Exception as error:
            error.add_note(f"{recorder.place} was called on tensors without values, shaped as the example batch says.")
            raise
        if loss is not None:
            loss(result)
    recorder.program.layers = list(_layers(here))
    return recorder.program, inputs


class _TakenWhole(Taken):
    """What is taken to paper, sharded tensors as plain ones: where they lie is to be chosen."""

    def _laid(self, x: ShardedTensor) -> torch.Tensor:
        return torch.empty(tuple(x.shape), dtype=x.dtype, device="meta")


def _called(model: torch.nn.Module, batch: object) -> object:
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (list, tuple)):
        return model(*batch)
    return model(batch)


def _numbered(batch: object, recorder: ForwardRecorder, path: str = "batch") -> object:
    """The batch with the numbers of values in place of its tensors."""
    if isinstance(batch, torch.Tensor):
        return (recorder.known(batch) or recorder.know(batch, name=path, kind="input")).number
    if isinstance(batch, Mapping):
        return {name: _numbered(each, recorder, f"{path}[{name!r}]") for name, each in batch.items()}
    if isinstance(batch, (list, tuple)):
        return tuple(_numbered(each, recorder, f"{path}[{at}]") for at, each in enumerate(batch))
    return None


def _layers(model: torch.nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            for number, child in module.named_children():
                if number.isdigit() and next(child.children(), None) is not None:
                    yield f"{name}.{number}" if name else number
