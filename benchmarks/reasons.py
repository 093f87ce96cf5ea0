"""Why a row is behind, where it is."""

from __future__ import annotations

from figure import LIMIT, SEPARATE, SEPARATE_LIMIT, WEFT, Figure

CALL = "a call's fixed cost in Python; the limit is one small copy"
PIECES = "each of the many small copies is a call of torch"
LARGE_PIECES = "boxes of rows are copied one after another by one thread pool; the peer's run side by side"
SHARED = "every device's shard is written; the peer's devices share memory, and it writes less than that"
ONE_PASS = (
    "plain torch adds the contributions one by one, a chunk at a time; a compiled program adds all of them in one pass"
)
SHARDS = "the op runs once for each of the eight shards, not once for all"
TOLERANCE = 1.05
"""Ratios up to this count as equal: they change sides from run to run."""
TOLD: dict[str, dict[str, str]] = {
    "ops": {
        "": "an op is dispatched in Python, once for all shards; DTensor's dispatch of known ops is compiled code",
    },
    "training": {
        "GPT-2": "the arithmetic is plain torch's; what is more is the dispatch of each op in Python",
        "the demonstration": "hundreds of ops on a few KiB: the dispatch of each in Python is all there is; DTensor, on one device, has nothing to reduce and dispatches known ops in compiled code",
        "AdamW": "torch asks each parameter for its gradient and its kind, which takes longer of a class of ours; with several pieces each, every op on lists comes to us (decision 45)",
    },
    "graphs": {"": "the dispatch of each op in Python"},
    "processes": {
        "200 x": "an op is dispatched in Python; DTensor's dispatch of known ops is compiled code",
        "": "a call is some tenths of a millisecond of Python in each of four processes, which share two cores",
    },
}


def reason(figure: Figure) -> str:
    """Where Weft takes longer than a peer, or more than half as long again as the limit; empty elsewhere."""
    if not figure.times:
        return "left out: too little memory was free"
    over_limit, over_peer = figure.ratio(WEFT, LIMIT), figure.ratio(WEFT, figure.best_peer)
    apart_limit, apart_peer = figure.ratio(SEPARATE, SEPARATE_LIMIT), figure.ratio(SEPARATE, figure.best_peer)
    said = []
    if (over_limit or 0) > (1.1 if figure.section == "processes" else 1.5) or (over_peer or 0) > TOLERANCE:
        said.append(_told(figure))
    if (apart_limit or 0) > 1.5 or (apart_peer or 0) > TOLERANCE:
        said.append(f"separate: {_told_apart(figure)}")
    return "; ".join(filter(None, said))


def _told_apart(figure: Figure) -> str:
    if figure.section not in ("transitions", "collectives"):
        return SHARDS
    if figure.nbytes < 1 << 20:
        return PIECES
    written = figure.times.get(SEPARATE_LIMIT)
    best = figure.best_peer
    shares = best is not None and (written is None or figure.times[best].median < 0.5 * written.median)
    return SHARED if shares else LARGE_PIECES


def _told(figure: Figure) -> str:
    for beginning, words in TOLD.get(figure.section, {}).items():
        if figure.name.startswith(beginning):
            return words
    return CALL if 0 < figure.nbytes < 1 << 20 else ONE_PASS if _sums(figure) else ""


def _sums(figure: Figure) -> bool:
    return figure.name.startswith(("P→", "all_reduce", "reduce_scatter")) or " sum@" in figure.name
