"""The page of ops and layouts, from the tests' own cases: `python -m tests.rules.page` writes it."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from weft.devices import CPU
from weft.sharding.layout import Layout
from weft.sharding.mesh import DeviceMesh
from weft.sharding.placements import ReduceOp
from weft.tensor.tensor import Tensor
from weft.watch.comm_log import comm_log

from .case import Case
from .families import FAMILIES
from .harness import combinations, flat, laid, memory

__all__ = ["PAGE", "TORCH", "head", "section"]

PAGE = Path(__file__).parents[2] / "docs" / "op-layouts.md"
TORCH = ".".join(torch.__version__.split(".")[:2])
MESH = DeviceMesh([CPU(i) for i in range(3)], (3,), ("x",))

KINDS = {
    "all_reduce": "reduce",
    "reduce_scatter": "reduce",
    "reduce_exchange": "reduce",
    "all_gather": "gather",
    "all_to_all": "exchange",
    "exchange": "exchange",
    "permute": "exchange",
}
"""What a kind of communication is called on the page."""

HEAD = f"""# Ops and layouts

What an op moves depends on which dim of which input is split. This page is made of the tests' own cases, by
`python -m tests.rules.page`, and a test fails when it is out of date. It was made with torch {TORCH}, on devices with memories of
their own.

Every case is checked against plain torch, values and gradients, in one memory and in separate ones, on a line of three
devices and a grid of two by two, with gradients arriving in any layout. How many layouts of its inputs were tried:

"""

_VARIANTS = (", none", ", sum", ", a row")
"""Ends of names of cases that move what others do: they are checked, but not listed."""

LEGEND = """
Read the tables so: *moved forward / moved backward* when one input, and others of its shape alike, is split along a dim
over three devices, or is a pending sum (forward only), and everything else is replicated. Variants that move the same (other
reductions of a loss, a row instead of a matrix) are checked, but not listed.

- **·** nothing moves.
- **Σ** nothing moves; the result is a pending reduction, carried out when an op needs it.
- **reduce** devices add up, or otherwise combine, what each has of the result.
- **exchange** devices receive those elements of their part of the result that they do not hold.
- **gather** the input, or part of it, comes to every device.

Where a gradient is to be replicated like its tensor, it is reduced; that is counted as moved backward.
"""


def head() -> str:
    """What stands before the first family."""
    return "\n".join([HEAD + "\n".join(_summary()), LEGEND])


def section(title: str) -> str:
    """What the page says of a family."""
    with warnings.catch_warnings(), memory(True):
        warnings.simplefilter("ignore")
        return "\n".join(_section(title, FAMILIES[title]))


def _summary() -> Iterator[str]:
    yield "| family | cases | layouts tried | even splits | uneven splits | replicated | pending |"
    yield "|---|---|---|---|---|---|---|"
    for title, cases in FAMILIES.items():
        counts = Counter[str]()
        for case in cases.values():
            counts += _tried(case)
        kinds = " | ".join(f"{counts[kind]:,}" for kind in ("tried", "even", "uneven", "replicated", "pending"))
        yield f"| {title} | {len(cases)} | {kinds} |"


def _tried(case: Case) -> Counter[str]:
    """How many combinations of layouts are tried for a case, and how many layouts of each kind are among them."""
    counts = Counter[str]()
    for mesh in case.meshes:
        for chosen in combinations(mesh, case.tensors, case.limit, case.pending):
            counts["tried"] += 2  # in one memory, and in separate ones
            for x, layout in zip(case.tensors, chosen, strict=True):
                counts[_kind(x, layout)] += 2
    return counts


def _kind(x: torch.Tensor, layout: Layout) -> str:
    if layout.pending:
        return "pending"
    if not layout.split_axes:
        return "replicated"
    return "uneven" if any(size % layout.split_count(d) for d, size in enumerate(x.shape)) else "even"


def _section(title: str, cases: Mapping[str, Case]) -> Iterator[str]:
    rank = max(x.dim() for case in cases.values() for x in case.tensors)
    yield f"## {title}\n"
    yield "| case | input | " + " | ".join(f"dim {d}" for d in range(rank)) + " | pending |"
    yield "|---|---|" + "---|" * (rank + 1)
    for name, case in cases.items():
        if name.endswith(_VARIANTS):
            continue
        shapes = list(dict.fromkeys(tuple(x.shape) for x in case.tensors if x.dim()))
        for shape in shapes:
            cells = [_cell(case, shape, d) for d in range(len(shape))] + [""] * (rank - len(shape))
            which = str(tuple(shape)).replace(",)", ")")
            yield f"| {name} | {which} | {' | '.join(cells)} | {_cell(case, shape, None) if case.pending else ''} |"
    yield ""


def _cell(case: Case, shape: tuple[int, ...], dim: int | None) -> str:
    """What moves, forward and backward, when the inputs of a shape are split along a dim, or pending."""
    given = [laid(x, _layout(x, shape, dim)) for x in case.tensors]
    leaves = [x.requires_grad_() for x in given if case.grad and x.is_floating_point()]
    with comm_log() as log:
        results = _there(case.function(*given))
    forward = _named(log) or ("Σ" if any(x._layout.pending for x in results) and dim is not None else "·")
    roots = [x for x in results if x.requires_grad]
    if not leaves or not roots or dim is None:
        return forward
    cotangents = [laid(torch.ones(x.shape, dtype=x.dtype), x._layout.resolved) for x in roots]
    with comm_log() as log:
        _there(torch.autograd.grad(roots, leaves, cotangents, allow_unused=True))
    return f"{forward} / {_named(log) or '·'}"


def _there(value: object) -> list[Tensor]:
    """The tensors of a result, once all of their elements are where they belong."""
    found = [x for x in flat(value) if isinstance(x, Tensor)]
    assert all(x.local_shards for x in found)
    return found


def _layout(x: torch.Tensor, shape: tuple[int, ...], dim: int | None) -> Layout:
    if tuple(x.shape) != shape:
        return Layout.replicated(MESH, x.dim())
    if dim is None:
        return Layout(MESH, [()] * x.dim(), {} if x.dtype is torch.bool else {"x": ReduceOp.SUM})
    return Layout(MESH, [("x",) if d == dim else () for d in range(x.dim())])


def _named(log: comm_log) -> str:
    """The kinds of communication that moved anything, each once."""
    names = dict.fromkeys(KINDS[record.kind] for record in log if record.total_bytes)
    return ", ".join(sorted(names))


def main() -> None:
    """Writes the page."""
    torch.set_num_threads(1)
    random.seed(0)
    PAGE.write_text("\n".join([head(), *map(section, FAMILIES)]))


if __name__ == "__main__":
    main()
