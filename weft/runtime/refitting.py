"""Pieces that were stored where memory was another way (one memory, one for each device), as they are stored here."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..sharding.geometry import box_at, box_shape
from ..sharding.layout import Layout
from .holding import Pieces, holding, slices

__all__ = ["fitted"]


def fitted(pieces: Pieces, layout: Layout, shape: Sequence[int]) -> Pieces:
    """The pieces of a tensor as this process stores them, or `ValueError` where it was given others than it needs."""
    here = holding(layout)
    wanted = [here.piece_shape(i, shape) for i in range(here.count)]
    if [tuple(piece.shape) for piece in pieces] == wanted:
        return pieces
    whole = _whole(pieces, layout, tuple(shape))
    if whole is None or here.count == 0:
        raise ValueError(
            f"{len(pieces)} pieces of shapes {sorted({tuple(piece.shape) for piece in pieces})} do not make up what this "
            f"process holds of a tensor of shape {tuple(shape)} laid out as {layout!r}: they were saved by one of several "
            "processes, or with a reduction pending. Save with weft.checkpoint.save, which any number of processes can load"
        )
    if here.unified:
        return (whole,)
    return tuple(whole[slices(here.box(i, shape))].clone().to(device) for i, device in enumerate(here.devices))


def _whole(pieces: Pieces, layout: Layout, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The tensor that these are the pieces of: the one piece of one memory, or one for each device."""
    if layout.pending:
        return None
    if len(pieces) == 1 and tuple(pieces[0].shape) == shape:
        return pieces[0]
    mesh = layout.mesh
    boxes = [box_at(layout, shape, mesh.coords(slot)) for slot in range(mesh.num_devices)]
    if [tuple(piece.shape) for piece in pieces] != [box_shape(box) for box in boxes]:
        return None
    whole = torch.empty(shape, dtype=pieces[0].dtype, device=pieces[0].device)
    for piece, box in zip(pieces, boxes, strict=True):
        whole[slices(box)] = piece.to(whole.device)
    return whole
