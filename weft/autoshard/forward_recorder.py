"""`ForwardRecorder`: looks on while a model runs on paper, and takes down its ops, each with the module that it came from."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..caches import cached
from ..engine.op_kind import kind_of
from ..paper.known_calls import KnownOp, call_key, known_call
from ..paper.values import Values, no_value, reads_values
from ..paper.work import tensors_in, work_of
from ..rules.call import Args, BoundCall, Kwargs, Op
from ..rules.registry import rule_for
from ..watch.call_site import call_site
from .program import RecordedOp, RecordedProgram, RecordedValue
from .special_ops import SPECIAL, SpecialFactors, called_by

__all__ = ["ForwardRecorder"]

T = TypeVar("T")


_SMALL = 1 << 16
"""Elements up to which values are worked out."""


class _SeenCall(NamedTuple):
    """What is known of a call when such a one comes again."""

    call: KnownOp | None
    factors: SpecialFactors | None
    flops: int
    is_view: bool


@final
class ForwardRecorder(TorchDispatchMode):
    """Looks on while a model runs on paper."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.program = RecordedProgram()
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []
        """Tensors are known by their ids, so they are kept."""
        self._papers: dict[int, torch.Tensor] = {}
        """Tensors without memory for those that have some."""
        self._path: list[str] = [""]
        self._known: dict[object, _SeenCall] = {}
        self._values = Values()
        self._failed = ""

    @property
    def place(self) -> str:
        """The module that runs, in words; after an error, the innermost that it came through."""
        return f"The module {self._failed!r}" if self._failed else "The model"

    def know(self, x: torch.Tensor, **known: object) -> RecordedValue:
        """Gives a tensor a new value."""
        value = self.program.add(x, **known)
        self._numbers[id(x)] = value.number
        self._alive.append(x)
        return value

    def known(self, x: torch.Tensor) -> RecordedValue | None:
        """The value of a tensor."""
        number = self._numbers.get(id(x))
        return None if number is None else self.program.values[number]

    @contextmanager
    def following(self, model: torch.nn.Module) -> Iterator[None]:
        """Keeps which module of a model runs."""
        hooks = []
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entering(name)))
            hooks.append(module.register_forward_hook(self._leaving(name), always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(_: torch.nn.Module, args: Args) -> None:
            self._path.append(name)
            if args and isinstance(args[0], torch.Tensor) and id(args[0]) in self._numbers:
                self.program.module_inputs.setdefault(name, self._numbers[id(args[0])])

        return enter

    def _leaving(self, name: str) -> Callable[..., None]:
        def leave(_: torch.nn.Module, __: Args, result: object) -> None:
            if sys.exc_info()[0] is not None:
                self._failed = self._failed or self._path[-1]
            self._path.pop()
            if isinstance(result, torch.Tensor) and id(result) in self._numbers:
                self.program.module_outputs.setdefault(name, self._numbers[id(result)])

        return leave

    def __torch_dispatch__(
        self, func: Op, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        args, kwargs = self._without_memory(args), {k: self._without_memory(x) for k, x in (kwargs or {}).items()}
        if reads_values(func, args):
            return self._read(func, args, kwargs)
        special = SPECIAL.get(func)
        if special is None and rule_for(func) is None and kind_of(func).composite:
            with self:
                return func.decompose(*args, **kwargs)
        key = call_key(func, args, kwargs)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            assert known.call is not None
            result = known.call.again(func, args, kwargs)
            self._note(func, args, kwargs, result, known)
            return result
        result = func(*args, **kwargs) if special is None or special.result is None else special.result(args, kwargs)
        work = work_of(func, args, kwargs, result)
        again = known_call(func, args, kwargs, result, work)
        seen = _SeenCall(again, *_said(func, args, kwargs, 0 if work is None else work.flops), work is None)
        if key is not None and again is not None:
            self._known[key] = seen
        self._note(func, args, kwargs, result, seen)
        return result

    def _read(self, func: Op, args: Args, kwargs: Kwargs) -> object:
        """What a call reads of tensors whose values are known."""
        if not self._values.of_all(tensors_in(args, kwargs)):
            raise no_value(str(func), str(call_site()))
        return self._values.computed(func, args, kwargs)

    def _without_memory(self, x: T) -> T:
        """Arguments on paper: what has memory would not go with what has none."""
        if isinstance(x, torch.Tensor) and not x.is_meta:
            known = self._papers.get(id(x))
            if known is None:
                known = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
                self._papers[id(x)] = known
                self._values.know(known, x)
                self._alive.append(x)
            return known  # type: ignore[return-value]
        if isinstance(x, torch.device):
            return torch.device("meta")  # type: ignore[return-value]
        if isinstance(x, (list, tuple)):
            return type(x)([self._without_memory(each) for each in x])
        return x

    def _know_value(self, func: Op, args: Args, kwargs: Kwargs, result: object) -> None:
        """Works out what follows from known values, such as which words of the batch count; of few elements only."""
        given = tensors_in(args, kwargs)
        if not isinstance(result, torch.Tensor) or func._schema.is_mutable or _is_open(func):
            return
        if all(x.numel() <= _SMALL for x in (result, *given)) and self._values.of_all(given):
            found = self._values.computed(func, args, kwargs)
            if isinstance(found, torch.Tensor):
                self._values.know(result, found)

    def _note(self, func: Op, args: Args, kwargs: Kwargs, result: object, seen: _SeenCall) -> None:
        self._know_value(func, args, kwargs, result)
        made = tensors_in(result)
        values = [self.known(x) or self.know(x, kind="constant") for x in tensors_in(args, kwargs)]
        if _makes_anew(func) or all(value.kind == "constant" for value in values):
            for x in made:
                self.know(x, kind="constant")
            return
        number = len(self.program.ops)
        needs_grad = any(value.needs_grad for value in values)
        is_weight = seen.is_view and values[0].is_weight
        outputs = [
            self.know(
                x,
                needs_grad=needs_grad and x.is_floating_point(),
                is_weight=is_weight,
                producer=number,
                output=at,
            ).number
            for at, x in enumerate(made)
        ]
        for at, value in enumerate(values):
            value.users.append((number, at))
        inputs = tuple(value.number for value in values)
        op = RecordedOp(number, func, self._path[-1], inputs, tuple(outputs), seen.factors, seen.flops, seen.is_view)
        if called_by(func) is not None:
            op.call = BoundCall(func, args, kwargs)
        self.program.ops.append(op)


@cached(8192)
def _is_open(func: Op) -> bool:
    """Whether an op gives what nobody can tell: random numbers, or memory as it is."""
    return torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name


@cached(8192)
def _makes_anew(func: Op) -> bool:
    """Whether an op reads no values of the tensors that it is given: `new_zeros`, `ones_like`."""
    name = func._schema.name
    return name.startswith("aten::new_") or name.endswith("_like")


def _said(func: Op, args: Args, kwargs: Kwargs, counted: int) -> tuple[SpecialFactors | None, int]:
    """The factors of a call, and its operations."""
    call = BoundCall(func, args, kwargs)
    factors = _factors(func, call)
    return factors, _flops(call, factors, counted)


def _factors(func: Op, call: BoundCall) -> SpecialFactors | None:
    special = SPECIAL.get(func)
    if special is not None:
        return special.factors(call)
    rule = rule_for(func)
    found = None if rule is None else rule.factors(call)
    return None if found is None else SpecialFactors(found)


def _flops(call: BoundCall, known: SpecialFactors | None, counted: int) -> int:
    """The operations of a call: what torch counts, or of a product that torch takes apart, what its factors say."""
    special = SPECIAL.get(call.func)
    if special is not None and special.flops is not None:
        return special.flops(call)
    if counted or known is None or known.factors.linear != "each" or len(known.factors.inputs) < 2:
        return counted
    factors = known.factors
    return 2 * math.prod(factors.sizes.values()) if any(map(factors.lacking, factors.sizes)) else 0
