"""Random programs: lines of torch code that plain tensors and sharded ones both run, and what both of them see.

A program is text. The words in which it differs from plain torch (`given`, `moved`, `seen`, …) mean the obvious on plain
tensors; `PlainWords` and `WeftWords` define them. A step of a program is a row of `STEPS`: it looks at the plain values
that there are so far, and says one line.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

import weft
from weft.runtime.machine import residence
from weft.sharding import DeviceMesh, ReduceOp
from weft.sharding.geometry import box
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

__all__ = ["Program", "difference", "make_program", "shortened"]

SIZES: tuple[dict[str, int], ...] = (
    {"a": 2, "b": 2, "c": 2},
    {"a": 3, "b": 2},
    {"a": 4},
    {"a": 1, "b": 2},
    {"a": 2, "b": 2},
)
KINDS = {
    "SUM": lambda parts: parts.sum(0, dtype=parts.dtype),
    "AVG": lambda parts: parts.mean(0),
    "MAX": lambda parts: parts.amax(0),
    "MIN": lambda parts: parts.amin(0),
    "PROD": lambda parts: parts.prod(0, dtype=parts.dtype),
}
MOST = {torch.bfloat16: 1 << 6, torch.float32: 1 << 20, torch.complex64: 1 << 20, torch.float64: 1 << 40}
"""How large values may become, so that sums in any order agree."""
ROUGH = {torch.bfloat16: 0.1, torch.float32: 1e-3, torch.complex64: 1e-3, torch.float64: 1e-6, torch.complex128: 1e-6}


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers."""
    values = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed))
    if dtype is torch.bool:
        return values > 0
    return (values * (1 + 2j)).to(dtype) if dtype.is_complex else values.to(dtype)


def _whole(seed: int, shape: tuple[int, ...], dtype: torch.dtype, how: str) -> torch.Tensor:
    """Numbers that lie in memory one after the other, or otherwise."""
    if how == "turned":
        return numbers(seed, shape[::-1], dtype).permute(*range(len(shape) - 1, -1, -1))
    if how == "expanded":
        return numbers(seed, shape[1:], dtype).expand(shape)
    if how == "windows":
        return numbers(seed, (sum(shape) + 1,), dtype).as_strided(shape, (1,) * len(shape))
    if how == "part":
        return numbers(seed, tuple(size + 2 for size in shape), dtype)[(slice(1, -1),) * len(shape)]
    if how == "numpy":
        return torch.from_numpy(numbers(seed, shape, dtype).numpy().copy())
    return numbers(seed, shape, dtype)


def _part(seed: int, shape: tuple[int, ...], dtype: torch.dtype, how: str, coords: tuple[int, ...]) -> torch.Tensor:
    """What one device contributes: numbers of its own, the same for all, or one number for all elements."""
    own = 0 if how == "same" else sum(c * 5**i for i, c in enumerate(coords))
    if how == "expanded":
        return numbers(seed + 31 * own, (1,) * len(shape), dtype).expand(shape)
    return numbers(seed + 31 * own, shape, dtype)


