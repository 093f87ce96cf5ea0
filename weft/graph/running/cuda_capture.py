"""One launch for a step: what a model does on a GPU is recorded as a CUDA graph, and replayed.

The first run with inputs of some shapes runs the function itself, which also loads every kernel. The second records it;
from then on a run is one launch. Inputs that lie where they lay the last time are read there; others are copied into
memory of the recording. Outputs are copied out of it, so that the next run leaves them alone.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

import torch

from ...runtime.accelerator_kernels import few_launches, is_watched
from ...runtime.machine import torch_device
from ...runtime.memory.accelerator import address
from ..lowering.codegen import Function
from ..lowering.program import Program
from ..ops.indexing import NONZERO
from ..passes.scheduling import devices_of
from ..recording.op import SIZE, SIZES, Kind, Op, RecordedCall

if TYPE_CHECKING:
    from ..recording.graph import Graph

__all__ = ["RECORDED_ON", "Recorded", "recorded", "why_not", "without_warning"]

Key: TypeAlias = tuple[object, ...]
Outputs: TypeAlias = tuple[torch.Tensor, ...]

_MOST = 16
"""Sets of shapes for which a model keeps recordings."""

RECORDED_ON = "cuda"
"""The kind of torch devices that record."""

_WAITS: frozenset[Op] = frozenset({NONZERO, SIZES, SIZE})
"""What makes the host wait for the GPU, or copies from its memory: neither can be recorded."""


def why_not(graph: Graph) -> str:
    """Why a graph cannot be recorded; nothing if it can.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("double", input_types=[TensorType("float32", ["n"])]) as graph:
    ...     graph.output(graph.inputs[0] * 2)
    >>> why_not(graph)
    'it needs all values on one GPU, but they are on cpu'
    """
    calls: list[RecordedCall] = [node.meta["call"] for node in graph.nodes]
    refs = {value.type.device for value in graph.arguments}.union(*map(devices_of, calls))
    devices = {torch_device(ref.to_device()) for ref in refs}
    if len(devices) != 1 or next(iter(devices)).type != RECORDED_ON:
        return f"it needs all values on one GPU, but they are on {', '.join(sorted(map(str, devices))) or 'no device'}"
    if all(call.op.kind in (Kind.VIEW, Kind.CONSTANT) for call in calls):
        return "it computes nothing"
    for call in calls:
        if call.op in _WAITS:
            return f"{call.op.name} at {call.where} makes the host wait for the GPU"
        if call.op.opaque and not call.op.pure:
            return f"{call.op.name} at {call.where} is a function of the user's, which may do more than launch kernels"
    return ""


def recorded(
    graph: Graph, program: Program, function: Function, written: frozenset[int], asked: bool | None
) -> Function:
    """A model's function, recorded where it can be; `asked=True` refuses where it cannot, `asked=False` leaves it alone."""
    reason = "cuda_graph=False" if asked is False else why_not(graph)
    if reason and asked:
        raise ValueError(f"graph {graph.name!r} cannot be recorded as a CUDA graph: {reason}")
    if reason:
        return function
    placeholders = program.arguments
    count = len(graph.arguments)
    used = tuple(i for i, node in enumerate(placeholders[:count]) if node.users)
    return Recorded(function, count, len(graph.sizes), used=used, written=written, required=bool(asked))


@dataclass(frozen=True, slots=True)
class _CapturedLaunch:
    """A function as one launch, with the memory of its outputs and of those inputs that are copied to it."""

    launch: torch.cuda.CUDAGraph
    copies: dict[int, torch.Tensor]
    outputs: Outputs

    def run(self, inputs: Sequence[torch.Tensor]) -> Outputs:
        if self.copies:
            torch._foreach_copy_(list(self.copies.values()), [inputs[i] for i in self.copies])
        self.launch.replay()
        results = [torch.empty_like(output) for output in self.outputs]
        if results:
            torch._foreach_copy_(results, list(self.outputs))
        return tuple(results)


@dataclass(slots=True)
class _KnownShapes:
    """What was seen of one set of shapes: the inputs that have not moved since, their addresses, the recording."""

    places: dict[int, int]
    recording: _CapturedLaunch | None = None


