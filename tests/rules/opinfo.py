"""PyTorch's own samples of its ops, run on split tensors and compared with plain torch."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch.utils._pytree import tree_flatten, tree_map

from weft.sharding.layout import Layout
from weft.sharding.mesh import make_mesh
from weft.sharding.placements import ReduceOp
from weft.tensor.tensor import Tensor
from weft.watch.comm_log import CommLog, comm_log

from .harness import assert_sound, laid

MESH = make_mesh({"x": 4})
GRID = make_mesh({"a": 2, "b": 2})

NOT_COMPARED = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"}
"""Ops whose results are whatever the memory holds: their shapes are compared."""


REASONS = {
    "sparse.sampled_addmm": "computes with sparse tensors, which have no layout",
    "sparse.mm.reduce": "computes with sparse tensors, which have no layout",
    "to_sparse": "gives a sparse tensor, which has no layout",
    "tensor_split": "with indices in a tensor: torch reads their memory itself; give them as numbers",
}
"""Ops that raise on sharded tensors, and why; none gives another value."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sample: "pass", "wrong" (another value), "error" (it raised), or "none" (nothing to compare)."""

    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """One sample of one op, forward and backward."""

    op: str
    forward: Outcome
    backward: Outcome
    moves: bool = False
    """Whether the op moved data on its way forward."""
    record: str = ""
    """Where results and gradients lie, and what moved for them."""


