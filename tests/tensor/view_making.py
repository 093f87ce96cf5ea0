"""Makes random programs of views: a chain of them of one tensor, and writes to its ends and to what is between."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch

from tests.tensor.program_words import PlainWords, overlaps
from tests.tensor.programs import Program

__all__ = ["make_chain"]

SIZES = ({"a": 2}, {"a": 3}, {"a": 2, "b": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 1})
Row = Callable[[random.Random, torch.Tensor], str]


def _dim(rng: random.Random, x: torch.Tensor) -> int:
    if not x.dim():
        raise LookupError
    return rng.randrange(-x.dim(), x.dim())


def _two_dims(rng: random.Random, x: torch.Tensor) -> tuple[int, int]:
    if x.dim() < 2:
        raise LookupError
    one, other = rng.sample(range(x.dim()), 2)
    return one, other


def _shape_of(rng: random.Random, count: int) -> list[int]:
    """Sizes, some of them 1, of so many elements."""
    shape: list[int] = []
    while count > 1:
        size = rng.choice([d for d in range(2, count + 1) if count % d == 0])
        shape.append(size)
        count //= size
    for _ in range(rng.choice([0, 0, 1, 2])):
        shape.insert(rng.randint(0, len(shape)), 1)
    return shape


def _reshape(rng: random.Random, x: torch.Tensor) -> str:
    if not x.numel():
        raise LookupError
    return f".view({tuple(_shape_of(rng, x.numel()))})"


def _flatten(rng: random.Random, x: torch.Tensor) -> str:
    first = rng.randrange(max(1, x.dim()))
    last = rng.randrange(first, max(1, x.dim()))
    sizes = x.shape[first : last + 1] or (1,)
    return f".view({(*x.shape[:first], math.prod(sizes), *x.shape[last + 1 :])})"


def _expand(rng: random.Random, x: torch.Tensor) -> str:
    sizes = [rng.choice([-1, 3]) if size == 1 else -1 for size in x.shape]
    return f".expand({[*([2] * rng.randint(0, 1)), *sizes]})"


def _permute(rng: random.Random, x: torch.Tensor) -> str:
    return f".permute({tuple(rng.sample(range(x.dim()), x.dim()))})"


def _select(rng: random.Random, x: torch.Tensor) -> str:
    dim = _dim(rng, x)
    if not x.shape[dim]:
        raise LookupError
    return f".select({dim}, {rng.randrange(-x.shape[dim], x.shape[dim])})"


def _slice(rng: random.Random, x: torch.Tensor) -> str:
    dim = _dim(rng, x) % x.dim()
    first = rng.randint(0, x.shape[dim])
    last = rng.randint(first, x.shape[dim])
    return f"[{':, ' * dim}{first}:{last}:{rng.choice([1, 1, 2])}]"


def _unfold(rng: random.Random, x: torch.Tensor) -> str:
    dim = _dim(rng, x)
    if not x.shape[dim]:
        raise LookupError
    return f".unfold({dim}, {rng.randint(1, min(3, x.shape[dim]))}, {rng.randint(1, 2)})"


def _diagonal(rng: random.Random, x: torch.Tensor) -> str:
    one, other = _two_dims(rng, x)
    return f".diagonal({rng.randint(-1, 1)}, {one}, {other})"


def _as_strided(rng: random.Random, x: torch.Tensor) -> str:
    """Part of what the tensor reaches, with strides of its own or others."""
    if not x.numel() or not x.is_contiguous():
        raise LookupError
    size, stride, reach = [], [], x.numel() - 1
    for _ in range(rng.randint(0, 3)):
        step = rng.choice([1, 2, 3, *x.stride()])
        count = rng.randint(1, min(4, reach // max(step, 1) + 1))
        size.append(count)
        stride.append(step)
        reach -= (count - 1) * step
    return f".as_strided({size}, {stride}, {int(x.storage_offset()) + rng.randint(0, reach)})"


ROWS: dict[str, Row] = {
    "reshape": _reshape,
    "flatten": _flatten,
    "squeeze": lambda rng, x: rng.choice([".squeeze()", f".squeeze({_dim(rng, x)})"]),
    "unsqueeze": lambda rng, x: f".unsqueeze({rng.randint(0, x.dim())})",
    "expand": _expand,
    "transpose": lambda rng, x: ".transpose({}, {})".format(*_two_dims(rng, x)),
    "permute": _permute,
    "movedim": lambda rng, x: f".movedim({_dim(rng, x)}, {_dim(rng, x)})",
    "select": _select,
    "slice": _slice,
    "unfold": _unfold,
    "diagonal": _diagonal,
    "as_strided": _as_strided,
    "chunk": lambda rng, x: f".chunk(2, {_dim(rng, x)})[{rng.choice([0, -1])}]",
    "split": lambda rng, x: f".split(2, {_dim(rng, x)})[{rng.choice([0, -1])}]",
    "unbind": lambda rng, x: f".unbind({_dim(rng, x)})[{rng.choice([0, -1])}]",
    "real": lambda rng, x: rng.choice([".real", ".imag"]),
    "conj": lambda rng, x: ".conj()",
    "detach": lambda rng, x: rng.choice([".detach()", ".data", "[...]"]),
    "mT": lambda rng, x: rng.choice([".mT", ".mH"]) if x.dim() > 1 else ".view_as(x)",
    "unflatten": lambda rng, x: f".unflatten({_dim(rng, x)}, {rng.choice([(1, -1), (-1, 1), (2, -1), (-1, 2)])})",
}
WRITES = (
    ".mul_(2)", ".add_(1)", ".zero_()", ".fill_(3)", ".neg_()", ".copy_(numbers({seed}, {shape}, float64))", "[..., :1] = 5",
    ".view_as({x}).sub_(1)", "[...] = numbers({seed}, {shape}, float64)", ".fill_diagonal_(7)", ".clamp_(-1, 1)", "[{x} > 0] = 4",
)  # fmt: skip


class _Maker:
    def __init__(self, rng: random.Random, sizes: dict[str, int]) -> None:
        self.rng, self.sizes, self.lines = rng, sizes, []
        self.words = PlainWords(sizes)
        self.names = self.words.words()

    def of(self, name: str) -> torch.Tensor:
        found = self.names[name]
        assert isinstance(found, torch.Tensor)
        return found

    def add(self, line: str) -> bool:
        """Adds a line that plain torch takes."""
        try:
            exec(line, self.names)
        except (RuntimeError, IndexError, LookupError, TypeError, ValueError):
            return False
        self.lines.append(line)
        return True


def _base(rng: random.Random, sizes: dict[str, int]) -> str:
    shape = tuple(rng.choice([1, 1, 2, 3, 4, 5, 6]) for _ in range(rng.randint(1, 4)))
    dtype = rng.choice(["float64", "float64", "float64", "complex128", "int64"])
    splits, pending = [""] * len(shape), {}
    for axis in rng.sample(list(sizes), len(sizes)):
        place = rng.randint(-1, len(shape)) if rng.random() < 0.3 else rng.randint(0, len(shape) - 1)
        if place == len(shape):
            pending[axis] = "SUM"
        elif place >= 0:
            splits[place] = f"{splits[place]} {axis}".strip()
    if pending and rng.random() < 0.5:
        return f"x = contributed({rng.randrange(99)}, {shape}, {dtype}, {splits}, {pending}, 'own')"
    return f"x = given({rng.randrange(99)}, {shape}, {dtype}, {splits}, {pending})"


def make_chain(seed: int, *, devices: int | None = None) -> Program:
    """The program of a seed; with `devices`, on a mesh of so many."""
    rng = random.Random(seed)
    sizes = rng.choice([each for each in SIZES if devices is None or math.prod(each.values()) == devices])
    m = _Maker(rng, sizes)
    m.add(_base(rng, sizes))
    chain = ["x"]
    for _ in range(rng.randint(1, 4)):
        try:
            text = ROWS[rng.choice(list(ROWS))](rng, m.of(chain[-1]))
        except LookupError:
            continue
        if m.add(f"v{len(chain)} = {chain[-1]}{text}"):
            chain.append(f"v{len(chain)}")
    for _ in range(rng.randint(1, 4)):
        _write(m, rng, rng.choice([chain[0], chain[-1], rng.choice(chain)]))
        m.add(f"seen({rng.choice(chain)})")
        if rng.random() < 0.2 and len(chain) > 2:
            del chain[1]  # nobody holds what is between
            m.lines.append(f"del {_missing(m, chain)}")
    for name in chain:
        m.add(f"seen({name})")
    return Program(sizes, tuple(m.lines))


def _missing(m: _Maker, chain: Sequence[str]) -> str:
    name = next(n for n in sorted(m.names) if n[:1] == "v" and n[1:].isdigit() and n not in chain)
    del m.names[name]
    return name


def _write(m: _Maker, rng: random.Random, name: str) -> None:
    x = m.of(name)
    if overlaps(x.detach()):
        return
    text = rng.choice(WRITES).format(x=name, seed=rng.randrange(99), shape=tuple(x.shape))
    text = text.replace("float64", str(x.dtype).removeprefix("torch."))
    m.add(f"{name}{text}")