@final
class Recorded:
    """A function of tensors on one GPU that is replayed in one launch once it has been seen with inputs of some shapes.

    `inputs` tensors come first, then `sizes` numbers, then tensors that never change. Of the inputs, `used` are looked
    at and `written` are written to; a recording belongs to the very memory that it writes to.
    """

    def __init__(
        self,
        function: Function,
        inputs: int,
        sizes: int,
        *,
        used: Sequence[int],
        written: frozenset[int],
        required: bool,
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._sizes = sizes
        self._written = tuple(i for i in used if i in written)
        self._read = tuple(i for i in used if i not in written)
        self._required = required
        self._refused = False
        self._known: dict[Key, _KnownShapes] = {}
        self._last: torch.cuda.Stream | None = None
        self._lock = threading.Lock()

    @property
    def recordings(self) -> int:
        """For how many sets of shapes there is a recording."""
        return sum(known.recording is not None for known in self._known.values())

    def __call__(self, *arguments: torch.Tensor) -> Outputs:
        """Run the function, as one launch where it is known already."""
        inputs = arguments[: self._inputs]
        if not inputs or not self._can(inputs):
            return self._function(*arguments)
        with self._lock, torch.cuda.device(inputs[0].device):
            stream = torch.cuda.current_stream()
            if self._last is not None and self._last != stream:
                stream.wait_stream(self._last)
            self._last = stream
            return self._run(inputs, arguments)

    def _can(self, inputs: Sequence[torch.Tensor]) -> bool:
        if self._refused or torch.cuda.is_current_stream_capturing() or is_watched():
            return False
        return not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs))

    def _run(self, inputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> Outputs:
        key: Key = (
            *((inputs[i].shape, inputs[i].stride()) for i in (*self._read, *self._written)),
            *(inputs[i].data_ptr() for i in self._written),
            *arguments[self._inputs : self._inputs + self._sizes],
        )
        known = self._known.get(key)
        if known is None:
            return self._first(key, inputs, arguments)
        lying = {i: place for i, place in known.places.items() if address(inputs[i]) == place}
        if known.recording is None or len(lying) < len(known.places):
            # Reading for writing parts a tensor from copies that share its memory, which must not happen in a recording.
            known.places = {i: place for i, place in lying.items() if inputs[i].data_ptr() == place}
            known.recording = None
            known.recording = self._record(known.places, inputs, arguments)
        return self._function(*arguments) if known.recording is None else known.recording.run(inputs)

    def _first(self, key: Key, inputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> Outputs:
        """Run as it is, and note where the inputs lie."""
        while len(self._known) >= _MOST:
            torch.cuda.current_stream().synchronize()  # a recording that is dropped may still run
            self._known.pop(next(iter(self._known)))
        self._known[key] = _KnownShapes({i: inputs[i].data_ptr() for i in self._read})
        with few_launches():
            return self._function(*arguments)

    def _record(
        self, places: dict[int, int], inputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]
    ) -> _CapturedLaunch | None:
        copies = {i: inputs[i].clone() for i in self._read if i not in places}
        launch = torch.cuda.CUDAGraph()
        try:
            with (
                few_launches(),
                without_warning(),
                torch.cuda.graph(launch, stream=torch.cuda.Stream(), capture_error_mode="thread_local"),
            ):
                outputs = self._function(*[copies.get(i, argument) for i, argument in enumerate(arguments)])
                outputs = _apart(outputs, [inputs[i] for i in (*places, *self._written)])
        except RuntimeError as error:
            if self._required:
                raise RuntimeError(f"this model cannot be recorded as a CUDA graph: {error}") from error
            self._refused = True
            return None
        return _CapturedLaunch(launch, copies, outputs)


@contextmanager
def without_warning() -> Iterator[None]:
    """Inside, torch does not mind a recording without a kernel: movements in one memory may leave nothing to do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty", UserWarning)
        yield


def _apart(outputs: Outputs, inputs: Sequence[torch.Tensor]) -> Outputs:
    """The outputs, in memory of their own: what lies in an input's would follow the input elsewhere."""
    storages = {x.untyped_storage()._cdata for x in inputs}
    return tuple(x.clone() if x.untyped_storage()._cdata in storages else x for x in outputs)