def _overlaps(x: torch.Tensor) -> bool:
    places = torch.zeros(x.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        places += (torch.arange(size) * stride).view([-1 if d == dim else 1 for d in range(x.dim())])
    return places.unique().numel() != x.numel()


def _copied(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, where no two elements are one: in one memory, movements keep them."""
    if _overlaps(x):
        return x.clone()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def _exported(x: torch.Tensor, how: str) -> torch.Tensor:
    """A tensor in the memory of another, which nothing else holds any more."""
    if how == "numpy":
        return torch.from_numpy(x.numpy()[...])
    if how == "dlpack":
        return torch.from_dlpack(x)
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def _roughly(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone() if isinstance(x, torch.Tensor) else torch.as_tensor(x)


@dataclass
class PlainWords:
    """What the words of programs mean on plain tensors."""

    sizes: dict[str, int]
    looked: list[object] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    """What is switched on by `settings`."""

    def words(self) -> dict[str, object]:
        """The names that lines may use."""
        found: dict[str, object] = {"torch": torch, "numbers": numbers, "copy": copy, "pickle": pickle}
        found.update({str(dtype).removeprefix("torch."): dtype for dtype in (*ROUGH, torch.int64, torch.bool)})
        for name in WORDS:
            found[name] = getattr(self, name)
        return found

    def given(self, seed, shape, dtype, splits, pending=None, how=""):  # type: ignore[no-untyped-def]
        whole = _whole(seed, shape, dtype, how)
        if how in ("expanded", "windows"):
            return whole.clone()
        return torch.empty_strided(whole.shape, whole.stride(), dtype=dtype).copy_(whole)

    def contributed(self, seed, shape, dtype, splits, pending, how):  # type: ignore[no-untyped-def]
        (kind,) = set(pending.values())
        every = itertools.product(*(range(self.sizes[axis]) for axis in self.sizes if axis in pending))
        return KINDS[kind](torch.stack([_part(seed, shape, dtype, how, coords) for coords in every]))

    def moved(self, x, splits, pending=None, sizes=None):  # type: ignore[no-untyped-def]
        return _copied(x)

    def gathered(self, x):  # type: ignore[no-untyped-def]
        return _copied(x)

    def resolved(self, x, axis):  # type: ignore[no-untyped-def]
        return _copied(x)

    def seen(self, x):  # type: ignore[no-untyped-def]
        self.looked.append(_roughly(x))

    def looked_at(self, x):  # type: ignore[no-untyped-def]
        pass

    def settings(self, name):  # type: ignore[no-untyped-def]
        pass

    def exported(self, x, how):  # type: ignore[no-untyped-def]
        return _exported(x.detach().clone(), how)

    def whole(self, x):  # type: ignore[no-untyped-def]
        return x.clone()

    def data_is(self, x, y):  # type: ignore[no-untyped-def]
        x.data = y

    def leaf(self, x):  # type: ignore[no-untyped-def]
        return x.requires_grad_()

    def mapped(self, x, splits):  # type: ignore[no-untyped-def]
        return x * 2 + 1


WORDS = tuple(
    name for name in vars(PlainWords) if not name.startswith("_") and name not in ("words", "sizes", "looked", "stack")
)


class WeftWords(PlainWords):
    """What they mean on sharded ones."""

    def mesh(self, sizes=None) -> DeviceMesh:  # type: ignore[no-untyped-def]
        return weft.make_mesh(sizes or self.sizes)

    def layout(self, splits, pending, sizes=None) -> Layout:  # type: ignore[no-untyped-def]
        kinds = {axis: ReduceOp[kind] for axis, kind in (pending or {}).items()}
        return Layout(self.mesh(sizes), [tuple(axes.split()) for axes in splits], kinds)

    def given(self, seed, shape, dtype, splits, pending=None, how=""):  # type: ignore[no-untyped-def]
        layout = self.layout(splits, pending)
        return weft.shard(_whole(seed, shape, dtype, how), layout.mesh, named_mapping(layout))

    def contributed(self, seed, shape, dtype, splits, pending, how):  # type: ignore[no-untyped-def]
        layout, shards = self.layout(splits, pending), []
        mesh, kept = layout.mesh, {}
        for slot in residence(mesh).owned:
            coords = tuple(mesh.device_coord(slot, axis) for axis in layout.pending_axes)
            if coords not in kept and not (how == "same" and kept):
                kept[coords] = _part(seed, shape, dtype, how, coords)
            part = kept[coords] if how != "same" else next(iter(kept.values()))
            shards.append(part[tuple(slice(a, b) for a, b in box(layout, shape, slot))] if layout.split_axes else part)
        return weft.from_local(shards, named_mapping(layout), shape=shape, dtype=dtype)

    def moved(self, x, splits, pending=None, sizes=None):  # type: ignore[no-untyped-def]
        given = x._layout.pending if isinstance(x, weft.Tensor) else ()
        kinds = set((pending or {}).values()) | {kind.name for _, kind in given}
        layout = self.layout(splits, pending if len(kinds) <= 1 else None, sizes)
        return weft.shard(x, layout.mesh, named_mapping(layout))

    def gathered(self, x):  # type: ignore[no-untyped-def]
        return weft.all_gather(x) if isinstance(x, weft.Tensor) else x.clone()

    def resolved(self, x, axis):  # type: ignore[no-untyped-def]
        kinds = dict(x._layout.pending) if isinstance(x, weft.Tensor) else {}
        return weft.all_reduce(x, kinds[axis], reduce_axes=axis) if axis in kinds else x.clone()

    def seen(self, x):  # type: ignore[no-untyped-def]
        self.looked.append(_roughly(x.detach().full_tensor() if isinstance(x, weft.Tensor) else x))

    def looked_at(self, x):  # type: ignore[no-untyped-def]
        _ = x.local_shards if isinstance(x, weft.Tensor) else x, str(x)

    def settings(self, name):  # type: ignore[no-untyped-def]
        self.stack.close()
        if name == "log":
            self.stack.enter_context(weft.comm_log())
        elif name == "warn":
            self.stack.enter_context(weft.reshard_policy("warn"))

    def exported(self, x, how):  # type: ignore[no-untyped-def]
        return _exported(x.detach().full_tensor() if isinstance(x, weft.Tensor) else x.detach().clone(), how)

    def whole(self, x):  # type: ignore[no-untyped-def]
        return x.full_tensor() if isinstance(x, weft.Tensor) else x.clone()

    def mapped(self, x, splits):  # type: ignore[no-untyped-def]
        mapping = named_mapping(self.layout(splits, None))
        return weft.local_map(lambda shard: shard * 2 + 1, mapping, mapping)(x)


@dataclass(frozen=True)
class Program:
    """A mesh's sizes and lines of code."""

    sizes: dict[str, int]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        """Lines that a person can paste: they run on sharded tensors, and fail where the program failed."""
        start = ("from tests.tensor.programs import WeftWords", f"globals().update(WeftWords({self.sizes}).words())")
        return "\n".join((*start, *self.lines))

    def run(self, words: PlainWords) -> list[object]:
        """What is seen, and the errors that lines raise."""
        names = words.words()
        with words.stack:
            for line in self.lines:
                _run_line(line, names, words)
        return words.looked


MAY_RAISE = (
    "modified by an inplace operation",
    "a leaf Variable that requires grad",
    "is a view and",
    "backward through the graph a second time",
    "does not require grad",
)


def _run_line(line: str, names: dict[str, object], words: PlainWords) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "An output with one or more elements was resized")
        try:
            exec(line, names)
        except RuntimeError as error:
            if not any(text in str(error) for text in MAY_RAISE):
                raise
            words.looked.append(f"{line}: {next(text for text in MAY_RAISE if text in str(error))}")


def difference(program: Program) -> str | None:
    """Where sharded tensors do not do as plain ones do."""
    expected = program.run(PlainWords(program.sizes))
    words = WeftWords(program.sizes)
    try:
        found = program.run(words)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown with the program
        text = str(error).splitlines() or [""]
        return f"{type(error).__name__}: {text[0][:300]}"
    for k, (one, other) in enumerate(itertools.zip_longest(found, expected)):
        said = _unequal(one, other)
        if said:
            return f"the {k}. thing seen {said}"
    return None


def _unequal(found: object, expected: object) -> str | None:
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return None if found == expected and type(found) is type(expected) else f"is {found}, and should be {expected}"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"is {found.dtype} of {tuple(found.shape)}, and should be {expected.dtype} of {tuple(expected.shape)}"
    rough = ROUGH.get(expected.dtype, 0)
    if torch.allclose(found, expected, rtol=rough, atol=rough, equal_nan=True):
        return None
    return f"is\n{found}\nand should be\n{expected}"


def _kind(program: Program) -> str:
    said = difference(program) or ""
    return "unequal" if said.startswith("the ") else said[:50]


def shortened(program: Program) -> Program:
    """The program without lines that the same kind of failure does not need."""
    kind = _kind(program)
    lines = list(program.lines)
    for k in range(len(lines) - 1, -1, -1):
        fewer = Program(program.sizes, tuple(lines[:k] + lines[k + 1 :]))
        try:
            if _kind(fewer) == kind:
                lines = list(fewer.lines)
        except Exception:  # noqa: BLE001 - a line that misses one that is gone
            continue
    return Program(program.sizes, tuple(lines))


@dataclass
class Maker:
    """A program while it is made: what it has, and the dice."""

    rng: random.Random
    sizes: dict[str, int]
    differentiable: bool
    lines: list[str] = field(default_factory=list)
    words: PlainWords = field(init=False)
    names: dict[str, object] = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.words = PlainWords(self.sizes)
        self.names = self.words.words()

    @property
    def leaves(self) -> set[str]:
        return {line.partition(" = ")[0] for line in self.lines if " = leaf(" in line}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {k: v for k, v in self.names.items() if isinstance(v, torch.Tensor)}

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda x: True) -> str:
        """The name of some tensor; recent ones more often."""
        found = [name for name, x in self.tensors.items() if fits(x)]
        if not found:
            raise LookupError
        return self.rng.choice(found[-4:] if self.rng.random() < 0.5 else found)

    def of(self, name: str) -> torch.Tensor:
        x = self.names[name]
        assert isinstance(x, torch.Tensor)
        return x

    def new(self) -> str:
        self.count += 1
        return f"v{self.count - 1}"

    def dim(self, x: torch.Tensor) -> int:
        if not x.dim():
            raise LookupError
        return self.rng.randrange(-x.dim(), x.dim())

    def shape(self) -> tuple[int, ...]:
        sizes = [1, 2, 3, 4, 4, 5, 8] + ([0] if self.rng.random() < 0.1 else [])
        return tuple(self.rng.choice(sizes) for _ in range(self.rng.choice([0, 1, 2, 2, 2, 3])))

    def layout(
        self, rank: int, kinds: Sequence[str] = ("SUM",), need: bool = False, sizes: dict[str, int] | None = None
    ) -> str:
        """The text of a layout's splits and pending reductions."""
        splits: list[list[str]] = [[] for _ in range(rank)]
        pending: dict[str, str] = {}
        kind = self.rng.choice(list(kinds)) if kinds else ""
        axes = list(sizes or self.sizes)
        self.rng.shuffle(axes)
        for axis in axes:
            dice = self.rng.random()
            if rank and dice < 0.5:
                splits[self.rng.randrange(rank)].append(axis)
            elif kinds and dice < 0.75:
                pending[axis] = kind
        if need and not pending:
            splits = [[axis for axis in each if axis != axes[0]] for each in splits]
            pending[axes[0]] = kind
        return f"{[' '.join(each) for each in splits]}, {pending or None}"

    def dtype(self) -> str:
        if self.differentiable:
            return "float64"
        return self.rng.choice(["float64"] * 5 + ["int64", "int64", "float32", "bfloat16", "bool", "complex128"])

    def add(self, line: str) -> bool:
        """Takes a line, if plain tensors can run it and values stay small."""
        try:
            _run_line(line, self.names, self.words)
        except Exception:  # noqa: BLE001 - whatever plain torch refuses is no line
            if not line.startswith("v") or " = " not in line:
                self._again()  # it may have done a part of it
            return False
        name = line.partition(" = ")[0]
        made = self.names.get(name)
        if name in self.names and not (isinstance(made, torch.Tensor) and _is_small(made)):
            del self.names[name]
            return False
        if name not in self.names and not all(map(_is_small, self.tensors.values())):
            self._again()
            return False
        self.lines.append(line)
        return True

    def _again(self) -> None:
        self.words = PlainWords(self.sizes)
        self.names = self.words.words()
        for line in self.lines:
            _run_line(line, self.names, self.words)


