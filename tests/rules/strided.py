"""PyTorch's own samples, their tensors made as views: transposed, channels last, with gaps, expanded.

A sharded tensor then has the strides of plain torch, its pieces lie in that order, and values and gradients are those of
one device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_flatten, tree_map

from weft.runtime.holding import holding
from weft.runtime.strides import is_in_order
from weft.sharding.layout import Layout
from weft.tensor.tensor import Tensor

from .harness import assert_sound, laid
from .opinfo import NOT_COMPARED, name_of

Given = tuple[object, tuple[object, ...], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to say a tensor as a view of another, a leaf: how to make the leaf, and the view of it."""

    dims: int
    """Tensors of fewer dims are left as they are."""
    leaf: Callable[[torch.Tensor], torch.Tensor]
    view: Callable[[torch.Tensor, torch.Size], torch.Tensor]


VARIANTS = {
    "transposed": Variant(2, lambda x: x.mT.contiguous(), lambda leaf, _: leaf.mT),
    "channels last": Variant(3, lambda x: x.movedim(1, -1).contiguous(), lambda leaf, _: leaf.movedim(-1, 1)),
    "with gaps": Variant(1, lambda x: x.repeat_interleave(2, -1), lambda leaf, _: leaf[..., ::2]),
    "expanded": Variant(1, lambda x: x[:1].contiguous(), lambda leaf, shape: leaf.expand(shape)),
}

EXCEPTIONS = {
    "unsafe_chunk": "expanded: parts are views, though torch does not say so, and have pieces like those of what they show",
    "unsafe_split": "expanded: parts are views, though torch does not say so, and have pieces like those of what they show",
    "native_batch_norm": "expanded: plain torch writes to running statistics that are one element",
    "_native_batch_norm_legit": "expanded: plain torch writes to running statistics that are one element",
    "_batch_norm_with_update": "expanded: plain torch writes to running statistics that are one element",
    "nn.functional.batch_norm": "expanded: plain torch writes to running statistics that are one element",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "transposed: torch's kernel reads beside what it is given; "
    "scaled_dot_product_attention gives it rows",
    "unbind": "expanded and pending, in one memory: contributions that may be written to are not one element",
}

SINGULAR = {"qr", "linalg.qr"}
"""Ops whose gradients are divided by what is zero, or noise, where rows of a matrix are one: of expanded ones they are not compared."""


def concerns(sample: object, variant: Variant) -> bool:
    """Whether a variant makes a difference to a sample."""
    given = tree_flatten((sample.input, sample.args, sample.kwargs))[0]  # type: ignore[attr-defined]
    return any(isinstance(x, torch.Tensor) and x.dim() >= variant.dims and x.numel() for x in given)


def fault(op: Callable[..., object], sample: object, variant: Variant, layout: Callable[[torch.Tensor], Layout]) -> str:
    """What is not as with plain torch, if anything."""
    given = (sample.input, sample.args, sample.kwargs)  # type: ignore[attr-defined]
    try:
        plain, plain_leaves = _run(op, given, variant, lambda leaf: leaf.clone())
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return ""
    ours, leaves = _run(op, given, variant, lambda leaf: laid(leaf, layout(leaf), exact=True))
    compared = name_of(op) not in NOT_COMPARED
    # All of it is looked at, also where something is found: over processes, all have to make the same calls.
    found = [
        _difference(a, b, strides=True)
        for a, b in zip(ours, plain, strict=True)
        if isinstance(b, torch.Tensor) and compared
    ]
    if variant is not VARIANTS["expanded"] or name_of(op) not in SINGULAR:
        found.append(_gradient_fault(ours, plain, leaves, plain_leaves, layout))
    return "; ".join(filter(None, found))


def _run(
    op: Callable[..., object], given: Given, variant: Variant, placed: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[list[object], list[torch.Tensor]]:
    leaves: list[torch.Tensor] = []

    def made(x: object) -> object:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
            return x
        value = x.detach().resolve_conj().resolve_neg()
        fits = x.dim() >= variant.dims and x.numel() > 0
        leaf = placed(variant.leaf(value) if fits else value.contiguous()).requires_grad_(x.requires_grad)
        leaves.extend([leaf] if x.requires_grad else [])
        return variant.view(leaf, x.shape) if fits else leaf

    first, args, kwargs = tree_map(made, given)
    torch.default_generator.manual_seed(1)
    # Some ops write to their input, which a leaf does not allow.
    first = first.clone() if isinstance(first, torch.Tensor) and first.is_leaf and first.requires_grad else first
    return tree_flatten(op(first, *args, **kwargs))[0], leaves


def _difference(a: object, b: torch.Tensor, *, strides: bool) -> str:
    assert isinstance(a, torch.Tensor)
    if b.layout is not torch.strided:
        return ""
    said = []
    if strides and not _same(a.stride(), b.stride(), b.shape):
        said.append(f"strides {a.stride()}, not {b.stride()}, of {tuple(b.shape)}")
    if isinstance(a, Tensor):
        assert_sound(a)
        if not a._is_view() and not all(_stands(piece, a) for piece in a._value.pieces):
            said.append(f"pieces with strides {[piece.stride() for piece in a._value.pieces]} of {a.stride()}")
        a = a.detach().full_tensor()
    try:
        close = 1e-6 if b.dtype in (torch.float64, torch.complex128) else 1e-4
        torch.testing.assert_close(a.detach(), b.detach(), rtol=close, atol=close, equal_nan=True)
    except AssertionError as error:
        said.append(" ".join(str(error).split()))
    return ", ".join(said)


def _same(one: tuple[int, ...], other: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return 0 in shape or all(a == b or n == 1 for a, b, n in zip(one, other, shape, strict=True))


def _stands(piece: torch.Tensor, x: Tensor) -> bool:
    """Whether a piece's dims stand in the order that the tensor's strides say; in one memory it is the tensor."""
    whole = piece.shape == x.shape and _same(piece.stride(), x.stride(), x.shape)
    return whole or (not holding(x._layout).unified and is_in_order(piece, x.stride()))


def _gradient_fault(
    ours: list[object],
    plain: list[object],
    leaves: list[torch.Tensor],
    plain_leaves: list[torch.Tensor],
    layout: Callable[[torch.Tensor], Layout],
) -> str:
    """The same of gradients; these are brought to where their leaf is, and lie there as copies do."""
    pairs = [(a, b) for a, b in zip(ours, plain, strict=True) if isinstance(b, torch.Tensor) and b.requires_grad]
    if not pairs or not plain_leaves:
        return ""
    generator = torch.Generator().manual_seed(2)
    cotangents = [torch.randn(b.shape, dtype=b.dtype, generator=generator) for _, b in pairs]
    try:
        expected = torch.autograd.grad([b for _, b in pairs], plain_leaves, cotangents, allow_unused=True)
    except RuntimeError:
        return ""
    placed = [
        laid(c, layout(c).resolved) if isinstance(a, Tensor) else c for (a, _), c in zip(pairs, cotangents, strict=True)
    ]
    actual = torch.autograd.grad([a for a, _ in pairs], leaves, placed, allow_unused=True)  # type: ignore[misc]
    found = [_difference(a, b, strides=False) for a, b in zip(actual, expected, strict=True) if b is not None]
    return "; ".join(f"gradient: {each}" for each in found if each)
