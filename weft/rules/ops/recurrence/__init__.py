"""Recurrent layers and cells, as the libraries of the host and of GPUs compute them."""

from . import cells, cudnn, onednn

__all__ = ["cells", "cudnn", "onednn"]
