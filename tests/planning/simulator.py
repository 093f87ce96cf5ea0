"""A NumPy machine that executes plans: what each slot holds, step by step, and the bytes that each receives."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from itertools import product

import numpy as np

from weft.planning import Plan, Step
from weft.planning.owners import owners_of_step
from weft.planning.staging.delegation import delegation
from weft.planning.staging.multicast import multicast
from weft.sharding import ReduceOp
from weft.sharding.geometry import box, within
from weft.sharding.layout import Layout

COMBINE = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
    ReduceOp.PROD: np.multiply,
}
NEUTRAL = {
    ReduceOp.SUM: 0,
    ReduceOp.AVG: 0,
    ReduceOp.MAX: np.iinfo(np.int64).min,
    ReduceOp.MIN: np.iinfo(np.int64).max,
    ReduceOp.PROD: 1,
}
Shards = list[np.ndarray]


def cut(whole: np.ndarray, where) -> np.ndarray:
    return np.asarray(whole)[(*(slice(a, b) for a, b in where), ...)]  # an ellipsis keeps rank 0 a view


def contribution_coords(layout: Layout):
    return product(*(range(layout.mesh.axis_size(axis)) for axis in layout.pending_axes))


def shards_of(layout: Layout, contributions: dict[tuple[int, ...], np.ndarray]) -> Shards:
    """What each slot holds of the contributions (one whole array for each coordinate of the pending axes)."""
    mesh = layout.mesh
    result = []
    for slot in range(mesh.num_devices):
        coords = tuple(mesh.device_coord(slot, axis) for axis in layout.pending_axes)
        result.append(cut(contributions[coords], box(layout, contributions[coords].shape, slot)).copy())
    return result


def value_of(layout: Layout, shards: Shards, shape: tuple[int, ...]) -> np.ndarray:
    """The global value, after a check that replicas are equal and all shapes are right."""
    mesh = layout.mesh
    wholes = {c: np.zeros(shape, np.int64) for c in contribution_coords(layout)}
    seen: dict[tuple[object, ...], np.ndarray] = {}
    for slot, shard in enumerate(shards):
        where = box(layout, shape, slot)
        coords = tuple(mesh.device_coord(slot, axis) for axis in layout.pending_axes)
        assert shard.shape == tuple(b - a for a, b in where), (slot, shard.shape, where)
        first = seen.setdefault((coords, where), shard)
        assert np.array_equal(first, shard), f"replicas differ at slot {slot}"
        cut(wholes[coords], where)[...] = shard
    return combined(layout, wholes)


def combined(layout: Layout, wholes: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    """Reduces contributions axis by axis, in mesh order."""
    for axis, op in layout.pending:
        rest: dict[tuple[int, ...], list[np.ndarray]] = {}
        for coords, whole in sorted(wholes.items()):
            rest.setdefault(coords[1:], []).append(whole)
        wholes = {c: reduce(COMBINE[op], parts) for c, parts in rest.items()}
        if op is ReduceOp.AVG:
            wholes = {c: whole // layout.mesh.axis_size(axis) for c, whole in wholes.items()}
    return wholes[()]


def execute(plan: Plan, shards: Shards) -> tuple[Shards, Counter[object]]:
    """The shards after all steps, and how many elements each device received."""
    received: Counter[object] = Counter()
    for step in plan.steps:
        run = RUN[step.kind] if step.stages is None else STAGED[step.kind]
        shards, counts = run(step, shards)
        if step.kind == "reduce_across":
            received += counts
            continue
        for slot, count in enumerate(counts):
            received[step.target.mesh.slot_ids[slot]] += count
    return shards, received


def _groups(step: Step) -> dict[int, list[int]]:
    groups = step.source.mesh.groups(step.axes) if step.axes else [(s,) for s in range(step.source.mesh.num_devices)]
    return {slot: list(group) for group in groups for slot in group}


def _local_slice(step: Step, shards: Shards):
    out = [
        cut(shard, within(box(step.target, step.shape, slot), box(step.source, step.shape, slot)))
        for slot, shard in enumerate(shards)
    ]
    return out, [0] * len(out)


def _fill_partial(step: Step, shards: Shards):
    out = []
    for slot, shard in enumerate(shards):
        wanted = box(step.target, step.shape, slot)
        filled = np.full([b - a for a, b in wanted], NEUTRAL[step.op], np.int64)
        held = box(step.source, step.shape, slot)
        part = _common(wanted, held)
        if step.keeps(slot) and all(a < b for a, b in part):
            cut(filled, within(part, wanted))[...] = cut(shard, within(part, held)) * step.scale
        out.append(filled)
    return out, [0] * len(out)


def _common(a, b):
    return tuple((max(x[0], y[0]), max(x[0], y[0], min(x[1], y[1]))) for x, y in zip(a, b, strict=True))


def _among_group(step: Step, shards: Shards):
    """All-gather and all-to-all: everything comes from the group, each element from exactly one member."""
    groups, out, counts = _groups(step), [], []
    for slot in range(len(shards)):
        wanted = box(step.target, step.shape, slot)
        result = np.full([b - a for a, b in wanted], -(10**9), np.int64)
        times = np.zeros(result.shape, int)
        count = 0
        for member in groups[slot]:
            held = box(step.source, step.shape, member)
            part = _common(wanted, held)
            cut(result, within(part, wanted))[...] = cut(shards[member], within(part, held))
            cut(times, within(part, wanted))[...] += 1
            count += 0 if member == slot else int(np.prod([b - a for a, b in part]))
        assert (times == 1).all(), f"{step.kind} is not exactly that"
        out.append(result)
        counts.append(count)
    return out, counts


def _permute(step: Step, shards: Shards):
    n = len(shards)
    assert sorted(step.source_of(s) for s in range(n)) == list(range(n))
    assert all(step.target_of(step.source_of(s)) == s for s in range(n))
    groups = _groups(step)
    assert all(step.source_of(s) in groups[s] for s in range(n))
    out = [shards[step.source_of(s)] for s in range(n)]
    return out, [0 if step.source_of(s) == s else out[s].size for s in range(n)]


def _exchange(step: Step, shards: Shards):
    out, counts, arriving = [], [], Counter()
    same = step.source.mesh == step.target.mesh
    groups = _groups(step) if same else {}
    ids, others = step.source.mesh.slot_ids, step.target.mesh.slot_ids
    for slot in range(step.target.mesh.num_devices):
        wanted = box(step.target, step.shape, slot)
        result = np.full([b - a for a, b in wanted], NEUTRAL[step.neutral] if step.neutral else -(10**9), np.int64)
        times = np.zeros(result.shape, int)
        count = 0
        for t in step.receives(slot):
            held = box(step.source, step.shape, t.source_slot)
            cut(result, within(t.box, wanted))[...] = cut(shards[t.source_slot], within(t.box, held)) * step.scale
            cut(times, within(t.box, wanted))[...] += 1
            arriving[t] += 1
            assert not same or t.source_slot in groups[slot]
            count += 0 if ids[t.source_slot] == others[slot] else int(np.prod([b - a for a, b in t.box]))
        assert (times <= 1).all() if step.begun else (times == 1).all()
        out.append(result)
        counts.append(count)
    leaving = Counter(t for s in range(len(shards)) for t in step.sends(s))
    assert leaving == arriving, "both sides agree on what is sent"
    return out, counts


def _all_reduce(step: Step, shards: Shards):
    groups = _groups(step)
    out = []
    for slot in range(len(shards)):
        total = reduce(COMBINE[step.op], [shards[m] for m in groups[slot]])
        out.append(total // step.divisor)
    return out, [step.received(slot) // step.itemsize for slot in range(len(shards))]


def _reduce_scatter(step: Step, shards: Shards):
    groups, out = _groups(step), []
    for slot in range(len(shards)):
        wanted = box(step.target, step.shape, slot)
        parts = [cut(shards[m], within(wanted, box(step.source, step.shape, m))) for m in groups[slot]]
        out.append(reduce(COMBINE[step.op], parts) // step.divisor)
    return out, [(len(groups[slot]) - 1) * out[slot].size for slot in range(len(shards))]


def _reduce_exchange(step: Step, shards: Shards):
    owners, n = step.owners, len(shards)
    groups = _groups(step)
    counts = [0] * n
    reduced: list[dict[object, np.ndarray]] = []
    arriving = Counter()
    for slot in range(n):
        mine: dict[object, np.ndarray] = {}
        for t in owners.collects(slot):
            arriving[t] += 1
            assert t.source_slot in groups[slot]
            part = cut(shards[t.source_slot], within(t.box, box(step.source, step.shape, t.source_slot)))
            mine[t.box] = COMBINE[step.op](mine[t.box], part) if t.box in mine else part
            counts[slot] += 0 if t.source_slot == slot else part.size
        assert tuple(mine) == owners.owned(slot)
        reduced.append({where: part // step.divisor for where, part in mine.items()})
    assert arriving == Counter(t for s in range(n) for t in owners.contributes(s))
    arriving = Counter()
    out = []
    for slot in range(n):
        wanted = box(step.target, step.shape, slot)
        result = np.full([b - a for a, b in wanted], NEUTRAL[step.op], np.int64)
        times = np.zeros(result.shape, int)
        for t in owners.takes(slot):
            arriving[t] += 1
            assert t.source_slot in groups[slot]
            cut(result, within(t.box, wanted))[...] = reduced[t.source_slot][t.box] * step.scale
            cut(times, within(t.box, wanted))[...] += 1
            counts[slot] += 0 if t.source_slot == slot else int(np.prod([b - a for a, b in t.box]))
        assert (times <= 1).all() if owners.created else (times == 1).all()
        out.append(result)
    assert arriving == Counter(t for s in range(n) for t in owners.gives(s))
    return out, counts


def _reduce_across(step: Step, shards: Shards):
    """Contributions to sums, sums to later sums, gifts; nobody reads what it does not hold, and every element arrives."""
    work, counts = step.work, Counter()
    ids, others = step.source.mesh.slot_ids, step.target.mesh.slot_ids
    at = {**dict(zip(work.places.of_source, ids, strict=True)), **dict(zip(work.places.of_target, others, strict=True))}
    sums = []
    for each in work.sums:
        parts = [cut(shards[s], within(each.box, box(step.source, step.shape, s))) for s in each.slots]
        counts[at[each.place]] += sum(_volume(each.box) for s in each.slots if ids[s] != at[each.place])
        if each.lower is not None:
            lower = work.sums[each.lower]
            assert (lower.lower, lower.box) == (None, each.box)
            counts[at[each.place]] += _volume(each.box) * (work.sums[each.lower].place != each.place)
            parts.append(sums[each.lower])
        sums.append(reduce(COMBINE[step.op], parts))
    wanted = [box(step.target, step.shape, slot) for slot in range(len(others))]
    out = [np.full([b - a for a, b in where], NEUTRAL[step.op], np.int64) for where in wanted]
    times = [np.zeros(each.shape, int) for each in out]
    for gift in work.gifts:
        if gift.sum is None:
            held = box(step.source, step.shape, gift.origin)
            part, by = cut(shards[gift.origin], within(gift.box, held)), ids[gift.origin]
        else:
            assert work.sums[gift.sum].box == gift.box
            part, by = sums[gift.sum], at[work.sums[gift.sum].place]
        counts[others[gift.to]] += _volume(gift.box) * (by != others[gift.to])
        into, part = cut(out[gift.to], within(gift.box, wanted[gift.to])), part // step.divisor * step.scale
        into[...] = COMBINE[step.op](into, part) if work.adds else part
        cut(times[gift.to], within(gift.box, wanted[gift.to]))[...] += 1
    assert work.adds or all((each <= 1).all() if step.begun else (each == 1).all() for each in times)
    return out, counts


RUN = {
    "local_slice": _local_slice,
    "fill_partial": _fill_partial,
    "all_gather": _among_group,
    "all_to_all": _among_group,
    "permute": _permute,
    "exchange": _exchange,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_exchange": _reduce_exchange,
    "reduce_across": _reduce_across,
}


def _volume(where) -> int:
    return int(np.prod([b - a for a, b in where]))


def _multicast(step: Step, shards: Shards):
    """Into each cell, then inside it: every element arrives once, and whoever passes something on has it."""
    staged = multicast(step.source, step.target, step.shape, step.stages)
    mesh = step.target.mesh
    ids, others = step.source.mesh.slot_ids, mesh.slot_ids
    cells = step.stages.cells(mesh)
    wanted = [box(step.target, step.shape, slot) for slot in range(mesh.num_devices)]
    out = [np.full([b - a for a, b in where], -(10**9), np.int64) for where in wanted]
    times = [np.zeros(each.shape, int) for each in out]
    counts = [0] * mesh.num_devices
    for hop in (0, 1):
        before = [each.copy() for each in out]
        arriving = Counter()
        for slot in range(mesh.num_devices):
            for t in staged.receives(hop, slot):
                arriving[t] += 1
                if hop == 0:
                    held = cut(shards[t.source_slot], within(t.box, box(step.source, step.shape, t.source_slot)))
                    counts[slot] += 0 if ids[t.source_slot] == others[slot] else _volume(t.box)
                else:
                    held = cut(before[t.source_slot], within(t.box, wanted[t.source_slot]))
                    assert cells[t.source_slot] == cells[slot]
                    counts[slot] += _volume(t.box)
                cut(out[slot], within(t.box, wanted[slot]))[...] = held
                cut(times[slot], within(t.box, wanted[slot]))[...] += 1
        senders = range(len(shards)) if hop == 0 else range(mesh.num_devices)
        assert arriving == Counter(t for s in senders for t in staged.sends(hop, s)), "both sides agree on what is sent"
    assert all((each == 1).all() for each in times)
    return out, counts


def _through_delegates(step: Step, shards: Shards):
    """Inside each cell, from cell to cell, and back: as the tasks say."""
    owners = owners_of_step(step, crowded=False)
    work, n = delegation(owners, step.stages), len(shards)
    cells = step.stages.cells(step.source.mesh)
    counts = [0] * n

    def part(slot: int, where) -> np.ndarray:
        if owners.flat:
            return cut(shards[slot].reshape(-1), where)
        return cut(shards[slot], within(where, box(step.source, step.shape, slot)))

    partial: dict[object, np.ndarray] = {}
    arriving = Counter()
    for slot in range(n):
        for task in work.tasks(slot):
            partial[slot, task.owner, task.box] = reduce(COMBINE[step.op], [part(m, task.box) for m in task.members])
            arriving.update((task.owner, m, slot, task.box) for m in task.members if m != slot)
            assert all(cells[m] == cells[slot] for m in task.members)
            counts[slot] += sum(_volume(task.box) for m in task.members if m != slot)
    assert arriving == Counter((o, t.source_slot, t.target_slot, t.box) for s in range(n) for o, t in work.entrusts(s))
    results: dict[object, np.ndarray] = {}
    for slot in range(n):
        for where, delegates in work.arriving(slot):
            assert len({cells[d] for d in delegates}) == len(delegates)
            total = reduce(COMBINE[step.op], [partial[d, slot, where] for d in delegates])
            results[slot, where] = total // step.divisor
            counts[slot] += sum(_volume(where) for d in delegates if d != slot)
    wanted = [box(step.target, step.shape, slot) for slot in range(n)]
    out = [np.full([b - a for a, b in where], -(10**9), np.int64) for where in wanted]
    if not owners.spreads:
        for (slot, where), result in results.items():
            cut(out[slot], within(where, wanted[slot]))[...] = result
        return out, counts
    flat = [each.reshape(-1) if owners.flat else each for each in out]
    bases = [((0, each.size),) if owners.flat else wanted[slot] for slot, each in enumerate(flat)]
    for hop in (0, 1):
        before, arriving = [each.copy() for each in flat], Counter()
        for slot in range(n):
            for t in work.takes(hop, slot):
                arriving[t] += 1
                counts[slot] += 0 if t.source_slot == slot else _volume(t.box)
                if hop:
                    held = cut(before[t.source_slot], within(t.box, bases[t.source_slot]))
                else:
                    whole = next(w for o, w in results if o == t.source_slot and _inside(t.box, w))
                    held = cut(results[t.source_slot, whole], within(t.box, whole))
                cut(flat[slot], within(t.box, bases[slot]))[...] = held
        assert arriving == Counter(t for s in range(n) for t in work.gives(hop, s)), "both sides agree"
    return out, counts


def _inside(part, whole) -> bool:
    return all(a <= c and d <= b for (c, d), (a, b) in zip(part, whole, strict=True))


STAGED = {
    **dict.fromkeys(("all_gather", "all_to_all", "permute", "exchange"), _multicast),
    **dict.fromkeys(("all_reduce", "reduce_scatter", "reduce_exchange"), _through_delegates),
}