def _is_small(x: torch.Tensor) -> bool:
    if not x.numel() or x.dtype in (torch.bool, torch.int64):
        return x.numel() < 4096
    most = x.detach().abs().max().item()
    return x.numel() < 4096 and most == most and most < MOST.get(x.dtype, 1 << 40)


Step = Callable[[Maker], str]
STEPS: dict[str, tuple[Step, int]] = {}


def step(weight: int = 1) -> Callable[[Step], Step]:
    def register(function: Step) -> Step:
        STEPS[function.__name__] = function, weight
        return function

    return register


@step(2)
def give(m: Maker) -> str:
    shape, dtype = m.shape(), m.dtype()
    kinds = () if dtype == "bool" else ("SUM",)
    how = m.rng.choice(["", "", "", "turned", "expanded", "windows", "part", "" if dtype == "bfloat16" else "numpy"])
    text = f"given({m.rng.randrange(99)}, {shape}, {dtype}, {m.layout(len(shape), kinds)}, {how!r})"
    return f"{m.new()} = leaf({text})" if m.differentiable else f"{m.new()} = {text}"


@step(3)
def contribute(m: Maker) -> str:
    shape, dtype = m.shape(), m.dtype()
    kinds = {"bool": ["MAX", "MIN"], "complex128": ["SUM", "AVG"], "int64": ["SUM", "MAX", "MIN", "PROD"]}.get(
        dtype, list(KINDS)
    )
    how = m.rng.choice(["own", "own", "same", "expanded"])
    text = f"contributed({m.rng.randrange(99)}, {shape}, {dtype}, {m.layout(len(shape), kinds, need=True)}, {how!r})"
    return f"{m.new()} = leaf({text})" if m.differentiable else f"{m.new()} = {text}"


