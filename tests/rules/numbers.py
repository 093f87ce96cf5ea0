"""Calls of torch's ops that have numbers next to their tensors, and the same calls with other numbers.

What repeats a call knows it by its tensors' forms and its whole numbers, not by its floats: it must not keep these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from weft.rules.call import Args, Kwargs, Op

from .opinfo import _fresh, _run, _samples, op_infos

Given = tuple[object, tuple[object, ...], dict[str, object]]
REFUSED = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AttributeError, AssertionError)
SIZES_FOLLOW = ("upsample", "fractional_max_pool", "histc", "linspace", "logspace")
"""Ops whose results have sizes that follow from numbers: infinite ones are not asked for."""

aten = torch.ops.aten
_NUMBERS = ("number", "float", "Optional[number]", "Optional[float]")
_MOST = 3
"""So many calls of one op are looked at, with numbers at other places."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call of an op on plain tensors, with a float somewhere."""

    func: Op
    args: Args
    kwargs: Kwargs

    def __str__(self) -> str:
        numbers = [x for x in tree_flatten((self.args, self.kwargs))[0] if type(x) in (float, int)]
        return f"{self.func} with {numbers}"

    def with_numbers(self, change: Callable[[float], object]) -> Recorded:
        """The same call with each of its floats changed."""
        args, kwargs = tree_map(lambda x: change(x) if type(x) is float else x, (self.args, self.kwargs))
        return Recorded(self.func, args, kwargs)

    def with_values(self) -> Recorded:
        """The same call with other values in its tensors."""
        args, kwargs = _mapped(_otherwise, (self.args, self.kwargs))
        return Recorded(self.func, args, kwargs)

    def results(self, placed: Callable[[torch.Tensor], torch.Tensor]) -> list[object]:
        """What it gives of tensors that are placed somewhere, and what it leaves in them."""
        args, kwargs = _mapped(placed, (self.args, self.kwargs))
        torch.default_generator.manual_seed(1)
        result = self.func(*args, **kwargs)
        return tree_flatten((result, (args, kwargs) if self.func._schema.is_mutable else ()))[0]


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], given: tuple[Args, Kwargs]) -> tuple[Args, Kwargs]:
    mapped: tuple[Args, Kwargs] = tree_map(lambda x: change(x) if isinstance(x, torch.Tensor) else x, given)
    return mapped


def _otherwise(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 if x.is_floating_point() or x.is_complex() else x.flip(0) if x.dim() else x


def _said_in_full(func: Op, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """A call with its numbers as floats, those too that it leaves to the defaults of the op."""
    said, named = list(args), dict(kwargs)
    for at, argument in enumerate(func._schema.arguments):
        if at < len(said) or argument.name in named:
            is_named = at >= len(said)
            value = named[argument.name] if is_named else said[at]
        elif argument.default_value is None:
            continue
        else:
            is_named, value = argument.kwarg_only or at > len(said), argument.default_value
        if str(argument.type) in _NUMBERS and type(value) is int:
            value = value + 0.5
        if is_named:
            named[argument.name] = value
        else:
            said[at : at + 1] = [value]
    return tuple(said), named


class _Recording(TorchDispatchMode):
    """Keeps the calls that have a float and are of a kind that is new."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[object, ...], Recorded] = {}
        self.counts = Counter[Op]()

    def __torch_dispatch__(
        self, func: Op, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        given = kwargs or {}
        if self.counts[func] < _MOST:
            for call in ((args, given), _said_in_full(func, args, given)):
                self._keep(func, call)
        return func(*args, **given)

    def _keep(self, func: Op, call: tuple[Args, Kwargs]) -> None:
        flat = tree_flatten(call)[0]
        floats = tuple(at for at, x in enumerate(flat) if type(x) is float)
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        key = (func, len(tensors), floats)
        if floats and tensors and key not in self.kept and all(_is_usual(x) for x in tensors):
            self.kept[key] = Recorded(func, *_mapped(lambda x: x.detach().clone(), call))
            self.counts[func] += 1


def _is_usual(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and x.numel() > 0


@cache
def recorded() -> tuple[Recorded, ...]:
    """The calls with floats that samples of the database make, forward and backward, and those of lists of tensors."""
    recording = _Recording()
    for op in op_infos():
        dtype = torch.float64 if torch.float64 in op.supported_dtypes("cpu") else torch.float32  # type: ignore[attr-defined]
        for given in _givens(op, dtype):
            with recording:
                _forward_and_backward(op, given)  # type: ignore[arg-type]
    return (*filter(_is_taken, recording.kept.values()), *_of_lists())


def _is_taken(call: Recorded) -> bool:
    """Whether torch itself takes a call whose numbers were made floats."""
    try:
        call.results(torch.clone)
    except REFUSED:
        return False
    return True


def _givens(op: object, dtype: torch.dtype) -> Iterator[Given]:
    """Some samples of an op: the largest of the first, two with floats, and one with a number for its second tensor."""
    samples = [_given(sample) for sample in islice(_samples(op, dtype), 12)]
    largest = max(samples, key=lambda given: sum(x.numel() for x in _tensors(given)))
    yield largest
    yield from islice((given for given in samples if any(type(x) is float for x in tree_flatten(given)[0])), 2)
    first, args, kwargs = largest
    if args and isinstance(args[0], torch.Tensor):
        yield first, (1.5, *args[1:]), kwargs


def _given(sample: object) -> Given:
    return sample.input, sample.args, sample.kwargs  # type: ignore[attr-defined]


def _tensors(given: object) -> list[torch.Tensor]:
    return [x for x in tree_flatten(given)[0] if isinstance(x, torch.Tensor)]


def _forward_and_backward(op: Callable[..., object], given: Given) -> None:
    try:
        results, leaves = _run(op, tree_map(_fresh, given))
        roots = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
        if roots and leaves:
            torch.autograd.grad(roots, leaves, [torch.ones_like(x) for x in roots], allow_unused=True)
    except REFUSED:
        return  # what torch refuses was recorded as far as it went


def _of_lists() -> Iterator[Recorded]:
    """Calls of the ops on lists of tensors that take numbers, and of the fused steps of optimizers."""
    names = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()}
    for name in sorted(name for name in names if name.startswith(("_foreach_", "_fused_")) and "out" not in name):
        packet, _, overload = name.partition(".")
        func = getattr(getattr(aten, packet), overload or "default")
        kinds = {str(argument.type) for argument in func._schema.arguments}
        if kinds & {"number", "float", "List[number]"}:
            call = _of_list(func)
            if _is_taken(call):
                yield call


def _of_list(func: Op) -> Recorded:
    generator = torch.Generator().manual_seed(0)
    args: list[object] = []
    kwargs: Kwargs = {}
    for argument in func._schema.arguments:
        kind = str(argument.type)
        if kind == "List[Tensor]":
            shapes = ((), ()) if argument.name == "state_steps" else ((4, 6), (5, 3))
            value: object = [torch.rand(s, generator=generator, dtype=torch.float64) + 0.5 for s in shapes]
        elif kind == "List[number]":
            value = [0.5, 1.25]
        elif kind in ("number", "float"):
            value = 0.25
        elif kind == "Tensor":
            value = torch.tensor(0.75, dtype=torch.float64)
        elif kind == "bool":
            value = argument.name == "amsgrad"
        else:
            value = None
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return Recorded(func, tuple(args), {name: value for name, value in kwargs.items() if value is not None})