@cache
def op_infos() -> list[object]:
    """The ops of PyTorch's database that take float32 tensors and run on a CPU (compiled jiterator ops do not)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and "jiterator" not in op.name]


def name_of(op: object) -> str:
    """The name of an op, with its variant."""
    variant = op.variant_test_name  # type: ignore[attr-defined]
    return f"{op.name}.{variant}" if variant else op.name  # type: ignore[attr-defined]


def _first(x: torch.Tensor) -> Layout:
    return Layout(MESH, [("x",), *[()] * (x.dim() - 1)] if x.dim() else [])


def _last(x: torch.Tensor) -> Layout:
    return Layout(MESH, [*[()] * (x.dim() - 1), ("x",)] if x.dim() else [])


def _pending(x: torch.Tensor) -> Layout:
    return Layout(MESH, [()] * x.dim(), {} if x.dtype is torch.bool else {"x": ReduceOp.SUM})


def _grid(x: torch.Tensor) -> Layout:
    if x.dim() < 2:
        return Layout(GRID, [("b", "a")] if x.dim() else [])
    return Layout(GRID, [("a",), *[()] * (x.dim() - 2), ("b",)])


LAYOUTS: dict[str, Callable[[torch.Tensor], Layout]] = {
    "first dim split": _first,
    "last dim split": _last,
    "pending sum": _pending,
    "first and last split": _grid,
}
"""How the tensors of a sample lie on four devices; tensors without dims are replicated, or pending."""


def tried(op: object, most: int | None, layout: str = "first dim split") -> Iterator[Tried]:
    """The outcomes of the first samples of an op, its tensors in one of the `LAYOUTS`."""
    for sample in islice(_samples(op), most):
        yield _tried(op, sample, LAYOUTS[layout])


def tried_largest(op: object, layout: str) -> Tried:
    """The outcome of the sample of an op that tells most."""
    return _tried(op, largest_sample(op), LAYOUTS[layout])


def largest_sample(op: object) -> object:
    """The sample with the most dims among the first of an op, which tells most of its layouts; in float64 where it can be."""
    dtype = torch.float64 if torch.float64 in op.supported_dtypes("cpu") else torch.float32  # type: ignore[attr-defined]
    return max(islice(_samples(op, dtype), 10), key=_extent)


def _samples(op: object, dtype: torch.dtype = torch.float32) -> Iterator[object]:
    torch.default_generator.manual_seed(0)
    random.seed(0)
    # `op.sample_inputs` does the same, but searches the whole stack for a test of PyTorch's at every call.
    return op.sample_inputs_func(op, "cpu", dtype, op.supports_autograd)  # type: ignore[attr-defined, no-any-return]


def _extent(sample: object) -> tuple[bool, int, int, str]:
    """How much a sample tells; the last part makes the choice the same in every run, whatever order sets have."""
    given = tree_flatten((sample.input, sample.args))[0]  # type: ignore[attr-defined]
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    filled, rank = min((x.numel() > 0 for x in tensors), default=True), max((x.dim() for x in tensors), default=0)
    options = {name: x for name, x in sample.kwargs.items() if not isinstance(x, torch.Tensor)}  # type: ignore[attr-defined]
    return filled, rank, sum(x.numel() for x in tensors), repr(sorted(options.items(), key=str))


def _tried(op: object, sample: object, layout: Callable[[torch.Tensor], Layout]) -> Tried:
    name = name_of(op)
    given = (sample.input, sample.args, sample.kwargs)  # type: ignore[attr-defined]
    try:
        plain, plain_leaves = _run(op, tree_map(_fresh, given))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        return Tried(name, Outcome("none", f"plain torch: {error}"), Outcome("none"))
    split, leaves = None, []
    log = CommLog()
    try:
        with comm_log() as log:
            split, leaves = _run(op, tree_map(lambda x: _fresh_split(x, layout), given))
        forward = _compared(split, plain, shapes_only=name in NOT_COMPARED)
    except Exception as error:  # noqa: BLE001 - whatever an op raises is its outcome
        forward = Outcome("error", f"{type(error).__name__}: {error}")
    moves, record = log.total_bytes > 0, _recorded(forward, split, log)
    if not plain_leaves or forward.kind != "pass":
        return Tried(name, forward, Outcome("none"), moves, record)
    backward, back = _backward(split, plain, leaves, plain_leaves, layout)
    return Tried(name, forward, backward, moves, f"{record} | {back}")


def _recorded(outcome: Outcome, values: list[object] | None, log: CommLog) -> str:
    """Where values lie, and what moved for them."""
    if outcome.kind != "pass":
        return outcome.kind
    places = [str(x._layout) if isinstance(x, Tensor) else type(x).__name__ for x in values or ()]
    steps = [f"{step.kind} {','.join(step.axes)} {step.bytes_received}" for step in log]
    return f"{', '.join(places) or '–'}; {', '.join(steps) or '–'}"


def _fresh(x: object) -> object:
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().clone().requires_grad_(x.requires_grad)


def _fresh_split(x: object, layout: Callable[[torch.Tensor], Layout]) -> object:
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return x
    return laid(x.detach().resolve_conj().resolve_neg(), layout(x), exact=True).requires_grad_(x.requires_grad)


def _run(op: Callable[..., object], given: tuple[object, tuple[object, ...], dict[str, object]]):  # type: ignore[no-untyped-def]
    first, args, kwargs = given
    leaves = [x for x in tree_flatten(given)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.default_generator.manual_seed(1)
    # Some ops write to their input, which a leaf does not allow.
    first = first.clone() if isinstance(first, torch.Tensor) and first.requires_grad else first
    result = op(first, *args, **kwargs)
    return tree_flatten(result)[0], leaves


def _compared(actual: list[object], expected: list[object], *, shapes_only: bool = False) -> Outcome:
    if len(actual) != len(expected):
        return Outcome("wrong", f"{len(actual)} results, not {len(expected)}")
    for a, b in zip(actual, expected, strict=True):
        if not isinstance(b, torch.Tensor):
            if a != b and not (isinstance(b, float) and b != b):
                return Outcome("wrong", f"{a!r}, not {b!r}")
            continue
        assert isinstance(a, torch.Tensor)
        if a.shape != b.shape or a.dtype != b.dtype:
            return Outcome("wrong", f"{a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}")
        if isinstance(a, Tensor):
            assert_sound(a)
            a = a.detach().full_tensor()
        try:
            if not shapes_only:
                close = 1e-8 if b.dtype in (torch.float64, torch.complex128) else 1e-4
                torch.testing.assert_close(a.detach(), b.detach(), rtol=close, atol=close, equal_nan=True)
        except AssertionError as error:
            return Outcome("wrong", " ".join(str(error).split()))
    return Outcome("pass")


def _backward(
    split: list[object],
    plain: list[object],
    leaves: list[torch.Tensor],
    plain_leaves: list[torch.Tensor],
    layout: Callable[[torch.Tensor], Layout],
) -> tuple[Outcome, str]:
    """What came of the gradients, and the record of it; cotangents lie as the tensors of the sample do."""
    roots = [b for b in plain if isinstance(b, torch.Tensor) and b.requires_grad]
    ours = [a for a, b in zip(split, plain, strict=True) if isinstance(b, torch.Tensor) and b.requires_grad]
    if not roots:
        return Outcome("none"), "none"
    generator = torch.Generator().manual_seed(2)
    cotangents = [torch.randn(b.shape, dtype=b.dtype, generator=generator) for b in roots]
    try:
        expected = torch.autograd.grad(roots, plain_leaves, cotangents, allow_unused=True)
    except RuntimeError as error:
        return Outcome("none", f"plain torch: {error}"), "none"
    try:
        given = [
            laid(c, layout(c).resolved) if isinstance(a, Tensor) else c for a, c in zip(ours, cotangents, strict=True)
        ]
        with comm_log() as log:
            actual = torch.autograd.grad(ours, leaves, given, allow_unused=True)  # type: ignore[arg-type]
        outcome = _compared(list(actual), list(expected))
    except Exception as error:  # noqa: BLE001 - whatever an op raises is its outcome
        return Outcome("error", f"{type(error).__name__}: {error}"), "error"
    return outcome, _recorded(outcome, list(actual), log)
