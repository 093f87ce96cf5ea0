"""Operands: that inputs and outputs fit the devices and each other, said once for all collectives."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..context import DeviceContext
from ..work import balanced

__all__ = ["check_dim", "check_operands", "check_parts", "check_shape"]


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


def check_parts(
    name: str,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    contexts: Sequence[DeviceContext],
    axis: int,
    *,
    times: int = 1,
) -> tuple[int, tuple[int, ...]]:
    """The tensor dim that `axis` means, and where balanced parts along it begin and end, one for each device.

    Raises unless inputs have one shape, and outputs that of so many of a device's part.

    >>> cpu = DeviceContext("cpu")
    >>> check_parts("scatter", [torch.zeros(2), torch.zeros(1)], [torch.zeros(3)] * 2, [cpu, cpu], 0)
    (0, (0, 2, 3))
    """
    check_operands(name, "inputs", inputs, contexts)
    check_operands(name, "outputs", outputs, contexts)
    shape, dtype = inputs[0].shape, inputs[0].dtype
    dim = check_dim(name, inputs[0], axis)
    for i, given in enumerate(inputs):
        check_shape(name, f"inputs[{i}]", given, shape, dtype)
    bounds = balanced(shape[dim], len(inputs))
    for i, output in enumerate(outputs):
        part = [*shape[:dim], (bounds[i + 1] - bounds[i]) * times, *shape[dim + 1 :]]
        check_shape(name, f"outputs[{i}]", output, part, dtype)
    return dim, bounds