_ONE = [
    "{x} * 2", "-{x}", "{x} + {x}", "{x} - 1", "{x}.clone()", "{x}.abs()", "{x}.sum()", "{x}.mean()", "{x}.clamp(-2, 2)",
    "{x} == 1", "{x}.float()", "{x}.double()", "{x}.long()", "{x}.bool()", "{x} / 2", "{x}.amax()", "{x}.prod()", "{x}.t()",
    "{x}.t() @ {x}", "{x} @ {x}.t()", "torch.zeros_like({x})", "{x}.nonzero()", "{x}.tril()", "{x}.any()", "{x}.contiguous().clone()",
    "copy.deepcopy({x})", "pickle.loads(pickle.dumps({x}))", "torch.cat([{x}, {x}])", "torch.stack([{x}, {x}])", "{x}.square()",
    "whole({x})", "{x}.new_zeros(3)", "torch.relu({x})", "gathered({x})", "{x}.softmax(-1)", "{x}.max()", "{x}.sum(dtype=float64)",
    "torch.ones_like({x}) * {x}", "{x}.to(bfloat16)", "{x}.to(complex128)", "torch.where({x} > 0, {x}, -{x})", "{x}.repeat(2)",
    "{x} * {x}", "torch.utils.checkpoint.checkpoint(lambda y: y * y + y, {x}, use_reentrant=False)",
]  # fmt: skip
_VIEWS = [
    "{x}.detach()", "{x}.data", "{x}.view(-1)", "{x}.t()", "{x}[1:]", "{x}[::2]", "{x}[0]", "{x}[-1]", "{x}[..., 0]", "{x}[:, 1:]", "{x}[None]",
    "{x}.unsqueeze(-1)", "{x}.squeeze()", "{x}.view(2, -1)", "{x}.view(-1, 2)", "{x}.real", "{x}.imag", "{x}.conj()", "{x}.diagonal()",
    "{x}[...]", "{x}.view_as({x})", "{x}.T", "torch.view_as_real({x})", "{x}.mT", "{x}.expand(3, *{x}.shape)", "{x}[:2, :2]", "{x}.view(1, -1)",
    "{x}.as_strided((2,), (1,))", "{x}.as_strided((2, 2), (1, 2))", "{x}.as_strided((3,), (2,), 1)", "torch.ops.aten.alias({x})",
    "{x}.view({x}.shape[0], -1)", "{x}.view(-1, {x}.shape[-1])", "{x}.view(-1, {x}.shape[-1])",
]  # fmt: skip
_DIMS = [
    "{x}.sum({d})", "{x}.sum({d}, keepdim=True)", "{x}.mean({d})", "{x}.amax({d})", "{x}.amin({d})", "{x}.prod({d})", "{x}.cumsum({d})",
    "{x}.argmax({d})", "{x}.any({d})", "{x}.roll(1, {d})", "{x}.flip({d})", "{x}.softmax({d})", "{x}.sort({d}).values", "{x}.max({d}).values",
    "{x}.index_select({d}, torch.tensor([0, 0]))", "torch.cat([{x}, {x}], {d})", "torch.stack([{x}, {x}], {d})", "{x}.repeat_interleave(2, {d})",
    "{x}.diff(dim={d})", "torch.cat([{x}[:1], {x}], 0)", "{x}.logsumexp({d})", "{x}.topk(1, {d}).values", "{x}.take_along_dim({x}.argsort({d}), {d})",
]  # fmt: skip
_DIM_VIEWS = [
    "{x}.unbind({d})[0]", "{x}.unbind({d})[-1]", "{x}.chunk(2, {d})[-1]", "{x}.split(2, {d})[0]", "{x}.unfold({d}, 2, 1)", "{x}.narrow({d}, 0, 1)",
    "{x}.movedim({d}, 0)", "{x}.transpose({d}, 0)", "{x}.select({d}, 0)", "{x}.unsqueeze({d})", "{x}.tensor_split(3, {d})[1]", "{x}.narrow({d}, 1, 2)",
    "{x}.squeeze({d})", "{x}.unflatten({d}, (2, -1))", "{x}.unflatten({d}, (-1, 2))", "{x}.diagonal(0, {d}, 0)",
]  # fmt: skip
_WRITES = [
    "{x}.add_(3)", "{x}.mul_(2)", "{x}.zero_()", "{x}.fill_(2)", "{x}.neg_()", "{x}.clamp_(-1, 1)", "{x}[0].mul_(3)", "{x}[0].fill_(2)", "{x}[0] = 1",
    "{x}[1:] = 2", "{x}[{x} > 1] = 0", "{x}.masked_fill_({x} > 0, 1)", "{x}[..., 0].add_(1)", "{x}[torch.tensor([0, 0])] = 4", "{x}.t()[0].sub_(1)",
    "{x} += {x}", "{x}.mul_({x})", "{x}.add_(torch.ones(()))", "{x}.data.mul_(2)", "{x}.detach().add_(1)", "torch._foreach_add_([{x}], 1)",
    "torch._foreach_mul_([{x}, {x}.clone()], 2)", "torch.neg({x}, out={x})", "torch.add({x}, 1, out={x})", "{x}.index_fill_(0, torch.tensor([0]), 5)",
    "{x}.copy_({x}.clone() * 2)", "{x}.relu_()", "{x}.div_(2)", "{x}.index_put_((torch.tensor([0, 0]),), torch.ones(()).to({x}.dtype), accumulate=True)",
    "{x}.view(-1)[0] = 3", "{x}.view(-1)[1:].mul_(2)", "torch._foreach_zero_([{x}])", "{x}.abs_()", "{x}.triu_()", "{x}.cumsum_(0)", "{x}.sub_({x}.sum())",
    "{x}.resize_({x}.shape)", "{x}.set_({x}.clone())", "{x}.diagonal().fill_(1)", "{x}.t_()", "{x}.unsqueeze_(0)", "{x}.squeeze_()",
    "{x}.transpose_(0, -1)", "{x}.scatter_(0, torch.zeros({x}.shape, dtype=torch.int64), 1)", "{x}.requires_grad_().requires_grad_(False)",
    "torch.nn.init.constant_({x}, 2)", "torch.nn.init.eye_({x})",
]  # fmt: skip
_LOOKS = [
    "looked_at({x})", "seen({x})", "seen({x}.sum())", "seen({x}.exp().sum())", "{x}.exp()", "seen(({x} * 2).clamp(-3, 3))", "seen({x}.tolist())", "{x}.softmax(0)",
    "seen(torch.as_tensor({x}.shape))", "seen({x}.double().norm())", "seen({x}[0])", "seen({x} * {x})", "seen({x}.reshape(-1))",
]  # fmt: skip
_PAIRS = [
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} @ {y}", "{x} @ {y}.t()", "{x}.t() @ {y}", "torch.maximum({x}, {y})", "torch.cat([{x}, {y}])", "{x}.add({y}, alpha=2)",
    "torch.where({x} > 0, {x}, {y})", "torch.stack([{x}, {y}])", "{x}.to({y}.dtype) + {y}", "torch.outer({x}, {y})", "torch.addmm({x}, {x}, {y})", "{x} / ({y} + 9)",
    "torch.tensordot({x}, {y}, 1)", "torch.nn.functional.linear({x}, {y})", "torch.lerp({x}, {y}, 0.5)", "torch.einsum('ij,jk->ik', {x}, {y})", "{x} == {y}",
    "torch.einsum('...j,kj->...k', {x}, {y})", "{x}.type_as({y})", "{y}.expand_as({x}) + 1", "torch.vmap(lambda a, b: a * b)({x}, {y})", "torch.func.grad(lambda a: (a * {y}).sum())({x})",
    "torch.broadcast_tensors({x}, {y})[0].clone()", "torch.func.jvp(lambda a: a * a + 1, ({x},), ({y},))[1]", "torch.func.vjp(lambda a: a * a, {x})[1]({y})[0]",
    "torch.vmap(lambda a: a * {y})({x})",
]  # fmt: skip
_PAIR_WRITES = [
    "{x}.add_({y})", "{x}.copy_({y})", "{x}.mul_({y})", "{x}[0] = {y}", "{x}[...] = {y}", "{x}[:1].copy_({y})", "torch._foreach_add_([{x}], [{y}])",
    "torch._foreach_copy_([{x}], [{y}])", "torch.add({x}, {y}, out={x})", "torch.mul({y}, {y}, out={x})", "{x}.sub_({y}, alpha=2)", "{x}.addmm_({y}, {y})", "{x}.t().copy_({y})",
    "{x}.masked_scatter_({x} > 0, {y})", "{x}.index_copy_(0, torch.tensor([0]), {y}[:1])", "{x}.index_add_(0, torch.zeros({y}.shape[0], dtype=torch.int64), {y})",
    "{x}.masked_fill_({x} > 0, {y}.sum())", "{x}.scatter_(0, torch.zeros({y}.shape, dtype=torch.int64), {y})", "data_is({x}, {y})", "{x}.set_({y})",
    "torch._foreach_addcmul_([{x}], [{y}], [{y}], 2)", "torch._foreach_mul_([{x}, {y}], 2)", "{x}[{y} > 0] = 1", "{x}.view(-1).copy_({y}.view(-1))", "torch.matmul({x}, {y}, out={x})",
    "torch.sum({y}, 0, out={x})", "{x}.index_put_((torch.zeros((), dtype=torch.int64),), {y})", "{x}.lerp_({y}, 0.5)", "{x}.addcmul_({y}, {y})", "{x}.data.add_({y})", "{x}.data[0] = {y}",
    "torch.stack([{y}, {y}], out={x})", "torch.cat([{y}, {y}], out={x})",
]  # fmt: skip


