"""Factor notation: one op call, said as the factors that its dims are made of.

    m k, k n -> m n      k stands on no output: splitting it leaves a pending reduction
    ... d! -> ... d      d must be whole
    (a b) c -> a b c     a dim made of two factors, major first
    b 1 -> b             a dim that carries no factor (size 1, or broadcast)

A factor may be split by mesh axes; whoever holds a dim with that factor is then split the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..caches import cached
from ..sharding.placements import ReduceOp

__all__ = ["ALL_KINDS", "SUMS", "Dims", "Factors", "parse"]

Dims = tuple[tuple[str, ...], ...]
"""For each dim of one tensor, the factors it is made of, major first."""

SUMS = frozenset({ReduceOp.SUM, ReduceOp.AVG})
"""The reductions that pass through what is linear."""
ALL_KINDS = frozenset(ReduceOp)


@dataclass(frozen=True, slots=True)
class Factors:
    """One op call in factor notation.

    `linear` says through which inputs a pending sum may pass: "no" input; "each" input alone, like a product (the others
    must not be pending); "all" inputs together, like a sum (all must be pending, or be made so); or the index of one.
    """

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims | None, ...]
    """One entry for each value that the op returns; None: it returns no tensor there."""
    sizes: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    reduces: ReduceOp | None = ReduceOp.SUM
    """What splitting a factor that is on no output leaves pending; None: such factors must be whole."""
    linear: str | int = "no"
    keeps: frozenset[ReduceOp] = SUMS
    """The kinds of pending reductions that pass through, where `linear` lets them."""
    added: frozenset[int] = frozenset()
    """The inputs that are added to the result, so once: beside a pending sum they must be pending too."""
    partial_outputs: frozenset[int] | None = None
    """The outputs that may lack a factor that is split, and are pending then; None: all."""
    repeated: frozenset[tuple[int, str]] = frozenset()
    """(output, factor): the output lacks the factor but is no reduction over it; every device computes the same."""

    def on_output(self, factor: str) -> bool:
        """Whether a factor stands on any output."""
        return any(factor in dim for out in self.outputs for dim in out or ())

    def lacking(self, factor: str) -> frozenset[int]:
        """The outputs on which a factor does not stand: they are a reduction over it."""
        return frozenset(
            k
            for k, out in enumerate(self.outputs)
            if out is not None and (k, factor) not in self.repeated and not any(factor in dim for dim in out)
        )


@dataclass(frozen=True, slots=True)
class Notation:
    """A parsed row of factor notation, before it meets shapes."""

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    whole: frozenset[str] = field(default_factory=frozenset)

    def meet(self, shapes: Sequence[Sequence[int]], **options: object) -> Factors:
        """The factors of a call with inputs of these shapes; `...` takes the dims that are left."""
        if len(shapes) != len(self.inputs):
            raise ValueError(f"a rule for {len(self.inputs)} tensors met {len(shapes)}")
        extra = max((len(s) - len(d) + 1 for s, d in zip(shapes, self.inputs, strict=True) if ("...",) in d), default=0)
        inputs = tuple(
            _expanded(dims, len(shape) - len(dims) + 1, extra) for dims, shape in zip(self.inputs, shapes, strict=True)
        )
        outputs = tuple(_expanded(dims, extra, extra) for dims in self.outputs)
        sizes: dict[str, int] = {}
        kept = []
        for dims, shape in zip(inputs, shapes, strict=True):
            kept.append(_sized(dims, shape, sizes))
        return Factors(tuple(kept), outputs, sizes, self.whole, **options)  # type: ignore[arg-type]


def _expanded(dims: Dims, own: int, extra: int) -> Dims:
    """`...` as the factors `_0`, `_1`, …, aligned at the right as in broadcasting."""
    result: list[tuple[str, ...]] = []
    for dim in dims:
        if dim == ("...",):
            result += [(f"_{extra - own + i}",) for i in range(own)]
        else:
            result.append(dim)
    return tuple(result)


def _sized(dims: Dims, shape: Sequence[int], sizes: dict[str, int]) -> Dims:
    """Notes the sizes of single factors; a dim of size 1 carries no factor where others are larger."""
    if len(dims) != len(shape):
        raise ValueError(f"a rule for {len(dims)} dims met a tensor of shape {tuple(shape)}")
    result: list[tuple[str, ...]] = []
    for dim, size in zip(dims, shape, strict=True):
        if len(dim) == 1:
            if size == 1 and sizes.get(dim[0], 1) != 1:
                result.append(())
                continue
            sizes[dim[0]] = size
        result.append(dim)
    return tuple(result)


@cached(1024)
def parse(text: str) -> Notation:
    """A row of factor notation.

    >>> parse("m k, k n -> m n").outputs
    ((('m',), ('n',)),)
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(
            f"factor notation needs '->' between inputs and outputs, but got {text!r}: for instance 'm k, k n -> m n'"
        )
    whole: set[str] = set()
    inputs = tuple(_side(part, whole, text) for part in left.split(","))
    outputs = tuple(_side(part, whole, text) for part in right.split(","))
    known = {name for dims in inputs for dim in dims for name in dim}
    for name in (name for dims in outputs for dim in dims for name in dim):
        if name not in known:
            raise ValueError(f"factor {name!r} stands only on the right of {text!r}: every factor comes from an input")
    return Notation(inputs, outputs, frozenset(whole))


_TOKEN = re.compile(r"\s*(\.\.\.|\([^()]*\)|[A-Za-z_]\w*!?|1)")


def _side(part: str, whole: set[str], text: str) -> Dims:
    dims: list[tuple[str, ...]] = []
    rest = part.strip()
    while rest:
        match = _TOKEN.match(rest)
        if match is None:
            raise ValueError(
                f"cannot read {rest!r} in the factor notation {text!r}: use names, '...', '1', '(a b)' and 'd!'"
            )
        dims.append(tuple(_names(match[1], whole)))
        rest = rest[match.end() :].strip()
    return tuple(dims)


def _names(token: str, whole: set[str]) -> Iterable[str]:
    if token == "1":
        return
    for name in token.strip("()").split():
        if name.endswith("!"):
            whole.add(name[:-1])
        yield name.removesuffix("!")
