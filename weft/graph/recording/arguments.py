"""What a recorded call was given, by position, as what the op takes there."""

from __future__ import annotations

from .op import RecordedCall
from .values import TensorValue

__all__ = ["number_at", "tensor_at", "tensors_at"]


def tensor_at(call: RecordedCall, position: int) -> TensorValue:
    """The tensor that the call was given there."""
    found = call.args[position]
    assert isinstance(found, TensorValue), call
    return found


def tensors_at(call: RecordedCall, position: int) -> tuple[TensorValue, ...]:
    """The tensors that the call was given there, one for each device or piece."""
    found = call.args[position]
    assert isinstance(found, tuple), call
    return tuple(each for each in found if isinstance(each, TensorValue))


def number_at(call: RecordedCall, position: int) -> int:
    """The whole number that the call was given there."""
    found = call.args[position]
    assert isinstance(found, int), call
    return found
