"""Recurrent layers, as the libraries of the host and of GPUs compute them."""

from . import cudnn, onednn

__all__ = ["cudnn", "onednn"]
