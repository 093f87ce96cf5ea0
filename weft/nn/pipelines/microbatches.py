"""Cutting a batch into microbatches, so that each has rows of every device, and putting results together again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engine.moves.movement import layout_of

__all__ = ["check_rows", "cut", "joined", "parts_of"]


def parts_of(tensors: Sequence[torch.Tensor]) -> int:
    """Into how many parts the rows of a batch are split among devices: every tensor of a step is cut alike."""
    counts = {layout.split_count(0) for x in tensors if x.dim() and (layout := layout_of(x)) is not None}
    return max(counts, default=1)


def check_rows(tensors: Sequence[torch.Tensor], microbatches: int, parts: int) -> None:
    """Raises unless all tensors have the same number of rows, which can be cut into equal microbatches."""
    for x in tensors:
        if not isinstance(x, torch.Tensor) or not x.dim():
            what = f"a {type(x).__name__}" if not isinstance(x, torch.Tensor) else "a tensor without dims"
            raise TypeError(f"a pipeline takes tensors whose first dim is the batch, but got {what}")
    rows = {x.shape[0] for x in tensors}
    if len(rows) > 1:
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise ValueError(
            f"inputs and targets of a pipeline have one row for each sample, but their shapes are {shapes}"
        )
    for count in rows:
        if count % (microbatches * parts) or not count:
            split = f", each split over {parts} devices," if parts > 1 else ""
            least = max(1, -(-count // (microbatches * parts))) * microbatches * parts
            raise ValueError(
                f"a batch of {count} rows cannot be cut into {microbatches} equal microbatches{split}: "
                f"pad it to {least}, leave out the last batch of an epoch (drop_last=True), or use other microbatches"
            )


def cut(x: torch.Tensor, microbatches: int, parts: int) -> list[torch.Tensor]:
    """The microbatches of a tensor: each has the same number of rows of every part, so that nothing moves.

    >>> [each.tolist() for each in cut(torch.arange(8), microbatches=2, parts=2)]
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    rows = x.shape[0] // (microbatches * parts)
    folded = x.unflatten(0, (parts, microbatches, rows))
    return [folded[:, each].flatten(0, 1) for each in range(microbatches)]


def joined(cuts: Sequence[torch.Tensor], parts: int) -> torch.Tensor:
    """The tensor that was cut so.

    >>> joined(cut(torch.arange(8), microbatches=2, parts=2), parts=2)
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """
    rows = cuts[0].shape[0] // parts
    return torch.stack([each.unflatten(0, (parts, rows)) for each in cuts], 1).flatten(0, 2)
