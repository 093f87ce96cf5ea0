"""What plain torch refuses is refused: PyTorch's own error inputs, `out=` of other dtypes, and dtypes that ops do not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import pytest
import torch
from torch.utils._pytree import tree_map

from weft.sharding.layout import Layout
from weft.watch.comm_log import comm_log

from .harness import memory
from .opinfo import LAYOUTS, MESH, _fresh, _fresh_split, name_of, op_infos

pytestmark = [
    pytest.mark.xdist_group("opinfo"),  # the database takes seconds to load: one worker does it
    pytest.mark.usefixtures("quiet"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the samples are made in host memory"),
]

Given = tuple[object, tuple[object, ...], dict[str, object]]
Lay = Callable[[object], object]


def _replicated(x: torch.Tensor) -> Layout:
    return Layout.replicated(MESH, x.dim())


LIES: dict[str, Lay] = {
    "first dim split": lambda x: _fresh_split(x, LAYOUTS["first dim split"]),
    "last dim split": lambda x: _fresh_split(x, LAYOUTS["last dim split"]),
    "replicated": lambda x: _fresh_split(x, _replicated),
    "pending sum": lambda x: _fresh_split(x, _replicated if getattr(x, "is_meta", False) else LAYOUTS["pending sum"]),
}

MOVED = {
    **dict.fromkeys(["cov", "gather", "scatter", "scatter_add", "multinomial"], "what is wrong is an element"),
    **dict.fromkeys(
        [
            "nn.functional.triplet_margin_loss",
            "nn.functional.triplet_margin_with_distance_loss",
            "nn.functional.conv1d",
        ],
        "ops before the one that is refused are not",
    ),
    "nn.functional.gaussian_nll_loss": "torch looks at elements first",
    "as_strided_scatter": "it is one of memory, which is gathered",
}
"""Ops for which something moves before some of their error inputs are refused, and why."""

TAKEN = {
    "nn.functional.max_pool1d": "of whole numbers: torch says it by max_pool2d for all but plain tensors, which takes them",
    "lu_unpack": "with out= of another dtype: which torch takes is tried on zeros, which are no pivots",
    "lu_solve": "with out= of another dtype: which torch takes is tried on zeros, which are no pivots",
    "linalg.ldl_solve": "with out= of another dtype: which torch takes is tried on zeros, which are no pivots",
    "linalg.lu_solve": "with out= of another dtype: which torch takes is tried on zeros, which are no pivots",
}
"""Ops that take what plain torch refuses, and why; the values are right."""

OTHERS = {
    torch.float32: torch.float64,
    torch.int64: torch.float32,
    torch.bool: torch.int64,
    torch.complex64: torch.complex128,
    torch.int32: torch.int64,
}
"""A dtype to which each can be cast."""


def refusal(op: Callable[..., object], given: Given) -> Exception | None:
    """What an op raises, if it does."""
    first, args, kwargs = given
    try:
        op(first, *args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever an op raises is what is compared
        return error
    return None


def differs(ours: Exception | None, plain: Exception | None) -> str | None:
    if plain is None:
        return None if ours is None else f"raises {ours!r}, and plain torch does not"
    if ours is None:
        return f"is taken, where plain torch raises {plain!r}"
    return None if isinstance(ours, type(plain)) else f"raises {ours!r}, not {plain!r}"


def error_inputs() -> Iterator[tuple[object, Given]]:
    """Of every op, the inputs of which PyTorch says that it refuses them."""
    for op in op_infos():
        # `op.error_inputs` does the same, but searches the whole stack for a test of PyTorch's at every call.
        make = op.error_inputs_func  # type: ignore[attr-defined]
        if make is not None:
            for each in make(op, "cpu"):
                sample = each.sample_input
                yield op, (sample.input, sample.args, sample.kwargs)


@pytest.mark.parametrize("separate", [True, False])
def test_error_inputs_are_refused_before_anything_moves(separate: bool) -> None:
    faults, count = [], 0
    for op, given in error_inputs():
        plain = refusal(op, tree_map(_fresh, given))  # type: ignore[arg-type]
        with memory(separate):
            for lies, lay in LIES.items():
                count += 1
                laid = tree_map(lay, given)
                with comm_log() as log:
                    fault = differs(refusal(op, laid), plain)  # type: ignore[arg-type]
                if fault is None and plain is not None and log.records and name_of(op) not in MOVED:
                    fault = f"is refused after {[record.kind for record in log]}"
                if fault is not None:
                    faults.append(f"{name_of(op)}, {lies}: {fault}")
    assert faults == []
    assert count > 2400


def samples(supports: str | None = None) -> Iterator[tuple[object, Given]]:
    """The first sample of every op."""
    for op in op_infos():
        if supports is None or getattr(op, supports):
            for sample in islice(op.sample_inputs_func(op, "cpu", torch.float32, False), 1):  # type: ignore[attr-defined]
                yield op, (sample.input, sample.args, sample.kwargs)


def with_outs(op: Callable[..., object], results: object, lay: Lay) -> Callable[..., object]:
    """The op with `out=` of other dtypes than its results have."""

    def run(*args: object, **kwargs: object) -> object:
        outs = tree_map(lambda y: lay(torch.empty(y.shape, dtype=OTHERS.get(y.dtype, y.dtype))), results)
        return op(*args, **kwargs, out=tuple(outs) if isinstance(outs, tuple) else outs)

    return run


@pytest.mark.parametrize("separate", [True, False])
def test_outs_of_other_dtypes_are_taken_or_refused(separate: bool) -> None:
    lay, faults, count = LIES["first dim split"], [], 0
    for op, given in samples("supports_out"):
        if "out" in given[2] or name_of(op) in TAKEN:
            continue
        first, args, kwargs = tree_map(_fresh, given)
        results = op(first, *args, **kwargs)  # type: ignore[operator]
        count += 1
        plain = refusal(with_outs(op, results, lambda x: x), tree_map(_fresh, given))  # type: ignore[arg-type]
        with memory(separate):
            ours = refusal(with_outs(op, results, lay), tree_map(lay, given))  # type: ignore[arg-type]
        if (plain is None) != (ours is None):
            faults.append(f"{name_of(op)}: {differs(ours, plain)}")
    assert faults == []
    assert count > 300


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_dtypes_that_ops_do_not_take_are_refused(dtype: torch.dtype) -> None:
    lay, faults, count = LIES["first dim split"], [], 0
    for op, given in samples():
        if dtype in op.supported_dtypes("cpu") or name_of(op) in TAKEN:  # type: ignore[attr-defined]
            continue
        count += 1
        cast = tree_map(
            lambda x: x.detach().to(dtype) if isinstance(x, torch.Tensor) and x.dtype is torch.float32 else x, given
        )
        plain = refusal(op, tree_map(_fresh, cast))  # type: ignore[arg-type]
        with memory(True):
            ours = refusal(op, tree_map(lay, cast))  # type: ignore[arg-type]
        if (plain is None) != (ours is None):
            faults.append(f"{name_of(op)}: {differs(ours, plain)}")
    assert faults == []
    assert count > 100


def test_an_op_that_takes_all_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    op, given = next((op, given) for op, given in error_inputs() if name_of(op) == "gather")
    assert differs(refusal(op, given), refusal(op, given)) is None  # type: ignore[arg-type]
    monkeypatch.setattr(op, "op", lambda *args, **kwargs: None)
    assert "is taken" in str(differs(refusal(op, given), RuntimeError()))  # type: ignore[arg-type]
