"""Whether the collectives are right on this GPU: fresh random data, poisoned outputs, references in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from weft.kernels import (
    DeviceContext,
    DistributedAllGather,
    DistributedAllReduce,
    DistributedAllToAll,
    DistributedBroadcast,
    DistributedReduceScatter,
    signal_buffer,
)

POISON = 77
SIZES = (0, 1, 5, 255, 4096, 65_537, 1_000_003)
# ‖found − reference‖ / ‖reference‖ that one rounding to the dtype explains.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
MOVED = (torch.float32, torch.bfloat16, torch.int8, torch.complex64)


def setting(count: int, device: str = "cuda:0") -> tuple[list[torch.Tensor], list[DeviceContext]]:
    """Signal buffers and contexts of as many logical devices on one GPU."""
    return [signal_buffer(device) for _ in range(count)], [DeviceContext(device)] * count


def fresh(size: int, dtype: torch.dtype, how: str = "plain") -> torch.Tensor:
    """Random values, lying in one piece, at an odd place, or with gaps."""
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(2 * size + 1, device="cuda", dtype=torch.float32).to(dtype)
    elif dtype == torch.bool:
        made = torch.randint(0, 2, (2 * size + 1,), device="cuda").bool()
    else:
        made = torch.randint(-100, 100, (2 * size + 1,), device="cuda").to(dtype)
    return {"plain": made[:size].clone(), "offset": made[1 : size + 1], "gaps": made[: 2 * size : 2]}[how]


def poisoned(size: int, dtype: torch.dtype, how: str = "plain") -> torch.Tensor:
    """An output that was written before, with what no check expects."""
    made = fresh(size, dtype, how)
    return made.fill_(POISON)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal bit for bit."""
    bits = [x.clone(memory_format=torch.contiguous_format).view(torch.uint8) for x in (found, wanted)]
    return torch.equal(*bits)


def far(found: torch.Tensor, reference: torch.Tensor, scale: torch.Tensor) -> float:
    """‖found − reference‖ / ‖scale‖ in float64; NaN is infinitely far."""
    error = (found.double() - reference).norm() / scale.norm().clamp(min=1e-300)
    return float(error) if bool(error == error) else float("inf")


def movements(sizes: Sequence[int] = SIZES) -> Iterator[str]:
    """What is wrong with broadcast, all-gather and all-to-all."""
    for count, size, dtype, how in itertools.product((3, 8), sizes, MOVED, ("plain", "offset", "gaps")):
        buffers, who = setting(count)
        case = f"{count} × {size} {dtype} {how}"
        source = fresh(size, dtype, how)
        outputs = [poisoned(size, dtype, how) for _ in who]
        DistributedBroadcast.execute(outputs, source, buffers, who)
        if not all(same(output, source) for output in outputs):
            yield f"broadcast {case}"
        inputs = [fresh(size + i, dtype, how) for i in range(count)]
        outputs = [poisoned(sum(x.numel() for x in inputs), dtype, how) for _ in who]
        DistributedAllGather.execute(outputs, inputs, buffers, who)
        if not all(same(output, torch.cat(inputs)) for output in outputs):
            yield f"all-gather {case}"
        inputs = [fresh(size, dtype, how) for _ in who]
        parts = [x.tensor_split(count) for x in inputs]
        wanted = [torch.cat([mine[j] for mine in parts]) for j in range(count)]
        outputs = [poisoned(want.numel(), dtype, how) for want in wanted]
        DistributedAllToAll.execute(outputs, inputs, buffers, who)
        if not all(same(output, want) for output, want in zip(outputs, wanted, strict=True)):
            yield f"all-to-all {case}"


def reductions(sizes: Sequence[int] = SIZES, *, every_kind: bool = True) -> Iterator[str]:
    """What is wrong with all-reduce and reduce-scatter: too far from float64, or not the same bits everywhere."""
    usual = itertools.product((torch.float32, torch.bfloat16), ("sum",), sizes, ("plain", "offset"))
    floats = itertools.product(TOLERANCE, ("sum", "mean", "max", "min", "prod"), (5000,), ("plain",))
    wholes = itertools.product(
        (torch.int64, torch.int32, torch.int8, torch.uint8), ("sum", "max", "min", "prod"), (5000,), ("plain",)
    )
    for dtype, op, size, how in (*usual, *floats, *wholes) if every_kind else usual:
        count = 8 if how == "plain" else 3
        buffers, who = setting(count)
        case = f"{count} × {size} {dtype} {op} {how}"
        inputs = [fresh(size, dtype, how) for _ in who]
        outputs = [poisoned(size, dtype, how) for _ in who]
        DistributedAllReduce.execute(outputs, inputs, buffers, who, reduce_op=op)
        if not _right(outputs[0], inputs, op) or not all(same(output, outputs[0]) for output in outputs):
            yield f"all-reduce {case}"
        whole = outputs[0].clone()
        parts = [poisoned(part.numel(), dtype, how) for part in whole.tensor_split(count)]
        DistributedReduceScatter.execute(parts, inputs, buffers, who, reduce_op=op)
        if not same(torch.cat(parts), whole):
            yield f"reduce-scatter {case}"
        DistributedAllReduce.execute(inputs, inputs, buffers, who, reduce_op=op)
        if not all(same(mine, whole) for mine in inputs):
            yield f"all-reduce in place {case}"


def _right(found: torch.Tensor, inputs: list[torch.Tensor], op: str) -> bool:
    wide = torch.stack([x.double() if x.is_floating_point() else x for x in inputs])
    if op in ("max", "min"):
        reference = getattr(torch, f"a{op}")(wide, 0)
    elif op == "mean":
        reference = wide.mean(0)
    else:
        reference = getattr(torch, op)(wide, 0, dtype=wide.dtype)
    if found.numel() == 0 or not found.is_floating_point():
        return torch.equal(found, reference)
    # A sum of many signs may be near zero; its rounding errors are those of its terms.
    scale = wide.abs().mean(0) if op == "mean" else wide.abs().sum(0) if op == "sum" else reference
    return far(found, reference, scale) <= TOLERANCE[found.dtype]


def repeated(times: int = 1000, size: int = 4096, count: int = 8) -> Iterator[str]:
    """Whether small collectives over the same buffers are right every time, found without waiting in between."""
    buffers, who = setting(count)
    wrong = torch.zeros(3, dtype=torch.int64, device="cuda")
    outputs = [torch.empty(size, device="cuda") for _ in who]
    swapped = [torch.empty(size, device="cuda") for _ in who]
    for _ in range(times):
        inputs = [torch.randn(size, device="cuda") for _ in who]
        for output in (*outputs, *swapped):
            output.fill_(POISON)
        DistributedAllReduce.execute(outputs, inputs, buffers, who)
        total = inputs[0].clone()
        for x in inputs[1:]:
            total += x
        wrong[0] += sum((output != total).sum() for output in outputs)
        DistributedBroadcast.execute(outputs, inputs[3], buffers, who)
        wrong[1] += sum((output != inputs[3]).sum() for output in outputs)
        DistributedAllToAll.execute(swapped, inputs, buffers, who)
        wanted = torch.stack(inputs).view(count, count, -1).transpose(0, 1).reshape(count, -1)
        wrong[2] += (torch.stack(swapped) != wanted).sum()
    for name, found in zip(("all-reduce", "broadcast", "all-to-all"), wrong.tolist(), strict=True):
        if found:
            yield f"{name} {times} times: {found} elements differ"
