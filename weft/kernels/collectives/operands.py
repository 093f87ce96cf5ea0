"""Operands: that inputs and outputs fit the devices and each other, said once for all collectives."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..context import DeviceContext

__all__ = ["check_dim", "check_operands", "check_shape"]


def check_operands(name: str, word: str, tensors: Sequence[torch.Tensor], contexts: Sequence[DeviceContext]) -> None:
    """Raise unless there is one dense tensor for each device, on that device, and all of one dtype.

    >>> check_operands("broadcast", "outputs", [torch.zeros(2)], [DeviceContext("cpu"), DeviceContext("cpu")])
    Traceback (most recent call last):
    ValueError: broadcast: 2 devices need as many outputs, but got 1.
    """
    if len(tensors) != len(contexts):
        raise ValueError(f"{name}: {len(contexts)} devices need as many {word}, but got {len(tensors)}.")
    for i, (tensor, context) in enumerate(zip(tensors, contexts, strict=True)):
        if tensor.layout != torch.strided:
            raise ValueError(
                f"{name}: {word}[{i}] is {tensor.layout}. The kernels work on dense tensors: use to_dense()."
            )
        if tensor.device != context.device:
            raise ValueError(
                f"{name}: {word}[{i}] is on {tensor.device}, but device {i} is {context.device}. "
                f"Give {word} in the order of dev_ctxs_input."
            )
        if tensor.dtype != tensors[0].dtype:
            raise ValueError(
                f"{name}: {word} have one dtype, but {word}[0] is {tensors[0].dtype} and {word}[{i}] is {tensor.dtype}."
            )


def check_shape(name: str, word: str, tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise unless a tensor has the shape and dtype that the rest of the call asks for.

    >>> check_shape("broadcast", "outputs[1]", torch.zeros(2), (3,), torch.float32)
    Traceback (most recent call last):
    ValueError: broadcast: outputs[1] has shape (2,), but (3,) is needed.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name}: {word} has shape {tuple(tensor.shape)}, but {tuple(shape)} is needed.")
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: {word} has dtype {tensor.dtype}, but {dtype} is needed.")


def check_dim(name: str, tensor: torch.Tensor, axis: int) -> int:
    """The tensor dim that `axis` means, from 0 up.

    >>> check_dim("all_gather", torch.zeros(2, 3), -1)
    1
    """
    if not -tensor.dim() <= axis < tensor.dim():
        raise ValueError(f"{name}: axis {axis} is not a dim of a tensor with shape {tuple(tensor.shape)}.")
    return axis % tensor.dim()