def _line(m: Maker, text: str, *, named: bool) -> str:
    if m.differentiable and any(word in text for word in _LEFT_OPEN):
        raise LookupError
    x = m.pick()
    y = m.pick()
    if "{y}" in text and m.rng.random() < 0.7:
        shape = m.of(x).shape
        y = m.pick(lambda other: other.shape == shape)
    if "as_strided" in text and not (m.of(x)._base if m.of(x)._is_view() else m.of(x)).is_contiguous():
        raise LookupError  # strides of what lies in several memories are those of a fresh tensor
    if "{d}" in text:
        text = text.replace("{d}", str(m.dim(m.of(x))))
    if not named:
        _check_memory(m, x, y, text)
        if ("set_(" in text or "data_is(" in text) and any(
            made.startswith(_plain_lines(name)) for name in (x, y) for made in m.lines
        ):
            raise LookupError  # a plain tensor cannot have the memory of a sharded one
    line = text.replace("{x}", x).replace("{y}", y)
    return f"{m.new()} = {line}" if named else line


def _plain_lines(name: str) -> tuple[str, str]:
    return f"{name} = whole(", f"{name} = exported("


_LEFT_OPEN = ("topk", "sort", "max({d})", "t_()", "transpose_(", "squeeze_(")
"""Which of equal values has the gradient, and what becomes of views of what is turned in place."""


