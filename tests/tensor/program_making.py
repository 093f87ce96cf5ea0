"""Making random programs: each step is a row that looks at the plain values so far, and says one line."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from tests.tensor.program_words import KINDS, PlainWords, overlaps
from tests.tensor.programs import Program, run_line

__all__ = ["make_program"]

SIZES: tuple[dict[str, int], ...] = (
    {"a": 2, "b": 2, "c": 2},
    {"a": 3, "b": 2},
    {"a": 4},
    {"a": 1, "b": 2},
    {"a": 2, "b": 2},
)
MOST = {torch.bfloat16: 1 << 6, torch.float32: 1 << 20, torch.complex64: 1 << 20, torch.float64: 1 << 40}
"""How large values may become, so that sums in any order agree."""


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
            run_line(line, self.names, self.words)
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
            run_line(line, self.names, self.words)


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
    "{x}.masked_fill_({x} > 0, {y}.sum())", "{x}.scatter_(0, torch.zeros({y}[:1].shape, dtype=torch.int64), {y}[:1])", "data_is({x}, {y})", "{x}.set_({y})",
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
    if overlaps(x):
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
