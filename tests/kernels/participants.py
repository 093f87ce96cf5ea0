"""Participants for kernel tests: logical devices on the GPU if there is one, else on the CPU in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.kernels import DeviceContext, signal_buffer
from weft.kernels.program import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda:0"

ALL_DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.bool,
    torch.complex64,
)


def contexts(count: int, alone: Sequence[int] = ()) -> list[DeviceContext]:
    """As many participants on one device; those in `alone` get launches of their own."""
    made = []
    synchronize()  # fresh streams know nothing of how the tensors came to be
    for i in range(count):
        stream = torch.cuda.Stream(DEVICE) if i in alone and DEVICE != "cpu" else None
        made.append(DeviceContext(DEVICE, stream, own_launch=i in alone))
    return made


def signals(count: int) -> list[torch.Tensor]:
    return [signal_buffer(DEVICE) for _ in range(count)]


def values(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random values that fill the whole range of small whole numbers or a bell curve."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).to(DEVICE).bool()
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(tuple(shape), generator=generator).to(DEVICE).to(dtype)
    return torch.randint(-100, 100, tuple(shape), generator=generator).to(DEVICE).to(dtype)


def laid(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """The same values lying in another way: at an odd place, or with gaps."""
    if how == "offset":
        room = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype, device=tensor.device)
        room[1 : tensor.numel() + 1] = tensor.flatten()
        return room[1 : tensor.numel() + 1].view(tensor.shape)
    if how == "gaps":
        room = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype, device=tensor.device)
        room[..., 0] = tensor
        return room[..., 0]
    return tensor.clone()


def poisoned(shape: Sequence[int], dtype: torch.dtype, how: str = "plain") -> torch.Tensor:
    """Memory to be written, filled with what no test expects; its neighbours in memory are poisoned too."""
    blank = torch.empty(tuple(shape), dtype=dtype, device=DEVICE)
    made = laid(blank.fill_(77), how)
    made.fill_(77)
    return made


def synchronize() -> None:
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal bit for bit in shape, dtype and value; NaNs count as equal."""
    return (
        found.shape == expected.shape
        and found.dtype == expected.dtype
        and torch.allclose(found, expected, rtol=0, atol=0, equal_nan=found.is_floating_point() or found.is_complex())
    )