def _check_memory(m: Maker, one: str, other: str, text: str) -> None:
    """Refuses lines whose result torch leaves open: those that write to what they still read, or to one place twice."""
    x, y = m.of(one), m.of(other)
    if _overlaps(x):
        raise LookupError
    if "{y}" not in text:
        return
    if "out=" in text and (x.dtype is not y.dtype or x.dtype is torch.bool):
        raise LookupError
    if x.untyped_storage()._cdata == y.untyped_storage()._cdata and (x is not y or text not in _ALONE):
        raise LookupError


_ALONE = (
    "{x}.add_({y})",
    "{x}.mul_({y})",
    "{x}.copy_({y})",
    "{x}.sub_({y}, alpha=2)",
    "{x}.lerp_({y}, 0.5)",
    "{x}[...] = {y}",
)


def _rows(name: str, texts: Sequence[str], weight: int, *, named: bool) -> None:
    STEPS[name] = (lambda m: _line(m, m.rng.choice(texts), named=named)), weight


_rows("one", _ONE, 8, named=True)
_rows("view", _VIEWS, 8, named=True)
_rows("dim", _DIMS, 4, named=True)
_rows("dim view", _DIM_VIEWS, 6, named=True)
_rows("write", _WRITES, 9, named=False)
_rows("look", _LOOKS, 6, named=False)
_rows("pair", _PAIRS, 4, named=True)
_rows("pair write", _PAIR_WRITES, 7, named=False)


