"""`Recorder`: looks on while a program runs on paper, and keeps what a device would do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..caches import cached
from ..devices import CPU, Device
from ..engine.sharded import ShardedTensor
from ..errors import PaperError
from ..rules.call import Args, Kwargs, Op
from ..runtime.holding import holding
from ..runtime.on_paper import is_aside, moved_to, promised_by
from ..watch.comm_log import CommLog, CommRecord
from .known_calls import KnownOp, call_key, known_call
from .ledger import Ledger
from .lines import Line, Lines
from .values import LARGEST, Values, no_value, reads_values
from .work import OpWork, is_view, tensors_in, work_of, written_by

__all__ = ["BEFORE", "Computed", "Event", "MovedBytes", "Recorder", "Waited"]

aten = torch.ops.aten
BEFORE = Line("before the step", False)
_META = torch.device("meta")
_GRADIENTS = frozenset({aten.linear_backward.default, aten.matmul_backward.default})
_SMALL = 1 << 16
"""Elements up to which tensors of the host have their values."""


class Computed(NamedTuple):
    """An op that ran on a device."""

    at: int
    device: Device | None
    op: str
    line: Line
    work: OpWork


class MovedBytes(NamedTuple):
    """A step of communication, and the device that stands for those of its mesh."""

    at: int
    device: Device | None
    line: Line
    record: CommRecord
    promise: int | None
    """The number by which it is waited for later; None: at once."""


class Waited(NamedTuple):
    """The moment at which a device needs what is on its way."""

    at: int
    device: Device | None
    promise: int


Event = Computed | MovedBytes | Waited


@final
class Recorder(TorchDispatchMode):
    """Sees every op on sharded tensors, and every one that runs on what one device holds."""

    def __init__(self, log: CommLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.ledger = Ledger()
        self._values, self._lines = Values(), Lines()
        self._log, self._logged = log, 0
        self._device: Device | None = CPU(0)
        self._backward = -1
        self._is_passing = False
        self._forms: set[object] = set()
        """Of tensors that lie as they do on paper."""
        self._known: dict[object, KnownOp | None] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled on paper, and to make sure of it takes as long as an op

    def __torch_dispatch__(
        self, func: Op, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if is_aside():
            return func(*args, **kwargs)
        if ShardedTensor.final in types:
            return self._on_shards(func, args, kwargs)
        if func in _GRADIENTS:  # of which no device has a kernel: each product is one
            with self:
                return func.decompose(*args, **kwargs)
        return self._on_plain(func, args, kwargs)

    # Ops on sharded tensors are let through: what they run on pieces comes here again.

    def _on_shards(self, func: Op, args: Args, kwargs: Kwargs) -> object:
        if self._is_passing:
            self._is_passing = False
            return NotImplemented
        given = tensors_in(args, kwargs)
        for x in given:
            if isinstance(x, ShardedTensor):
                self._device = x._form.layout.mesh.devices[0]
                if x._form not in self._forms:
                    self._check_here(x, str(func))
        reads = reads_values(func, args)
        if not reads and not self._values.of_all(given):
            return NotImplemented
        found = self._values.computed(func, args, kwargs)
        if reads:
            if found is None:
                raise no_value(str(func), str(self._lines.here()))
            return found
        if not isinstance(found, torch.Tensor) or func._schema.is_mutable:
            return NotImplemented
        self._is_passing = True
        with self:
            result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            self._values.know(result, found)
        return result

    def _check_here(self, x: ShardedTensor, op: str) -> None:
        """A tensor that was made outside does not lie as tensors do on paper."""
        if not x._value.is_made:
            return  # elements that are still to come are not asked for before somebody needs them
        pieces, here = x._value.pieces, holding(x._layout)
        if not pieces or not pieces[0].is_meta or tuple(pieces[0].shape) != here.piece_shape(0, tuple(x.shape)):
            raise PaperError(
                f"{op} at {self._lines.here()} uses a tensor of shape {tuple(x.shape)} that the dry run was not given: "
                "give the model, the optimizer and the batch to weft.dryrun as arguments of the function"
            )
        self._forms.add(x._form)

    def _on_plain(self, func: Op, args: Args, kwargs: Kwargs) -> object:
        key = call_key(func, args, kwargs)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            result = known.again(func, args, kwargs)
            self._note(func, args, kwargs, result, known.work)
            self._follow(func, args, kwargs, result)
            return result
        args, kwargs = self._without_memory(func, args, kwargs)
        given = tensors_in(args, kwargs)
        if not any(x.is_meta for x in given) and (given or kwargs.get("device") != _META):
            return func(*args, **kwargs)
        if reads_values(func, args):
            found = self._values.computed(func, args, kwargs)
            if found is None:
                raise no_value(str(func), str(self._lines.here()))
            return self._with_value(found) if isinstance(found, torch.Tensor) else found
        result = func(*args, **kwargs)
        work = work_of(func, args, kwargs, result)
        if key is not None:
            self._known[key] = known_call(func, args, kwargs, result, work)
        self._note(func, args, kwargs, result, work)
        self._follow(func, args, kwargs, result)
        return result

    def _without_memory(self, func: Op, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """A call whose results are without memory where they are large or on devices; what has some goes with what has none."""
        device = kwargs.get("device")
        tensors = tensors_in(args, kwargs)
        if isinstance(device, torch.device) and device.type != "meta":
            if device.type != "cpu" or _made(func, args) > _SMALL:
                kwargs = {**kwargs, "device": _META}
        elif device is None and not tensors and _made(func, args) > _SMALL:
            kwargs = {**kwargs, "device": _META}
        if any(x.is_meta for x in tensors) and any(not x.is_meta and x.dim() for x in tensors):
            args = tuple([self._meta(x) for x in args])
            kwargs = {name: self._meta(x) for name, x in kwargs.items()}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return args, kwargs

    def _meta(self, x: object) -> object:
        if isinstance(x, torch.Tensor):
            return x if x.is_meta or not x.dim() else self._with_value(x)
        if isinstance(x, (list, tuple)):
            return type(x)([self._meta(each) for each in x])
        return x

    def _with_value(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor without memory whose value is known."""
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
        self.ledger.note(made, self._device, "a value", self._lines.here())
        self._values.know(made, value)
        return made

    def _follow(self, func: Op, args: Args, kwargs: Kwargs, result: object) -> None:
        """Values that follow from those that are known."""
        given = tensors_in(args, kwargs)
        if (
            self._values.of_all(given)
            and (given or not _is_any(func))
            and torch.Tag.nondeterministic_seeded not in func.tags
        ):
            made = tensors_in(result)
            if all(x.numel() <= LARGEST for x in made):
                found = tensors_in(self._values.computed(func, args, kwargs))
                for x, value in zip(made, found, strict=True):
                    self._values.know(x, value)
                return
        if func._schema.is_mutable:
            for x in written_by(func, args, kwargs):
                self._values.forget(x)

    def _note(self, func: Op, args: Args, kwargs: Kwargs, result: object, work: OpWork | None) -> None:
        if torch._C._current_graph_task_id() not in (-1, self._backward):
            self._begin_backward()
        is_quiet = len(self._log.records) == self._logged
        if is_quiet and is_view(func):
            return
        mesh = moved_to()
        if mesh is not None:
            self._device = mesh.devices[0]
        line = self._lines.here()
        if not is_quiet:
            self._note_moves(line)
        op = func._schema.name[6:]
        ledger = self.ledger
        if func is aten._lazy_clone.default:
            ledger.share(result, args[0])  # type: ignore[arg-type]
            return
        given = args[0] if args and type(args[0]) is list else None
        devices = None if given is None else self._devices_of(given)
        if work is not None:
            ledger.now += 1
            for device, share in _shares(given, devices, self._device):
                part = work if share == 1 else OpWork(int(work.flops * share), int(work.nbytes * share), work.dtype)
                self.events.append(Computed(ledger.now, device, op, line, part))
        if func._schema.is_mutable:
            for x in written_by(func, args, kwargs):
                ledger.part(x, op, line)
        kind = None
        if mesh is not None:
            op, kind = "movement", "movements"
        made = (result,) if isinstance(result, torch.Tensor) else tensors_in(result)
        for at, x in enumerate(made):
            device = devices[at] if devices is not None and len(devices) == len(made) else self._device
            ledger.note(x, device, op, line, kind)

    def _devices_of(self, tensors: list[object]) -> list[Device | None] | None:
        """Where the tensors of a list are that lie on several devices, such as the parameters of a pipeline; else None."""
        found = [self.ledger.device_of(x, self._device) for x in tensors if isinstance(x, torch.Tensor)]
        return found if len(found) == len(tensors) and len(set(found)) > 1 else None

    def _note_moves(self, line: Line) -> None:
        for record in self._log.records[self._logged :]:
            self.ledger.now += 1
            self.events.append(MovedBytes(self.ledger.now, self._device, line, record, promised_by()))
        self._logged = len(self._log.records)

    def _begin_backward(self) -> None:
        """When a backward pass begins, what is there for no other reason is there for it."""
        self._backward = torch._C._current_graph_task_id()
        for held in self.ledger.live():
            if held.kind in (None, "movements") and not held.line.is_backward:
                held.kind = "kept for backward"

    def waited(self, promise: int) -> None:
        """Notes that something on its way is needed now."""
        self.ledger.now += 1
        self.events.append(Waited(self.ledger.now, self._device, promise))

    def resized(self, x: torch.Tensor) -> None:
        """Notes that the memory of a tensor has another size."""
        self.ledger.resize(x, self._device, self._lines.here())

    def finish(self) -> None:
        """Keeps what was logged last, after which no op ran."""
        self._note_moves(self._lines.here())

    def at(self, device: Device) -> None:
        """Says which device computes next, where no op on sharded tensors does."""
        self._device = device

    def mark(self, x: torch.Tensor, kind: str) -> None:
        """Says what a tensor is for."""
        if isinstance(x, ShardedTensor) and not x._value.is_made:
            return
        pieces = x._value.pieces if isinstance(x, ShardedTensor) else (x,)
        device = x.mesh.devices[0] if isinstance(x, ShardedTensor) else self._device
        for piece in pieces:
            if piece.is_meta:
                self.ledger.note(piece, device, "given", BEFORE, kind).kind = kind


def _shares(
    given: list[object] | None, devices: Sequence[Device | None] | None, here: Device | None
) -> Iterator[tuple[Device | None, float]]:
    """Which devices compute on a list of tensors, and how much of it; all of it here, where they are on one."""
    if given is None or devices is None:
        yield here, 1
        return
    sizes: dict[Device | None, int] = {}
    for x, device in zip(cast("list[torch.Tensor]", given), devices, strict=True):
        sizes[device] = sizes.get(device, 0) + x.numel()
    total = max(1, sum(sizes.values()))
    for device, size in sizes.items():
        yield device, size / total


@cached(8192)
def _is_any(func: Op) -> bool:
    """Whether what a creation op makes may have any values."""
    return "empty" in func._schema.name


def _made(func: Op, args: Args) -> int:
    """About how many elements a creation op makes."""
    size = args[0] if args else 0
    if isinstance(size, torch.Tensor):
        return size.numel()
    if isinstance(size, (list, tuple)):
        return math.prod([each for each in size if isinstance(each, int)])
    if "arange" not in func._schema.name:
        return 0
    return int(max([x for x in args if isinstance(x, (int, float))], default=0))
