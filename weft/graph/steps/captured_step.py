"""`capture_step`: a whole training step from a plain function, as one object."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, final

import optree
import torch
from torch.optim import Optimizer

from ...engine.sharded import ShardedTensor
from ...runtime.accelerator_kernels import few_launches, is_watched
from ...runtime.memory.accelerator import side_by_side
from ...runtime.memory.lazy_copy import part
from ...runtime.processes import world
from ...watch.policy import policy_now
from ..running import cuda_capture
from .capturable import (
    LearningRates,
    hyperparameters,
    make_capturable,
    why_not_capturable,
    without_warning,
)
from .inputs import Batch, HeldLeaves, flat, flattened, settled
from .recording import Recording, record
from .state import lying, pieces_of, state_of

__all__ = ["CapturedStep", "capture_step"]

LossFunction: TypeAlias = Callable[..., object]
Key: TypeAlias = tuple[object, ...]

_MOST = 16
"""Kinds of batches, or settings of the optimizer, for which a step keeps recordings."""

_WARM = 2
"""Runs before a step is recorded: they load every kernel, and make the optimizer's state."""

_WORTH_IT = 16
"""Replays that make up for a recording."""
_LONGEST_WAIT = 256


def capture_step(
    model: torch.nn.Module,
    optimizer: Optimizer,
    loss_fn: LossFunction,
    *,
    before_update: Callable[[], object] | None = None,
    cuda_graph: bool | None = None,
) -> CapturedStep:
    """A training step as one object: call it with a batch, and it gives the loss.

    `loss_fn(model, *batch)` gives the loss, or a tuple whose first item it is. A step sets gradients to None, runs
    `loss_fn`, goes backward, calls `before_update` (to clip gradients, say), and lets the optimizer step.

    Where everything is on one GPU, the third call with batches of some shapes records the step as a CUDA graph, and later
    ones are one launch. `cuda_graph=True` refuses where that cannot be; `False` leaves it out. Elsewhere it runs as it is.

    >>> import torch, weft
    >>> from weft.graph import capture_step
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 2})
    >>> model = weft.nn.shard_module(torch.nn.Linear(4, 2), mesh, {"weight": weft.P("tp")})
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> step = capture_step(model, optimizer, lambda model, x, y: (model(x) - y).square().mean())
    >>> x, y = weft.shard((torch.ones(6, 4), torch.ones(6, 2)), mesh, weft.P("dp"))
    >>> losses = [step(x, y).item() for _ in range(3)]
    >>> losses[2] < losses[1] < losses[0], step.reason
    (True, 'it needs everything on one GPU, but parameters and batch are on cpu')
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"capture_step takes a torch.nn.Module first, but got {model!r}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"capture_step takes a torch.optim.Optimizer after the model, but got {optimizer!r}")
    for name, function in {"loss_fn": loss_fn, "before_update": before_update or loss_fn}.items():
        if not callable(function):
            raise TypeError(f"capture_step takes a function for {name}, but got {function!r}")
    return CapturedStep(model, optimizer, loss_fn, before_update, cuda_graph)


@dataclass(slots=True)
class _KnownStep:
    """What was seen of one kind of call."""

    runs: int = 0
    """Since there was no recording; after `wait` of them it is recorded."""
    wait: int = _WARM
    recording: Recording | None = None
    replays: int = 0

    def forget(self) -> None:
        """The recording's memory is another's now; where that happens again and again, it is not worth recording at once."""
        self.wait = 0 if self.replays >= _WORTH_IT else min(2 * self.wait + 1, _LONGEST_WAIT)
        self.runs, self.replays, self.recording = 0, 0, None


@final
class CapturedStep:
    """A training step as one object; `capture_step` makes it.

    >>> model = torch.nn.Linear(2, 1)
    >>> step = capture_step(model, torch.optim.SGD(model.parameters()), lambda model, x: model(x).square().sum())
    >>> loss = step(torch.ones(3, 2))
    >>> loss.shape, step.recordings
    (torch.Size([]), 0)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        loss_fn: LossFunction,
        before_update: Callable[[], object] | None,
        cuda_graph: bool | None,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._loss_fn, self._before_update = loss_fn, before_update
        self._asked = cuda_graph
        self._refused = "" if cuda_graph is not False else "cuda_graph=False"
        self._reason = self._refused or "it has not been called yet"
        self._known: dict[Key, _KnownStep] = {}
        self._gpu: _Gpu | None = None
        self._lock = threading.Lock()

    @property
    def recordings(self) -> int:
        """For how many kinds of calls there is a recording."""
        return sum(known.recording is not None for known in self._known.values())

    @property
    def reason(self) -> str:
        """Why the last call was not meant for a recording; nothing if it was."""
        return self._reason

    def __call__(self, *batch: object, **named: object) -> object:
        """One step: the loss, or what `loss_fn` gave, in memory of its own and with nothing pending."""
        given = flat(batch, named)
        modules = list(self._model.modules())
        state = state_of(modules, self._optimizer)
        self._reason = self._refused or self._why_not(given, state)
        if self._reason:
            if self._asked:
                raise ValueError(f"this step cannot be recorded as a CUDA graph: {self._reason}")
            return _copied(self._run(given))
        with self._lock:
            if self._gpu is None:
                self._gpu = _Gpu(self._optimizer, pieces_of(state[0])[0].device)
                state = state_of(modules, self._optimizer)
            with self._gpu.taking_turns():
                return self._on_gpu(self._gpu, given, modules, state)

    def _why_not(self, batch: Batch, state: Sequence[torch.Tensor]) -> str:
        """Why a call cannot be recorded; nothing if it can."""
        if world.current().count > 1:
            return "several processes take part, and what they send each other is not recorded"
        devices = {x.device for x in state[:1]}
        if len(set(map(torch.Tensor.get_device, state))) > 1:
            devices = {x.device for x in state if x.dim()}  # optimizers may count their steps on the host
        devices |= {x.device for x in batch.tensors if isinstance(x, ShardedTensor) or x.device.type != "cpu"}
        if len(devices) != 1 or next(iter(devices)).type != cuda_capture.RECORDED_ON:
            on = ", ".join(sorted(map(str, devices))) or "no device"
            return f"it needs everything on one GPU, but parameters and batch are on {on}"
        if batch.strange:
            return f"the batch has a {batch.strange} in it, which is neither a tensor nor a number, a text or None"
        if any(x.requires_grad for x in batch.tensors):
            return "a tensor of the batch requires a gradient"
        if is_watched() or torch.cuda.is_current_stream_capturing():
            return "somebody traces or records torch's operations already"
        return why_not_capturable(self._optimizer)

    def _on_gpu(self, gpu: _Gpu, batch: Batch, modules: Sequence[torch.nn.Module], state: list[torch.Tensor]) -> object:
        batch = batch.on(gpu.device)
        known = self._find(self._key(gpu, batch, modules, state))
        gpu.rates.update()
        if known.recording is not None and not known.recording.state.stays(state):
            known.forget()
        if known.recording is not None:
            known.replays += 1
            return known.recording.run(batch)
        part(piece for x in state for piece in pieces_of(x))  # while this is the stream that others use
        with gpu.aside():
            if known.runs >= known.wait and not self._refused:
                recording = self._recorded(gpu, batch, modules, state)
                if recording is not None:
                    result = recording.run(batch, is_first=True)
                    known.recording = recording if recording.state.stays(state_of(modules, self._optimizer)) else None
                    if known.recording is None:
                        self._refuse("it keeps a copy of a parameter, or replaces one, so that its memory moves")
                    return result
            known.runs += 1
            with few_launches(), without_warning():
                return _copied(self._run(batch))

    def _key(self, gpu: _Gpu, batch: Batch, modules: Sequence[torch.nn.Module], state: Sequence[torch.Tensor]) -> Key:
        """All that decides what a step does, but the values of tensors."""
        kind = gpu.device.type
        return (
            *batch.key(),
            hyperparameters(self._optimizer),
            tuple(module.training for module in modules),
            tuple(map(torch.Tensor.requires_grad.__get__, state)),  # type: ignore[attr-defined]
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
            policy_now(),
        )

    def _find(self, key: Key) -> _KnownStep:
        known = self._known.get(key)
        if known is None:
            while len(self._known) >= _MOST:
                torch.cuda.current_stream().synchronize()  # a recording that is dropped may still run
                self._known.pop(next(iter(self._known)))
            known = self._known[key] = _KnownStep()
        return known

    def _recorded(
        self, gpu: _Gpu, batch: Batch, modules: Sequence[torch.nn.Module], state: list[torch.Tensor]
    ) -> Recording | None:
        parameters = [x for x in dict.fromkeys(state) if x.requires_grad]
        self._clear()
        there = lying(state)
        try:
            with gpu.rates.as_tensors():
                return record(self._run, batch, there, parameters, gpu.stream, gpu.pool)
        except RuntimeError as error:
            if not there.stays(state_of(modules, self._optimizer)):
                raise RuntimeError(
                    f"recording a training step failed after memory of the model had moved, so that its values are lost: {error}"
                ) from error
            self._refuse(str(error))
            if self._asked:
                raise RuntimeError(f"this step cannot be recorded as a CUDA graph: {error}") from error
            return None

    def _refuse(self, reason: str) -> None:
        self._refused = self._reason = reason

    def _clear(self) -> None:
        self._model.zero_grad(set_to_none=True)
        self._optimizer.zero_grad(set_to_none=True)

    def _run(self, batch: Batch) -> object:
        """The step itself; its results may share memory with the model."""
        positional, named = batch.arguments()
        self._clear()
        with torch.enable_grad():
            result = self._loss_fn(self._model, *positional, **named)
            _loss_of(result).backward()
        if self._before_update is not None:
            self._before_update()
        self._optimizer.step()
        return optree.tree_map(settled, result, none_is_leaf=True)  # type: ignore[arg-type]