@step(7)
def move(m: Maker) -> str:
    x = m.pick()
    dtype = m.of(x).dtype
    kinds = (
        () if dtype is torch.bool else ("SUM",) if dtype.is_complex or m.rng.random() < 0.7 else ("MAX", "MIN", "PROD")
    )
    return f"{m.new()} = moved({x}, {m.layout(m.of(x).dim(), kinds)})"


@step(1)
def move_elsewhere(m: Maker) -> str:
    x = m.pick()
    sizes = m.rng.choice([{"a": 2}, {"z": 2, "a": 2}, {"a": 1}, {"b": 3}])
    if math.prod(sizes.values()) > math.prod(m.sizes.values()):
        raise LookupError
    kinds = () if m.of(x).dtype is torch.bool else ("SUM",)
    return f"{m.new()} = moved({x}, {m.layout(m.of(x).dim(), kinds, sizes=sizes)}, {sizes})"


@step(3)
def resolve(m: Maker) -> str:
    return f"{m.new()} = resolved({m.pick()}, {m.rng.choice(list(m.sizes))!r})"


@step(1)
def map_locally(m: Maker) -> str:
    x = m.pick(lambda x: x.dtype is torch.float64)
    return f"{m.new()} = mapped({x}, {m.layout(m.of(x).dim(), ()).rpartition(',')[0]})"


