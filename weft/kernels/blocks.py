"""What one program does to one block: copy it to some places, or combine it from several."""
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, SIM102 - Triton writes compile-time arguments in capitals, and decides such conditions alone

from __future__ import annotations

import triton.language as tl

from .program import program

__all__ = ["combine_block", "copy_block", "pick"]

# Addresses and sizes are bytes in int64. UNIT is a power of two that divides every address and every start; it is
# multiplied back in here because the width of an access follows from what the compiler can prove.


@program()
def pick(values, index, COUNT: tl.constexpr):
    """The value at a place known only at run time, without memory: a chain of selects."""
    chosen = values[0]
    for i in tl.static_range(1, COUNT):
        chosen = tl.where(index == i, values[i], chosen)
    return chosen


@program()
def _lanes(address, offset, TYPE: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    begin = tl.multiple_of(tl.cast(address + offset, tl.int64).to(tl.pointer_type(TYPE)), UNIT)
    return begin + tl.arange(0, BLOCK)


@program()
def copy_block(
    source,
    targets,
    start,
    size,
    block,
    TARGETS: tl.constexpr,
    TYPE: tl.constexpr,
    ITEM: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    POLICY: tl.constexpr,
):
    """Read block `block` of the `size` bytes at `source` once and write it at `start` of every target."""
    words = size // ITEM
    first = tl.cast(block, tl.int64) * BLOCK
    here = first * ITEM
    there = start + here
    if first + BLOCK <= words:
        value = tl.load(_lanes(source, here, TYPE, UNIT, BLOCK), eviction_policy=POLICY)
        for i in tl.static_range(TARGETS):
            tl.store(_lanes(targets[i], there, TYPE, UNIT, BLOCK), value, eviction_policy=POLICY)
    else:
        if first < words:
            inside = tl.arange(0, BLOCK) < words - first
            part = tl.load(_lanes(source, here, TYPE, UNIT, BLOCK), mask=inside)
            for i in tl.static_range(TARGETS):
                tl.store(_lanes(targets[i], there, TYPE, UNIT, BLOCK), part, mask=inside)
        if first <= words:
            # The bytes after the last whole word belong to whoever owns the place after it.
            if first + BLOCK > words:
                _copy_rest(source, targets, words * ITEM, start, size - words * ITEM, TARGETS, ITEM)


@program()
def _copy_rest(source, targets, here, start, rest, TARGETS: tl.constexpr, ITEM: tl.constexpr):
    if ITEM > 1:
        inside = tl.arange(0, ITEM) < rest
        value = tl.load(_lanes(source, here, tl.int8, 1, ITEM), mask=inside)
        for i in tl.static_range(TARGETS):
            tl.store(_lanes(targets[i], start + here, tl.int8, 1, ITEM), value, mask=inside)


@program()
def _combined(total, value, OP: tl.constexpr):
    if OP == "max":
        # A comparison with NaN is false: a new NaN is taken for being one, an old one is never replaced.
        result = tl.where((value > total) | (value != value), value, total)
    elif OP == "min":
        result = tl.where((value < total) | (value != value), value, total)
    elif OP == "prod":
        result = total * value
    else:
        result = total + value
    return result


@program()
def _finished(total, OP: tl.constexpr, SOURCES: tl.constexpr, SUM: tl.constexpr):
    if OP == "mean":
        result = total / SOURCES if tl.float64 == SUM else tl.div_rn(total, tl.cast(SOURCES, tl.float32))
    else:
        result = total
    return result


@program()
def combine_block(
    sources,
    targets,
    start,
    size,
    block,
    OP: tl.constexpr,
    SOURCES: tl.constexpr,
    TARGETS: tl.constexpr,
    TYPE: tl.constexpr,
    SUM: tl.constexpr,
    ITEM: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    POLICY: tl.constexpr,
):
    """Combine block `block` of the `size` bytes at `start` of every source, first to last, for every target."""
    count = size // ITEM
    first = tl.cast(block, tl.int64) * BLOCK
    here = start + first * ITEM
    if first + BLOCK <= count:
        total = tl.load(_lanes(sources[0], here, TYPE, UNIT, BLOCK), eviction_policy=POLICY).to(SUM)
        for i in tl.static_range(1, SOURCES):
            value = tl.load(_lanes(sources[i], here, TYPE, UNIT, BLOCK), eviction_policy=POLICY)
            total = _combined(total, value.to(SUM), OP)
        result = _finished(total, OP, SOURCES, SUM).to(TYPE)
        for i in tl.static_range(TARGETS):
            tl.store(_lanes(targets[i], first * ITEM, TYPE, UNIT, BLOCK), result, eviction_policy=POLICY)
    else:
        inside = tl.arange(0, BLOCK) < count - first
        total = tl.load(_lanes(sources[0], here, TYPE, UNIT, BLOCK), mask=inside, other=0).to(SUM)
        for i in tl.static_range(1, SOURCES):
            value = tl.load(_lanes(sources[i], here, TYPE, UNIT, BLOCK), mask=inside, other=0)
            total = _combined(total, value.to(SUM), OP)
        result = _finished(total, OP, SOURCES, SUM).to(TYPE)
        for i in tl.static_range(TARGETS):
            tl.store(_lanes(targets[i], first * ITEM, TYPE, UNIT, BLOCK), result, mask=inside)