@final
class _Gpu:
    """The GPU that steps are recorded on: the stream they are recorded on, and the memory that recordings share."""

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        make_capturable(optimizer, device)
        self.device = device
        self.stream = torch.cuda.Stream()
        self._beside: list[torch.cuda.Stream] = []
        self.pool = torch.cuda.graph_pool_handle()
        self.rates = LearningRates(optimizer, device)
        self._last: torch.cuda.Stream | None = None

    @contextmanager
    def taking_turns(self) -> Iterator[None]:
        """Inside, this is the GPU, and what the call before has begun comes first, on whatever stream it did."""
        with torch.cuda.device(self.device):
            here = torch.cuda.current_stream()
            if self._last is not None and self._last != here:
                here.wait_stream(self._last)
            self._last = here
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, work is on the stream that is recorded: autograd remembers the stream on which it met a parameter.

        What is written down for devices that share the GPU may run at once.
        """
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream), side_by_side(self.stream, self._beside):
            yield
        here.wait_stream(self.stream)


def _copied(result: object) -> object:
    """Results in memory of their own."""
    leaves, tree = flattened(result)
    return optree.tree_unflatten(tree, HeldLeaves.of(leaves, tree, copied=True).leaves)


def _loss_of(result: object) -> torch.Tensor:
    """The loss among what a loss function gave."""
    loss = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"loss_fn(model, *batch) gives the loss, or a tuple whose first item it is, but it gave {result!r}"
        )
    if loss.numel() != 1 or not loss.requires_grad:
        what = "needs no gradient" if loss.numel() == 1 else f"has the shape {tuple(loss.shape)}"
        raise ValueError(f"the loss is one number that depends on the parameters, but the one that loss_fn gave {what}")
    return loss