@step(1)
def export(m: Maker) -> str:
    return f"{m.new()} = exported({m.pick()}, {m.rng.choice(['numpy', 'dlpack', 'storage'])!r})"


@step(1)
def switch(m: Maker) -> str:
    return f"settings({m.rng.choice(['log', 'warn', 'silent'])!r})"


@step(1)
def without_gradient(m: Maker) -> str:
    return f"with torch.no_grad(): {_line(m, m.rng.choice(_WRITES), named=False)}"


@step(1)
def in_inference(m: Maker) -> str:
    if m.differentiable:
        raise LookupError
    return f"with torch.inference_mode(): {_line(m, m.rng.choice(_ONE + _VIEWS), named=True)}"


@step(2)
def again(m: Maker) -> str:
    """A line that stood before, on other values."""
    one_use = ("leaf(", "moved(", "mapped(")  # a layout says how many dims there are
    lines = [line for line in m.lines if line.startswith("v") and " = " in line and not any(x in line for x in one_use)]
    if not lines:
        raise LookupError
    return f"{m.new()} = {m.rng.choice(lines).partition(' = ')[2]}"


def make_program(seed: int, length: int = 16, *, differentiable: bool = False, devices: int | None = None) -> Program:
    """The program of a seed; with `devices`, on a mesh of so many."""
    rng = random.Random(seed)
    sizes = [each for each in SIZES if devices is None or math.prod(each.values()) == devices]
    m = Maker(rng, rng.choice(sizes), differentiable)
    while len(m.tensors) < 3:
        m.add(STEPS["give" if rng.random() < 0.6 else "contribute"][0](m))
    steps = [row for row, _ in STEPS.values()]
    weights = [weight for _, weight in STEPS.values()]
    for _ in range(length * 6):
        (row,) = rng.choices(steps, weights)
        try:
            m.add(row(m))
        except LookupError:
            continue
        if len(m.lines) >= length:
            break
    if differentiable:
        leaves = [name for name, x in m.tensors.items() if x.requires_grad and name in m.leaves]
        outs = [name for name, x in m.tensors.items() if x.requires_grad and name not in m.leaves]
        if outs:
            total = " + ".join(f"({name} * {k + 2}).sum()" for k, name in enumerate(outs[-4:]))
            before = len(m.words.looked)
            m.add(f"({total}).backward()")
            # Where it raises, gradients are as far as it came.
            leaves = leaves if len(m.words.looked) == before else []
        for name in leaves:
            m.add(f"seen({name}.grad if {name}.grad is not None else 0)")
            # Torch's fused steps on the host go through memory without looking at strides.
            how = rng.choice(["foreach=True", "foreach=False", *["fused=True"] * m.of(name).is_contiguous()])
            m.add(f"torch.optim.{rng.choice(['SGD', 'AdamW', 'Adam', 'Adagrad'])}([{name}], lr=0.5, {how}).step()")
    for name in m.tensors:
        m.add(f"seen({name})")
    return Program(m.sizes, tuple(m.lines))
