"""What a notebook shows of a tensor: its text, and below it which device holds which part."""

from __future__ import annotations

from html import escape

from ..tensor.tensor import Tensor
from .html import layout_html

__all__ = ["tensor_html"]


def tensor_html(x: Tensor) -> str:
    """The tensor as printed, and a picture of its layout where it lies on several devices.

    >>> import torch, weft
    >>> "1:2" in tensor_html(weft.shard(torch.ones(2), weft.make_mesh({"dp": 2}), weft.P("dp")))
    True
    """
    text = f"<pre>{escape(repr(x))}</pre>"
    return text + layout_html("", x._layout, tuple(x.shape)) if x.is_distributed else text


Tensor._repr_html_ = tensor_html  # type: ignore[attr-defined]
