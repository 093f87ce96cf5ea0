"""The one program behind every collective: meet the other GPUs, do this GPU's blocks, meet again."""
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton writes compile-time arguments in capitals

from __future__ import annotations

import triton.language as tl

from .blocks import combine_block, copy_block, pick
from .program import program
from .signals import meet

__all__ = ["collective"]

_RUNTIME = tuple(f"{name}{i}" for name, count in (("s", 8), ("t", 8), ("b", 9), ("g", 8)) for i in range(count))


@program()
def _row(ROWS: tl.constexpr, job):
    return (ROWS >> (job * 4)) & 15


# fmt: off
@program(*_RUNTIME, "slots", "me", "blocks")
def collective(
    s0: tl.int64, s1: tl.int64, s2: tl.int64, s3: tl.int64, s4: tl.int64, s5: tl.int64, s6: tl.int64, s7: tl.int64,
    t0: tl.int64, t1: tl.int64, t2: tl.int64, t3: tl.int64, t4: tl.int64, t5: tl.int64, t6: tl.int64, t7: tl.int64,
    b0: tl.int64, b1: tl.int64, b2: tl.int64, b3: tl.int64, b4: tl.int64, b5: tl.int64, b6: tl.int64, b7: tl.int64,
    b8: tl.int64,
    g0: tl.int64, g1: tl.int64, g2: tl.int64, g3: tl.int64, g4: tl.int64, g5: tl.int64, g6: tl.int64, g7: tl.int64,
    slots: tl.int64, me: tl.int32, blocks: tl.int32,
    MODE: tl.constexpr, OP: tl.constexpr,
    SOURCES: tl.constexpr, TARGETS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, JOBS: tl.constexpr,
    GROUPS: tl.constexpr,
    TYPE: tl.constexpr, SUM: tl.constexpr, ITEM: tl.constexpr, UNIT: tl.constexpr,
    BLOCK: tl.constexpr, POLICY: tl.constexpr,
):
    """Run every job of one GPU, block by block.

    | MODE        | jobs            | one job                                       |
    | ----------- | --------------- | --------------------------------------------- |
    | "multicast" | SOURCES         | source k -> part row(k) of every target       |
    | "exchange"  | SOURCES × PARTS | part j of source k -> row row(k) of target j  |
    | "combine"   | 1               | all sources -> every target                   |
    | "scatter"   | TARGETS         | part row(k) of all sources -> target k        |

    s, t and g are the addresses of sources, targets and signal buffers; part i lies at bytes b[i] to b[i + 1]. Eight
    of each are arguments of their own because a table of them in memory would cost a copy for every call.
    """
    if GROUPS > 1:
        meet((g0, g1, g2, g3, g4, g5, g6, g7), slots, me, GROUPS)
    step = tl.program_id(0)
    while step < JOBS * blocks:
        if JOBS == 1:
            job = 0
            block = step
        else:
            job = step // blocks
            block = step - job * blocks
        if MODE == "multicast":
            row = _row(ROWS, job)
            start = pick((b0, b1, b2, b3, b4, b5, b6, b7), row, PARTS)
            size = pick((b1, b2, b3, b4, b5, b6, b7, b8), row, PARTS) - start
            source = pick((s0, s1, s2, s3, s4, s5, s6, s7), job, SOURCES)
            copy_block(source, (t0, t1, t2, t3, t4, t5, t6, t7), start, size, block,
                       TARGETS, TYPE, ITEM, UNIT, BLOCK, POLICY)
        elif MODE == "exchange":
            part = job % PARTS
            row = _row(ROWS, job // PARTS)
            start = pick((b0, b1, b2, b3, b4, b5, b6, b7), part, PARTS)
            size = pick((b1, b2, b3, b4, b5, b6, b7, b8), part, PARTS) - start
            source = pick((s0, s1, s2, s3, s4, s5, s6, s7), job // PARTS, SOURCES)
            target = pick((t0, t1, t2, t3, t4, t5, t6, t7), part, PARTS)
            copy_block(source + start, (target,), row * size, size, block,
                       1, TYPE, ITEM, UNIT, BLOCK, POLICY)
        elif MODE == "combine":
            combine_block((s0, s1, s2, s3, s4, s5, s6, s7), (t0, t1, t2, t3, t4, t5, t6, t7), b0, b1 - b0, block,
                          OP, SOURCES, TARGETS, TYPE, SUM, ITEM, UNIT, BLOCK, POLICY)
        else:
            row = _row(ROWS, job)
            start = pick((b0, b1, b2, b3, b4, b5, b6, b7), row, PARTS)
            size = pick((b1, b2, b3, b4, b5, b6, b7, b8), row, PARTS) - start
            target = pick((t0, t1, t2, t3, t4, t5, t6, t7), job, TARGETS)
            combine_block((s0, s1, s2, s3, s4, s5, s6, s7), (target,), start, size, block,
                          OP, SOURCES, 1, TYPE, SUM, ITEM, UNIT, BLOCK, POLICY)
        step += tl.num_programs(0)
    if GROUPS > 1:
        meet((g0, g1, g2, g3, g4, g5, g6, g7), slots, me, GROUPS)
# fmt: on
