"""Filling the blanks of a statement with what fits the tensors that a program has."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

import torch

from .words import BY_ROWS, strides

Test = Callable[[torch.Tensor], bool]
_BLANK = re.compile(r"\{(\w+)\}")
_KIND: Mapping[str, Test] = {
    "a": lambda t: True,
    "n": lambda t: t.dtype is not torch.bool,
    "r": lambda t: not t.is_complex() and t.dtype is not torch.bool,
    "f": lambda t: t.is_floating_point(),
    "c": lambda t: t.is_complex(),
    "i": lambda t: t.dtype in (torch.int64, torch.int32),
    "b": lambda t: t.dtype is torch.bool,
    "z": lambda t: t.is_floating_point() or t.is_complex(),
}
_NUMBERS = ("2", "-0.5", "1.5", "0", "1", "3", "0.25", "-1", "inf", "nan", "0.0")


class NothingFitsError(Exception):
    """No tensor of the program can stand in a blank."""


class Filling:
    """One statement being filled in; `first` is the tensor that the rest goes with."""

    def __init__(self, rng: random.Random, values: Mapping[str, torch.Tensor]) -> None:
        self.rng, self.values = rng, values
        self.first: str = ""
        self.dim: int | None = None
        self._index: list[int] = []

    def fill(self, text: str) -> str:
        return _BLANK.sub(lambda match: self.blank(match.group(1)), text)

    @property
    def tensor(self) -> torch.Tensor:
        return self.values[self.first]

    def blank(self, word: str) -> str:
        made = getattr(self, f"_{word.rstrip('_')}" if word != "n_" else "_order", None)
        if made is not None:
            return str(made())
        kind, least = word[0], int(word[1:] or 0)
        return self._pick(lambda t: _KIND[kind](t) and t.dim() >= least, _KIND_DTYPE[kind], least)

    def _pick(self, fits: Test, dtype: str, least: int = 0) -> str:
        names = [name for name, t in self.values.items() if fits(t)]
        if names and self.rng.random() < 0.85:
            recent = names[-4:] if self.rng.random() < 0.6 else names
            name = self.rng.choice(recent)
        elif self.first:
            return self.fresh([self.rng.randint(1, 4) for _ in range(max(least, 1))], dtype)
        else:
            raise NothingFitsError
        self.first = self.first or name
        return name

    def code(self) -> int:
        return self.rng.randrange(1000)

    def _code(self) -> str:
        return str(self.code())

    def fresh(self, shape: object, dtype: str) -> str:
        return f"fresh({tuple(shape)}, {dtype!r}, {self.rng.randrange(999)}, {self.code()})"  # type: ignore[arg-type]

    def put(self, data: object) -> str:
        return f"put({data!r}, {self.code()})"

    def _dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    def _order(self) -> int:
        return self.tensor.shape[-1]

    def _sq(self) -> str:
        square: Test = lambda t: (  # noqa: E731
            t.dim() >= 2 and t.shape[-1] == t.shape[-2] and t.dtype in (torch.float64, torch.complex128)
        )
        return self._pick(square, "float64", 2)

    def _pair(self) -> str:
        """Pairs of numbers, and some of them: of none torch asks how they lie, which it does not always say alike."""
        fits: Test = lambda t: t.dim() > 0 and t.shape[-1] == 2 and t.numel() > 0 and t.dtype is torch.float64  # noqa: E731
        return self._pick(fits, "float64", 1)

    def _spread(self) -> str:
        """Floats that lie in a place each: torch's median reads memory that is not there along dims that are expanded."""
        return self._pick(lambda t: t.is_floating_point() and t.dim() > 0 and 0 not in strides(t), "float64", 1)

    def _some2(self) -> str:
        """Floats, and some of them: of no rows, torch divides by zero in the gradient of `pdist`, and gives in `multi_margin_loss` whatever is in memory."""
        return self._pick(lambda t: t.is_floating_point() and t.dim() > 1 and t.numel() > 0, "float64", 2)

    def _filled(self) -> str:
        """A tensor in memory that is all some tensor's: behind what they give, some kernels leave what they needed."""

        def fits(t: torch.Tensor) -> bool:
            memory = t.untyped_storage()
            owners = (x for x in (*self.values.values(), t._base) if x is not None)
            alike = (x for x in owners if x.untyped_storage().data_ptr() == memory.data_ptr())
            return any(x.numel() * x.itemsize == memory.nbytes() for x in alike)

        return self._pick(fits, "float64")

    def _first(self) -> str:
        return self.first

    def _w(self) -> str:
        return self._pick(lambda t: not t.requires_grad or not t.is_leaf, "float64")

    def _o(self) -> str:
        if self.rng.random() < 0.25:
            return self._x()
        shape = [size if self.rng.random() < 0.75 else 1 for size in self.tensor.shape]
        shape = shape[self.rng.randrange(len(shape) + 1) if self.rng.random() < 0.3 else 0 :]
        fitting = [n for n, t in self.values.items() if self._broadcasts(t)]
        if fitting and self.rng.random() < 0.6:
            return self.rng.choice(fitting)
        return self.fresh(shape, self._dtype())

    def _broadcasts(self, t: torch.Tensor) -> bool:
        pairs = zip(reversed(t.shape), reversed(self.tensor.shape), strict=False)
        return t.dim() <= self.tensor.dim() and all(a in (1, b) for a, b in pairs)

    def _o0(self) -> str:
        return self.fresh((), self._dtype())

    def _same(self) -> str:
        wanted = self.tensor
        names = [n for n, t in self.values.items() if t.shape == wanted.shape and t.dtype == wanted.dtype]
        return self.rng.choice(names) if self.rng.random() < 0.5 else self.fresh(wanted.shape, self._dtype())

    def _x(self) -> str:
        return self.rng.choice(_NUMBERS[: len(_NUMBERS) if self.rng.random() < 0.1 else 8])

    def _x1(self) -> str:
        return self.fresh((len(self._index),), self._dtype())

    def _d(self) -> int:
        rank = self.tensor.dim()
        if self.dim is None:
            self.dim = self.rng.randrange(rank) if rank else 0
        return self.dim - rank if rank and self.rng.random() < 0.3 else self.dim

    def _e(self) -> int:
        rank = max(self.tensor.dim(), 1)
        return (int(self._d()) + self.rng.randint(1, max(rank - 1, 1))) % rank

    def _ds(self) -> str:
        rank = self.tensor.dim()
        dims = self.rng.sample(range(rank), self.rng.randint(0, rank))
        return self.rng.choice([repr(tuple(dims)), repr(tuple(d - rank for d in dims)), str(self._d())])

    def _k(self) -> bool:
        return self.rng.random() < 0.5

    def _s(self) -> int:
        return self.rng.choice((0, 1, 1, 2, 2, 3))

    def _st(self) -> int:
        return self.rng.choice((1, 2, 2, 3))

    def _off(self) -> int:
        return self.rng.choice((-2, -1, 0, 1, 1, 2))

    def _u(self) -> int:
        return self.rng.randint(-self.tensor.dim() - 1, self.tensor.dim())

    def _sd(self) -> int:
        return self.rng.randrange(9)

    def _perm(self) -> str:
        return ", ".join(map(str, self.rng.sample(range(self.tensor.dim()), self.tensor.dim()))) or "()"

    def _reps(self) -> str:
        return (
            ", ".join(str(self.rng.choice((1, 1, 2, 0))) for _ in range(self.tensor.dim() + self.rng.randint(0, 1)))
            or "1"
        )

    def _ex(self) -> str:
        sizes = [self.rng.choice((2, 3)) if size == 1 else self.rng.choice((size, -1)) for size in self.tensor.shape]
        return ", ".join(map(str, [self.rng.randint(1, 3)] * (self.rng.random() < 0.4) + sizes)) or "2"

    def _rs(self) -> str:
        """Sizes with the same product: dims merged and split."""
        sizes = [s for s in self.tensor.shape if s != 1 or self.rng.random() < 0.5]
        for _ in range(self.rng.randint(1, 2)):
            if len(sizes) > 1 and self.rng.random() < 0.6:
                at = self.rng.randrange(len(sizes) - 1)
                sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
            elif sizes:
                at = self.rng.randrange(len(sizes))
                parts = [p for p in (2, 3, 1, 4) if sizes[at] % p == 0]
                part = self.rng.choice(parts)
                sizes[at : at + 1] = [part, sizes[at] // part]
        if sizes and 0 not in sizes and self.rng.random() < 0.3:
            sizes[self.rng.randrange(len(sizes))] = -1
        return ", ".join(map(str, sizes)) or "()"

    def _sub(self) -> str:
        parts = []
        for size in self.tensor.shape[: self.rng.randint(0, self.tensor.dim())]:
            parts.append(self._part(size))
            if self.rng.random() < 0.1:
                parts.append("None")
        if self.rng.random() < 0.25:
            at = self.rng.randint(0, len(parts))
            parts = [
                *parts[:at],
                "...",
                *(self._part(s) for s in self.tensor.shape[self.tensor.dim() :][:1]),
                *parts[at:],
            ]
        return ", ".join(parts) or "..."

    def _part(self, size: int) -> str:
        kind = self.rng.random()
        if kind < 0.25:
            return str(self.rng.randint(-size, max(size - 1, 0)))
        if kind < 0.75:
            ends = [self.rng.choice(("", str(self.rng.randint(-size - 1, size + 1)))) for _ in range(2)]
            return f"{ends[0]}:{ends[1]}" + self.rng.choice(("", "", ":2", ":3"))
        if kind < 0.9 and size:
            return self.put([self.rng.randrange(-size, size) for _ in range(self.rng.randint(0, 3))] or [0])
        return ":"

    def _rows(self) -> str:
        """Rows that are looked up by an index, both split: they stay where they are found until something needs them."""
        self.first = self.first or next(iter(self.values))
        shape = [self.rng.randint(2, 5), *(self.rng.randint(1, 3) for _ in range(self.rng.randint(0, 2)))]
        index = [self.rng.randrange(-shape[0], shape[0]) for _ in range(self.rng.randint(1, 5))]
        dtype = self.rng.choice(("float64", "float64", "complex128", "int64"))
        table = f"fresh({tuple(shape)}, {dtype!r}, {self.rng.randrange(999)}, {BY_ROWS})"
        return f"{table}[put({index}, {BY_ROWS})]"

    # Index tensors

    def _size(self, dim: int | None = None) -> int:
        at = int(self._d()) if dim is None else dim
        return self.tensor.shape[at] if self.tensor.dim() > at else 1

    def _indices(self, size: int, *, unique: bool) -> list[int]:
        count = self.rng.randint(0 if self.rng.random() < 0.2 else 1, max(size, 1) if unique else 4)
        drawn = (
            self.rng.sample(range(size), min(count, size))
            if unique
            else [self.rng.randrange(max(size, 1)) for _ in range(count)]
        )
        if drawn and self.rng.random() < 0.04:
            drawn[-1] = self.rng.choice((size, -size - 1))
        self._index = drawn
        return drawn

    def _ints(self, drawn: list[int]) -> str:
        return self.put(drawn) if drawn else f"{self.put([0])}[:0]"

    def _li(self) -> str:
        return self._ints(self._indices(self._size(), unique=True))

    def _dup(self) -> str:
        return self._ints(self._indices(self._size(), unique=False))

    def _li0(self) -> str:
        return self._ints(self._indices(self._size(0), unique=True))

    def _dup0(self) -> str:
        return self._ints(self._indices(self._size(0), unique=False))

    def _dup1(self) -> str:
        return self._ints(self._indices(self._size(1), unique=False))

    def _dup1b(self) -> str:
        count = len(self._index)
        return self._ints([self.rng.randrange(max(self._size(1), 1)) for _ in range(count)])

    def _tku(self) -> str:
        return self._ints(self._indices(self.tensor.numel(), unique=True))

    def _tk(self) -> str:
        return self._ints(self._indices(self.tensor.numel(), unique=False))

    def _replaced(self, dim: int) -> str:
        shape = list(self.tensor.shape) or [1]
        shape[dim] = len(self._index)
        return self.fresh(shape, self._dtype())

    def _ia(self) -> str:
        return self._replaced(int(self._d()))

    _ic = _ia

    def _ip(self) -> str:
        return self._replaced(0)

    _ipu = _ip

    def _table(self, *, unique: bool) -> str:
        dim, shape = int(self._d()) % max(self.tensor.dim(), 1), list(self.tensor.shape) or [1]
        size = shape[dim]
        shape = [s if i == dim else self.rng.randint(min(1, s), s) for i, s in enumerate(shape)]
        shape[dim] = self.rng.randint(min(1, size), size) if unique else self.rng.randint(1, 4)
        made = torch.Generator().manual_seed(self.rng.randrange(10**6))
        if unique:
            drawn = (
                torch.rand([*shape[:dim], size, *shape[dim + 1 :]], generator=made)
                .argsort(dim)
                .narrow(dim, 0, shape[dim])
            )
        else:
            drawn = torch.randint(max(size, 1), shape, generator=made)
        self._shape = list(drawn.shape)
        if drawn.numel() and self.rng.random() < 0.04:
            drawn.view(-1)[-1] = size
        return self.put(drawn.tolist()) if drawn.numel() else f"{self.put(0)}.expand({shape})"

    def _ga(self) -> str:
        return self._table(unique=False)

    def _su(self) -> str:
        return self._table(unique=True)

    def _gv(self) -> str:
        return self.fresh(self._shape, self._dtype())

    _sv = _gv

    def _mask(self) -> str:
        shape = self.tensor.shape
        masks = [n for n, t in self.values.items() if t.dtype is torch.bool and t.shape == shape]
        return self.rng.choice(masks) if masks and self.rng.random() < 0.5 else self.fresh(shape, "bool")

    def _b0(self) -> str:
        size = self._size(0) + (self.rng.random() < 0.1)
        return self.fresh((size,), "bool")

    def _sel(self) -> str:
        shape = list(self.tensor.shape)
        del shape[int(self._d())]
        return self.fresh(shape, self._dtype())

    def _dg(self) -> str:
        return self.fresh(self.tensor.diagonal().shape, self._dtype())

    def _ids(self) -> str:
        shape = [self.rng.randint(1, 3) for _ in range(self.rng.randint(1, 2))]
        top = 6 if self.rng.random() < 0.06 else 5
        self.first = self.first or next(iter(self.values))
        return self.put(torch.randint(top, shape, generator=torch.Generator().manual_seed(self.code())).tolist())

    def _ids2(self) -> str:
        return self.put([[self.rng.randrange(5) for _ in range(2)] for _ in range(self.rng.randint(1, 3))])

    def _emb(self) -> str:
        names = [n for n, t in self.values.items() if t.dim() == 2 and t.dtype is torch.float64 and t.shape[0] >= 5]
        return self.rng.choice(names) if names else self.fresh((5, self.rng.randint(1, 4)), "float64")

    def _lab(self) -> str:
        rows, classes = self.tensor.shape[0], self.tensor.flatten(1).shape[1]
        return self._ints([self.rng.randrange(max(classes, 1) + (self.rng.random() < 0.02)) for _ in range(rows)])

    def _pre(self) -> str:
        return self.fresh((self.rng.choice((1, self.tensor.shape[1])),), self._dtype())


_KIND_DTYPE = {
    "a": "float64", "n": "int64", "r": "float64", "f": "float64", "c": "complex128", "i": "int64", "b": "bool", "z": "float64",
}  # fmt: skip
